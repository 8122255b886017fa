import itertools

import pytest
import torch
from vector_quantize_pytorch import ResidualVQ

from genius.errors import BadInput
from genius.quantize import residual as module
from genius.quantize.residual import ResidualQuantizer, code_sizes


def drawn(sizes=(3, 16, 16, 16), dim=12, seed=0, **options) -> ResidualQuantizer:
    quantizer = ResidualQuantizer(dim, sizes, **options)
    torch.nn.init.normal_(quantizer.vectors, std=0.4, generator=torch.Generator().manual_seed(seed))
    return quantizer


def unit(n: int, dim: int = 12, seed: int = 1) -> torch.Tensor:
    z = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(z, dim=1)


def error(quantizer, z, codes) -> torch.Tensor:
    return (z - quantizer.decode(codes)).square().sum(1)


def test_equals_vector_quantize_pytorch_for_the_same_codebooks():
    ours = drawn(modality="nearest")
    theirs = ResidualVQ(dim=12, num_quantizers=4, codebook_size=(3, 16, 16, 16))
    for layer, book in zip(theirs.layers, ours.codebooks(), strict=True):
        layer._codebook.embed.data.copy_(book[None])
        layer._codebook.initted.fill_(True)
    theirs.eval()
    z = unit(500)
    quantized, codes, _ = theirs(z[None])
    assert torch.equal(ours.encode(z), codes[0])
    torch.testing.assert_close(ours.decode(ours.encode(z)), quantized[0])


def test_two_levels_by_hand():
    quantizer = ResidualQuantizer(2, (3, 2))
    quantizer.codebook(0).copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    quantizer.codebook(1).copy_(torch.tensor([[-0.5, 0.5], [0.0, 0.0]]))
    z = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, 0.8]])
    codes = quantizer.encode(z, torch.tensor([0, 1, 2]))
    # residuals (-0.4, 0.8), (0.6, -0.2), (0.1, 0.3): nearest to (-0.5, 0.5), (0, 0), (0, 0)
    assert codes.tolist() == [[0, 0], [1, 1], [2, 1]]
    torch.testing.assert_close(quantizer.decode(codes), torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]))
    torch.testing.assert_close(quantizer.directions(codes)[0], torch.tensor([0.5, 0.5]) * 2**0.5)
    expected = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    torch.testing.assert_close(quantizer.partial_sums(codes)[0], expected)


def test_a_wide_beam_finds_the_best_of_all_codings():
    quantizer = drawn(sizes=(3, 5, 5), dim=4)
    z = unit(40, 4)
    modality = torch.arange(40) % 3
    found = error(quantizer, z, quantizer.encode(z, modality, beam=25))
    every = torch.tensor(list(itertools.product(range(5), range(5))))
    for row in range(40):
        all_codes = torch.cat([modality[row].expand(25, 1), every], dim=1)
        best = error(quantizer, z[row].expand(25, 4), all_codes).min()
        torch.testing.assert_close(found[row], best)


def test_more_beam_never_hurts_on_average_and_one_is_greedy():
    quantizer = drawn()
    z, modality = unit(400), torch.arange(400) % 3
    greedy = quantizer.encode(z, modality)
    assert torch.equal(quantizer._beam(z, modality, 1), greedy)
    means = [float(error(quantizer, z, quantizer.encode(z, modality, beam)).mean()) for beam in (1, 2, 4, 8)]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.9 * means[0]


@pytest.mark.parametrize("beam", [1, 3])
def test_chunks_change_nothing(monkeypatch, beam):
    quantizer = drawn()
    z, modality = unit(100), torch.arange(100) % 3
    whole = quantizer.encode(z, modality, beam)
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 16 * beam * 7)
    assert torch.equal(quantizer.encode(z, modality, beam), whole)


def test_a_million_vectors_are_scored_a_chunk_at_a_time(monkeypatch):
    quantizer = drawn(sizes=(3, 8), dim=2)
    z, modality = unit(1_000_000, 2), torch.zeros(1_000_000, dtype=torch.long)
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 1 << 17)
    rows = []
    plain = torch.addmm
    monkeypatch.setattr(torch, "addmm", lambda *a: rows.append(len(a[1])) or plain(*a))
    assert quantizer.encode(z, modality).shape == (1_000_000, 2)
    assert sum(rows) == 1_000_000
    assert max(rows) == (1 << 17) // 8


