"""A model folder as one thing: what it gives, what its fingerprint follows, what is refused."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.data.instructions import clean, query_text
from genius.decode.init import fresh_decoder
from genius.decode.shape import DecoderShape
from genius.decode.weights import save_decoder
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.model import MODELS, Model, model_folder
from genius.model_toml import read_model_toml, write_model_toml
from genius.quantize.model import Quantizer, save_quantizer
from genius.retrieval_model import RetrievalModel
from genius.types import Modality

TINY = runpy.run_path(str(Path(__file__).resolve().parent / "pipeline" / "tiny.py"))
SIZES = (3, 8, 8)


def quantizer(dim: int = 512, sizes: tuple[int, ...] = SIZES, **more: Any) -> Quantizer:
    made = Quantizer(dim, sizes, fusion="sum", **more)
    rows = made.residual.vectors
    rows.copy_(
        torch.nn.functional.normalize(torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)))
    )
    return made


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    TINY["shrink_mini"](monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small `mini` with random codebooks and a random decoder."""
    folder = tmp_path / "model"
    TINY["start_mini"]().save(folder)
    made = quantizer()
    shape = DecoderShape(512, SIZES, layers=1, width=32, heads=2, head_width=16, feed_forward=64, prefix=4)
    tables = {
        "encoder": {"name": "mini"},
        "quantizer": save_quantizer(made, folder),
        "decoder": save_decoder(fresh_decoder(shape, made.residual.codebooks(), 0), folder),
        "search": {"method": "lookup", "beam": 7},
    }
    write_model_toml(folder, tables)
    return folder


def retable(folder: Path, **tables: Any) -> Path:
    """Change or (None) drop tables of the folder's model.toml."""
    new = {**read_model_toml(folder), **tables}
    write_model_toml(folder, {name: table for name, table in new.items() if table is not None})
    return folder


def test_what_a_model_knows(folder: Path) -> None:
    model = Model.load(folder)
    checked: RetrievalModel = model
    assert (checked.name, checked.sizes, model.levels) == (str(folder), SIZES, 3)
    assert [book.shape for book in checked.codebooks()] == [(size, checked.dim) for size in SIZES]
    assert model.modality_codes == {Modality.IMAGE: 0, Modality.TEXT: 1, Modality.PAIR: 2}
    assert model.search_defaults == {"method": "lookup", "beam": 7}
    assert model.decoder is not None
    assert not model.decoder.training


def test_items_and_queries_become_vectors_and_codes(folder: Path) -> None:
    model = Model.load(folder)
    red = Image.new("RGB", (50, 40), "red")
    parts = model.embed_items([red, None, red], [None, ' "red above blue" ', "red above blue"])
    read = model.encoder.encode_texts([clean("red above blue")])
    seen = model.encoder.encode_images([red])
    assert np.allclose(parts.text, [np.zeros(512), read[0], read[0]], atol=1e-6)
    assert np.allclose(parts.image, [seen[0], np.zeros(512), seen[0]], atol=1e-6)
    phi, z = model.phi(parts), model.z(parts)
    assert np.allclose(np.linalg.norm(phi, axis=1), 1, atol=1e-5)
    assert np.allclose(z, phi, atol=1e-5)  # fusion `sum`
    codes = model.codes(parts, [Modality.IMAGE, Modality.TEXT, Modality.PAIR])
    assert (codes.dtype, codes.shape) == (np.uint16, (3, 3))
    assert codes[:, 0].tolist() == [0, 1, 2]

    asked = model.embed_queries([None, red], ["red", None], ["show this flag", "name this flag"])
    sentences = [query_text("show this flag", "red"), query_text("name this flag", None)]
    assert sentences == ["Show this flag. red.", "Name this flag."]
    assert np.allclose(asked.text, model.encoder.encode_texts(sentences), atol=1e-5)
    assert not asked.image[0].any()


def test_a_model_without_a_decoder_or_modality_level(folder: Path) -> None:
    table = save_quantizer(quantizer(sizes=(8, 8), modality="none"), folder)
    model = Model.load(retable(folder, quantizer=table, decoder=None, search=None))
    assert model.decoder is None
    assert model.modality_codes == {}
    assert model.search_defaults == {}


