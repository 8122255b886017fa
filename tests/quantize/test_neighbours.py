import torch

from genius.quantize.codebooks import init_codebooks
from genius.quantize.fit import MOST_TUNED, FitOptions, fit_quantizer
from genius.quantize.neighbours import NEIGHBOURS, keep_neighbours, nearest_items
from genius.quantize.residual import ResidualQuantizer

DIM = 24


def items(n: int = 1200, seed: int = 0) -> torch.Tensor:
    """Unit vectors around thirty centres; those of a centre differ in a few directions."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(30, DIM, generator=torch.Generator().manual_seed(9))
    spread = torch.linspace(1.0, 0.05, DIM)
    z = centres[torch.arange(n) % 30] + 0.5 * torch.randn(n, DIM, generator=generator) * spread
    return torch.nn.functional.normalize(z, dim=1)


def found(z: torch.Tensor, coded: torch.Tensor, queries: torch.Tensor) -> float:
    """Share of the ten nearest items that are among the first ten by codes."""
    exact, by_codes = ((queries @ x.T).topk(10).indices for x in (z, torch.nn.functional.normalize(coded)))
    return float((exact[:, :, None] == by_codes[:, None]).any(2).float().mean())


def test_more_of_the_nearest_items_are_found_by_codes():
    z, modality, queries = items(), torch.zeros(1200, dtype=torch.long), items(300, seed=1)
    shares = []
    for neighbours in (False, True):
        quantizer = fit_quantizer(z, modality, FitOptions(item_bytes=3, rounds=4, neighbours=neighbours))
        shares.append(found(z, quantizer.decode(quantizer.encode(z, modality)), queries))
    assert shares[1] > shares[0] + 0.02


def test_codes_are_found_by_the_refined_code_vectors():
    z, modality = items(), torch.zeros(1200, dtype=torch.long)
    plain, tuned = (
        fit_quantizer(z, modality, FitOptions(item_bytes=3, rounds=2, neighbours=each))
        for each in (False, True)
    )
    assert plain.residual.encoding is None
    assert tuned.residual.encoding is not None
    assert torch.equal(tuned.residual.encoding, plain.residual.vectors.half())
    assert not torch.allclose(tuned.residual.vectors, plain.residual.vectors, atol=1e-3)
    same = (plain.encode(z, modality) == tuned.encode(z, modality)).float().mean()
    assert same > 0.99  # but for what rounding to float16 changes
    assert tuned.shape()["encoding"]


def test_the_loss_falls_and_the_same_seed_gives_the_same():
    z, modality = items(600), torch.arange(600) % 3
    vectors = []
    for _ in range(2):
        quantizer = ResidualQuantizer(DIM, (3, 32, 32))
        codes = init_codebooks(quantizer, z, modality, torch.Generator().manual_seed(1))
        losses = keep_neighbours(quantizer, z, codes, torch.Generator().manual_seed(2))
        assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
        vectors.append(quantizer.vectors)
    assert torch.equal(*vectors)


def test_neighbours_of_items():
    z = items(100)
    near = nearest_items(z)
    assert near.shape == (100, NEIGHBOURS)
    assert all(row in near[row] for row in range(100))
    assert nearest_items(z[:5]).shape == (5, 5)


def test_large_collections_are_fitted_without():
    z = torch.nn.functional.normalize(torch.randn(MOST_TUNED + 1, 4), dim=1)
    quantizer = fit_quantizer(z, torch.zeros(len(z), dtype=torch.long), FitOptions(item_bytes=2, rounds=0))
    assert quantizer.residual.encoding is None
