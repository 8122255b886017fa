import numpy as np
import pytest
import torch

from genius.errors import ModelMismatch
from genius.quantize import model as module
from genius.quantize.model import Quantizer, load_quantizer, save_quantizer
from genius.quantize.residual import code_sizes


def drawn(**options) -> Quantizer:
    torch.manual_seed(0)
    quantizer = Quantizer(8, code_sizes(4, 16), fusion="small", **options).eval()
    for tensor in (*quantizer.parameters(), quantizer.residual.vectors):
        torch.nn.init.normal_(tensor, std=0.2)
    if quantizer.residual.encoding is not None:
        quantizer.residual.encoding.copy_(quantizer.residual.vectors.flip(0))
    return quantizer


def arrays(n: int = 30):
    random = np.random.default_rng(0)
    image, text = random.standard_normal((2, n, 8), dtype=np.float32)
    image[::3] = 0
    text[1::3] = 0
    return image, text, np.tile([1, 0, 2], n // 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"modality": "classifier"},
        {"shared_codebooks": True, "encode_beam": 3},
        {"codebooks": "modality", "encode_beam": 3},
        {"codebooks": "modality", "encoding": True},
        {"weighted": True},  # an older fit
    ],
)
def test_saved_and_loaded_it_gives_the_same(tmp_path, options):
    quantizer = drawn(**options)
    table = save_quantizer(quantizer, tmp_path)
    again = load_quantizer(tmp_path, table)
    image, text, modality = arrays()
    z = quantizer.z_of(image, text)
    np.testing.assert_array_equal(again.z_of(image, text), z)
    np.testing.assert_array_equal(again.codes_of(z, modality), quantizer.codes_of(z, modality))
    assert again.shape() == table
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())


def test_the_numpy_door(monkeypatch):
    quantizer = drawn()
    image, text, modality = arrays()
    z = quantizer.z_of(image, text)
    expected = quantizer(torch.from_numpy(image), torch.from_numpy(text)).detach().numpy()
    np.testing.assert_allclose(z, expected, rtol=1e-6)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(quantizer.z_of(image, text), z, rtol=1e-5, atol=1e-6)
    codes = quantizer.codes_of(z, modality)
    assert (codes.dtype, codes.shape) == (np.uint16, (30, 4))
    np.testing.assert_array_equal(codes[:, 0], modality)
    vectors = quantizer.vectors_of(codes)
    np.testing.assert_array_equal(vectors, quantizer.decode(torch.from_numpy(codes.astype(np.int64))).numpy())
    assert quantizer.z_of(image[:0], text[:0]).shape == (0, 8)


def test_what_does_not_fit_is_refused(tmp_path):
    table = save_quantizer(drawn(), tmp_path)
    with pytest.raises(ModelMismatch, match=r"residual\.vectors"):
        load_quantizer(tmp_path, {**table, "sizes": [3, 16, 16]})
    with pytest.raises(ModelMismatch, match=r"missing residual\.classifier"):
        load_quantizer(tmp_path, {**table, "modality": "classifier"})
    with pytest.raises(ModelMismatch, match="widht"):
        load_quantizer(tmp_path, {**table, "widht": 3})


def test_codebooks_by_modality_are_named_in_the_table_and_others_are_not(tmp_path):
    assert drawn(codebooks="modality").shape()["codebooks"] == "modality"
    table = save_quantizer(drawn(), tmp_path)
    assert "codebooks" not in table  # as in older folders
    with pytest.raises(ModelMismatch, match=r"residual\.vectors"):
        load_quantizer(tmp_path, {**table, "codebooks": "modality"})
