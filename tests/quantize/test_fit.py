from dataclasses import replace

import pytest
import torch

from genius.errors import BadInput
from genius.quantize.fit import (
    FitOptions,
    bytes_of,
    fit_quantizer,
    fitted_sizes,
    own_modalities,
    refinement_rounds,
    sample_rows,
)
from genius.quantize.model import load_quantizer, save_quantizer

DIM = 16


def collection(n: int = 1500, gap: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clustered embeddings of three modalities that lie `gap` apart, not of unit length."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(40, DIM, generator=generator)
    offset = gap * torch.randn(3, DIM, generator=generator)
    modality = torch.arange(n) % 3
    near = centres[torch.randint(40, (n,), generator=generator)] + offset[modality]
    return 3 * near + torch.randn(n, DIM, generator=generator), modality


def error(quantizer, x: torch.Tensor, modality: torch.Tensor) -> float:
    z = torch.nn.functional.normalize(x, dim=1)
    return float((z - quantizer.decode(quantizer.encode(z, modality))).square().sum(1).mean())


def test_codes_have_the_bytes_asked_for_and_start_with_the_modality():
    x, modality = collection()
    quantizer = fit_quantizer(x, modality, FitOptions(item_bytes=6, rounds=2))
    codes = quantizer.encode(torch.nn.functional.normalize(x, dim=1), modality)
    assert codes.shape == (len(x), 7)
    assert bytes_of(quantizer.sizes) == 6  # two bits, five bytes and six bits
    assert torch.equal(codes[:, 0], modality)
    assert codes.max() < 256
    assert quantizer.fusion.preset == "sum"
    assert not quantizer.training
    assert not any(parameter.requires_grad for parameter in quantizer.parameters())


def test_more_bytes_and_more_rounds_lower_the_error():
    x, modality = collection()
    by_bytes = [
        error(fit_quantizer(x, modality, FitOptions(item_bytes=b, rounds=2)), x, modality) for b in (3, 6, 9)
    ]
    assert by_bytes == sorted(by_bytes, reverse=True)
    by_rounds = [
        error(fit_quantizer(x, modality, FitOptions(item_bytes=6, rounds=r)), x, modality) for r in (0, 3)
    ]
    assert by_rounds[1] < 0.95 * by_rounds[0]


def test_the_same_seed_gives_the_same_codebooks():
    x, modality = collection(600)
    first, again, other = (
        fit_quantizer(x, modality, FitOptions(item_bytes=4, seed=seed, rounds=2)).residual.vectors
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_sample_stands_for_the_collection():
    x, modality = collection(4000)
    options = FitOptions(item_bytes=6, sample=1000, rounds=2)
    rows = sample_rows(len(x), options)
    assert len(rows) == 1000
    assert torch.equal(rows, rows.unique())  # ascending, each once
    sampled = fit_quantizer(x[rows], modality[rows], options)
    assert torch.equal(sampled.residual.vectors, fit_quantizer(x, modality, options).residual.vectors)
    mean = float((x / x.norm(dim=1, keepdim=True)).var(0).sum())
    assert error(sampled, x, modality) < 0.2 * mean
    assert torch.equal(sample_rows(10, options), torch.arange(10))


@pytest.mark.parametrize("n", [1, 2, 17])
def test_small_and_repetitive_collections_are_coded_without_error(n):
    x, modality = collection(n)
    assert error(fit_quantizer(x, modality, FitOptions(item_bytes=4)), x, modality) < 1e-3
    same = x[:1].expand(50, -1)
    assert (
        error(
            fit_quantizer(same, torch.zeros(50, dtype=torch.long), FitOptions()),
            same,
            torch.zeros(50, dtype=torch.long),
        )
        < 1e-6
    )


def test_sizes_grow_with_the_collection():
    sizes = [fitted_sizes(items, 15) for items in (10, 1000, 10_000, 10_000_000)]
    assert all(size[0] == 3 and len(size) == 16 for size in sizes)
    assert [size[1] for size in sizes] == sorted(size[1] for size in sizes)
    assert sizes[-1] == (3, *(256,) * 14, 64)
    assert [bytes_of(fitted_sizes(10_000, number)) for number in (2, 15, 16)] == [2, 15, 16]


def gathered(counts: tuple[int, int, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of so many items of each modality; each modality differs in directions of its own."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for kind, count in enumerate(counts):
        spread = torch.full((DIM,), 0.05)
        spread[5 * kind : 5 * kind + 6] = 1.0
        parts.append(torch.randn(count, DIM, generator=generator) * spread)
    return torch.cat(parts), torch.repeat_interleave(torch.arange(3), torch.tensor(counts))


def test_codebooks_of_their_own_reconstruct_better_at_the_same_bytes():
    x, modality = gathered((2300, 0, 2100))
    own, common = (
        fit_quantizer(x, modality, FitOptions(item_bytes=3, rounds=4, by_modality=each))
        for each in (True, False)
    )
    assert own.residual.by_modality and not common.residual.by_modality
    assert own.sizes == common.sizes
    assert error(own, x, modality) < 0.8 * error(common, x, modality)


def test_a_modality_is_coded_as_if_it_were_the_whole_collection():
    x, modality = gathered((2200, 2100, 2300))
    options = FitOptions(item_bytes=3, rounds=2)
    every = fit_quantizer(x, modality, options)
    z = torch.nn.functional.normalize(x, dim=1)
    for kind in range(3):
        rows = modality == kind
        alone = fit_quantizer(x[rows], modality[rows], options)
        assert not alone.residual.by_modality
        codes = every.encode(z[rows], modality[rows])
        assert torch.equal(codes, alone.encode(z[rows], modality[rows]))
        assert torch.allclose(every.decode(codes), alone.decode(codes))


def test_modalities_with_few_items_use_codebooks_of_all_items():
    x, modality = gathered((2200, 40, 0))
    options = FitOptions(item_bytes=3, rounds=2)
    quantizer = fit_quantizer(x, modality, options)
    common = fit_quantizer(x, modality, replace(options, by_modality=False))
    books, of_all = quantizer.residual.codebook(1), common.residual.codebook(1)
    assert torch.equal(books[1], of_all)
    assert not torch.equal(books[0], of_all)
    assert torch.equal(books[2], books[0])  # for pairs that may come
    z = torch.nn.functional.normalize(x, dim=1)
    assert torch.allclose(quantizer.residual.codebook(0)[2], z.mean(0), atol=1e-6)


def test_who_gets_codebooks_of_its_own():
    def of(*counts: int) -> list[int]:
        return own_modalities(torch.repeat_interleave(torch.arange(3), torch.tensor(counts)), 16)

    assert of(128, 200, 127) == [1, 0]  # eight items a code, the most common first
    assert of(0, 500, 0) == []  # one modality: the codebooks are those of the collection
    assert of(90, 90, 90) == []


def test_codes_follow_the_code_vectors_when_these_change(tmp_path):
    x, modality = collection(600)
    z = torch.nn.functional.normalize(x, dim=1)
    quantizer = fit_quantizer(x, modality, FitOptions(item_bytes=4, rounds=1))
    before = quantizer.encode(z, modality)
    table = save_quantizer(quantizer, tmp_path)
    assert torch.equal(load_quantizer(tmp_path, table).encode(z, modality), before)
    with torch.no_grad():
        first = quantizer.residual.codebook(1)
        first.copy_(first.flip(0))
    after = quantizer.encode(z, modality)
    assert torch.equal(after[:, 1], len(first) - 1 - before[:, 1])


def test_bad_input_is_refused_with_a_cure():
    x, modality = collection(50)
    with pytest.raises(BadInput, match="add items"):
        fit_quantizer(x[:0], modality[:0])
    with pytest.raises(BadInput, match="NaN"):
        fit_quantizer(torch.where(x > 2, torch.nan, x), modality)
    with pytest.raises(BadInput, match="at least 2"):
        fitted_sizes(100, 1)


def test_rounds_of_refinement_by_size():
    sizes = (0, 1_000, 4_000, 8_000, 16_000, 40_000, 10_000_000)
    assert [refinement_rounds(items) for items in sizes] == [10, 10, 20, 40, 40, 16, 8]