def test_the_fingerprint_follows_what_decides_codes(folder: Path, tmp_path: Path) -> None:
    first = Model.load(folder).fingerprint
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    assert Model.load(moved).fingerprint == first
    (moved / "decoder.safetensors").unlink()
    assert Model.load(retable(moved, decoder=None, search=None)).fingerprint == first  # codes stay the same
    table = read_model_toml(moved)["quantizer"]
    beam = Model.load(retable(moved, quantizer={**table, "encode_beam": 3})).fingerprint
    other = quantizer()
    other.residual.vectors[0, 0] += 1
    books = Model.load(retable(moved, quantizer=save_quantizer(other, moved))).fingerprint
    torch.manual_seed(5)
    encoder = TINY["start_mini"]()
    encoder.module.text.out.bias.data += 1
    encoder.save(moved)
    assert len({first, beam, books, Model.load(moved).fingerprint}) == 4


def test_an_encoder_elsewhere_is_named_by_its_source(folder: Path, tmp_path: Path) -> None:
    before = Model.load(folder).fingerprint
    (tmp_path / "encoder").mkdir()
    for name in ("encoder.safetensors", "tokenizer.json"):
        (folder / name).rename(tmp_path / "encoder" / name)
    with pytest.raises(ModelNotFound, match="no mini encoder"):
        Model.load(folder)
    retable(folder, encoder={"name": "mini", "source": str(tmp_path / "encoder")})
    assert Model.load(folder).fingerprint == before


# --- what is refused -------------------------------------------------------------------------------------


def test_no_model_under_that_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'unheard': give a folder with a model\.toml"):
        Model.load("unheard")
    with pytest.raises(ModelNotFound, match=r"give a folder with a model\.toml"):
        model_folder(tmp_path)


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ("encoder", None),
        ("quantizer", None),
        ("encoder", {}),
        ("quantizer", {"dim": 512}),
        ("quantizer", {"dim": 512, "sizes": list(SIZES), "odd": 1}),
        ("decoder", {"dim": 512}),
    ],
)
def test_a_table_that_lacks_something(folder: Path, table: str, value: Any) -> None:
    with pytest.raises(ModelMismatch, match=str(folder.name)):
        Model.load(retable(folder, **{table: value}))


@pytest.mark.parametrize("data", [b"[encoder", b"encoder = 3\nquantizer = 4\n", b"\xff\xfe"])
def test_a_model_toml_that_is_none(folder: Path, data: bytes) -> None:
    (folder / "model.toml").write_bytes(data)
    with pytest.raises(ModelMismatch, match=r"is not a valid model\.toml"):
        Model.load(folder)


def test_parts_that_were_not_made_for_each_other(folder: Path) -> None:
    shape = DecoderShape(512, (3, 8), layers=1, width=32, heads=2, head_width=16, feed_forward=64, prefix=4)
    decoder = fresh_decoder(shape, quantizer(sizes=(3, 8)).residual.codebooks(), 0)
    retable(folder, decoder=save_decoder(decoder, folder))
    with pytest.raises(ModelMismatch, match="decoder and quantizer differ in their codes"):
        Model.load(folder)
    retable(folder, decoder=None, quantizer=save_quantizer(quantizer(dim=16), folder))
    with pytest.raises(ModelMismatch, match="vectors have width 512, the quantizer wants 16"):
        Model.load(folder)


@pytest.mark.parametrize("file", ["encoder.safetensors", "quantizer.safetensors", "decoder.safetensors"])
def test_damaged_or_missing_weights(folder: Path, file: str) -> None:
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelMismatch, match=file):
        Model.load(folder)
    (folder / file).unlink()
    with pytest.raises(ModelNotFound):
        Model.load(folder)


# --- the one that is shipped -----------------------------------------------------------------------------


@pytest.mark.skipif(not (MODELS / "mini" / "model.toml").is_file(), reason="no model is shipped yet")
def test_the_shipped_model_tells_things_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # its real size
    model = Model.load("mini")
    assert (model.encoder.dim, model.sizes[0]) == (512, 3)
    texts = ["A dog runs over the grass.", "A puppy is running in a meadow.", "Blue jeans for women."]
    phi = model.phi(model.embed_items([None] * 3, texts))
    assert phi[0] @ phi[1] > phi[0] @ phi[2] + 0.1
    assert model.codes(model.embed_items([None], ["A dog."]), [Modality.TEXT]).shape == (1, model.levels)


@pytest.mark.parametrize("device", ["gpu", "auto", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=f"device '{device}'"):
        Model.load("mini", device)