def test_sources_of_level_zero():
    z, modality = unit(60), torch.arange(60) % 3
    assigned = drawn()
    assert torch.equal(assigned.encode(z, modality)[:, 0], modality)
    with pytest.raises(BadInput, match="pass it for every vector"):
        assigned.encode(z)
    none = drawn(sizes=(16, 16), modality="none")
    assert none.encode(z).shape == (60, 2)
    classified = drawn(sizes=(3, 16), modality="classifier")
    classified.codebook(0).zero_()
    codes = classified.encode(z)
    assert torch.equal(codes[:, 0], classified.classifier(z).argmax(1))
    nearest = torch.cdist(z, classified.codebook(1)).argmin(1)  # nothing was subtracted before
    assert torch.equal(codes[:, 1], nearest)


def test_shared_codebooks_are_one():
    quantizer = drawn(shared=True)
    assert quantizer.vectors.shape == (3 + 16, 12)
    assert quantizer.codebook(1).data_ptr() == quantizer.codebook(3).data_ptr()
    z, modality = unit(20), torch.arange(20) % 3
    codes = quantizer.encode(z, modality)
    torch.testing.assert_close(quantizer.partial_sums(codes)[:, -1], quantizer.decode(codes))
    assert int(quantizer.rows(codes).max()) < 19


def test_sizes_and_refusals():
    assert code_sizes(9, 4096) == (3, *[4096] * 8)
    assert code_sizes(9, 4096, "none") == (4096,) * 8
    for arguments, message in (
        (((4, 16),), "level 0 is the modality"),
        (((3, 1 << 17),), "1 to 65,536"),
    ):
        with pytest.raises(BadInput, match=message):
            ResidualQuantizer(12, *arguments)
    with pytest.raises(BadInput, match="one size"):
        ResidualQuantizer(12, (3, 16, 8), shared=True)
    with pytest.raises(BadInput, match="at least 2"):
        code_sizes(1, 16)
    with pytest.raises(BadInput, match="width 12"):
        drawn().encode(unit(3, 11), torch.zeros(3, dtype=torch.long))
    with pytest.raises(BadInput, match="modalities for 3 vectors"):
        drawn().encode(unit(3), torch.zeros(2, dtype=torch.long))


def test_no_vectors_no_codes():
    assert drawn().encode(torch.empty(0, 12), torch.empty(0, dtype=torch.long)).shape == (0, 4)


@pytest.mark.parametrize("beam", [1, 4])
def test_codebooks_by_modality_are_quantizers_of_their_own(beam):
    quantizer = drawn(codebooks="modality")
    z, modality = unit(900), torch.arange(900) % 3
    codes = quantizer.encode(z, modality, beam)
    assert torch.equal(codes[:, 0], modality)
    for kind in range(3):
        rows, own = modality == kind, quantizer.of_modality(kind)
        assert not own.by_modality
        assert torch.equal(own.encode(z[rows], modality[rows], beam), codes[rows])
        assert torch.equal(own.decode(codes[rows]), quantizer.decode(codes[rows]))
        assert torch.equal(own.partial_sums(codes[rows]), quantizer.partial_sums(codes[rows]))
    first, *others = quantizer.codebooks()
    assert first.shape == (3, 12)
    assert [book.shape for book in others] == [(3, 16, 12)] * 3
    assert len(quantizer.rows(codes).unique()) <= len(quantizer.vectors) == 3 + 3 * 48


def test_codebooks_of_a_modality_can_be_set():
    quantizer, other = drawn(codebooks="modality"), drawn(seed=5)
    before = quantizer.vectors.clone()
    quantizer.set_modality(1, other)
    assert torch.equal(quantizer.of_modality(1).vectors[3:], other.vectors[3:])
    assert torch.equal(quantizer.codebook(0)[1], other.codebook(0)[1])
    assert int((quantizer.vectors != before).any(1).sum()) == 1 + 48


def test_codebooks_by_modality_need_to_be_told_the_modality():
    with pytest.raises(BadInput, match="assigned"):
        drawn(codebooks="modality", modality="nearest")
    with pytest.raises(BadInput, match="shared"):
        drawn(codebooks="modality", shared=True)
    with pytest.raises(BadInput, match="common, modality"):
        drawn(codebooks="own")
