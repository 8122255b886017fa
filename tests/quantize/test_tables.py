import pytest
import torch

from genius.quantize import residual as module
from genius.quantize import tables
from genius.quantize.residual import ResidualQuantizer
from genius.quantize.tables import BeamTables, largest

DIM = 12


def drawn(sizes=(3, 16, 32, 16, 7), **options) -> ResidualQuantizer:
    """Random codebooks in double precision: rounding decides no near tie."""
    quantizer = ResidualQuantizer(DIM, sizes, **options).double()
    torch.nn.init.normal_(quantizer.vectors, std=0.4, generator=torch.Generator().manual_seed(0))
    return quantizer


def unit(n: int) -> torch.Tensor:
    z = torch.randn(n, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


@pytest.mark.parametrize("beam", [2, 5, 40])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"modality": "nearest"},
        {"modality": "classifier"},
        {"sizes": (16, 32, 16), "modality": "none"},
    ],
)
def test_codes_equal_those_of_the_search_with_residuals(options, beam):
    quantizer = drawn(**options)
    z, modality = unit(700), torch.arange(700) % 3
    assert BeamTables.worthwhile(quantizer, len(z))
    assert torch.equal(quantizer.encode(z, modality, beam), quantizer._beam(z, modality, beam))


def test_levels_that_share_a_codebook_get_codes_as_near():
    quantizer = drawn((3, 16, 16, 16), shared=True)  # two orders of the same codes are equally near
    z, modality = unit(700), torch.arange(700) % 3
    errors = [
        float((z - quantizer.decode(codes)).square().sum(1).mean())
        for codes in (quantizer.encode(z, modality, 4), quantizer._beam(z, modality, 4))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


def test_float32_differs_only_where_two_codings_are_equally_near():
    quantizer = drawn().float()
    z, modality = unit(2000).float(), torch.arange(2000) % 3
    codes, plain = quantizer.encode(z, modality, 8), quantizer._beam(z, modality, 8)
    errors = [(z - quantizer.decode(found)).square().sum(1) for found in (codes, plain)]
    torch.testing.assert_close(*errors, atol=1e-5, rtol=0)


def test_few_vectors_and_huge_codebooks_are_encoded_without_tables():
    assert not BeamTables.worthwhile(drawn(), tables.MIN_VECTORS - 1)
    assert not BeamTables.worthwhile(ResidualQuantizer(1, (3, *[4096] * 8)), 1_000_000)
    assert BeamTables.worthwhile(ResidualQuantizer(1, (3, *[256] * 15)), 1_000_000)


def test_chunks_change_nothing(monkeypatch):
    quantizer, z, modality = drawn(), unit(600), torch.arange(600) % 3
    whole = quantizer.encode(z, modality, 4)
    monkeypatch.setattr(tables, "GAINS_AT_ONCE", 7 * 32 * 4)
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 100 * 32 * 4)
    assert torch.equal(quantizer.encode(z, modality, 4), whole)


@pytest.mark.parametrize("columns", [5, 64, 160, 2048, 2049])
def test_largest_is_topk(columns):
    values = torch.rand(50, columns, generator=torch.Generator().manual_seed(columns))
    found = values.gather(1, largest(values, 4)).sort(dim=1, descending=True).values
    assert torch.equal(found, values.topk(4).values)
