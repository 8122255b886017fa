"""Encoding through the caches: once per content, by content, bad images named and left out."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from genius.data.mbeir import MBeir
from genius.errors import BadData
from genius.evaluate import embeddings, environment
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder
from genius.types import Item


def first(query):
    return "Find it."


def test_vectors_and_codes_are_those_of_the_model(colours, tiny_model, tmp_path):
    data = MBeir(colours.path)
    model = tiny_model()
    embedder = Embedder(model, tmp_path / "cache")
    pool = embedder.pool(read_items(data.pool("test"), fuses=False))
    assert len(pool) == 16
    parts = pool.parts(np.arange(16))
    np.testing.assert_allclose(pool.phi, parts.phi(), rtol=1e-6)
    assert (pool.codes == model.codes(parts, ["image"] * 8 + ["text"] * 8)).all()
    assert pool.modality.tolist() == [0] * 8 + [1] * 8
    queries = embedder.queries(read_queries(data.queries("test"), first, fuses=False))
    assert queries.want.tolist() == [0] * 8 + [1] * 8
    assert queries.valid.all()
    found = (queries.phi @ pool.phi.T).argsort(axis=1)[:, -4:]
    assert sum(int(n in row or n + 8 in row) for n, row in enumerate(found[:8])) >= 7


def test_nothing_is_encoded_twice(colours, tiny_model, tmp_path):
    data = MBeir(colours.path)
    model = tiny_model()
    Embedder(model, tmp_path).pool(read_items(data.pool("test"), fuses=False))
    assert (model.encoder.images, model.encoder.texts, model.quantized) == (8, 8, 16)
    again = Embedder(model, tmp_path)
    local = again.pool(read_items(data.pool("test", data.rows("test")[0]), fuses=False))
    queries = [read_queries(data.queries("test", row), first, fuses=False) for row in data.rows("test")]
    assert again.count_missing(queries) == (0, 9)  # a query picture equals the item's: known by content
    again.encode(queries)
    assert len(local) == 8
    assert (model.encoder.images, model.encoder.texts, model.quantized) == (8, 17, 16)


def test_a_changed_picture_is_encoded_again_though_its_name_is_the_same(colours, tiny_model, tmp_path):
    data = MBeir(colours.path)
    model = tiny_model()
    old = Embedder(model, tmp_path).pool(read_items(data.pool("test"), fuses=False))
    colours.picture("black", "red")
    new = Embedder(model, tmp_path).pool(read_items(data.pool("test"), fuses=False))
    assert old.digest != new.digest
    np.testing.assert_array_equal(new.phi[0], new.phi[list(COLOUR_NAMES).index("black")])


COLOUR_NAMES = ("red", "green", "blue", "yellow", "black", "white", "pink", "grey")


def test_another_encoder_or_quantizer_gets_its_own_rows(colours, tiny_model, tiny_encoder, tmp_path):
    contents = read_items(MBeir(colours.path).pool("test"), fuses=False)
    Embedder(tiny_model(), tmp_path).pool(contents)
    other_quantizer = tiny_model(fingerprint="model-2")
    Embedder(other_quantizer, tmp_path).pool(contents)
    assert (other_quantizer.encoder.images, other_quantizer.quantized) == (0, 16)
    other_encoder = tiny_model(tiny_encoder("tiny-2"))
    Embedder(other_encoder, tmp_path).pool(contents)
    assert other_encoder.encoder.images == 8


def test_a_fusing_encoder_sees_both_parts_at_once(colours, tiny_model, tiny_fusing, tmp_path):
    picture = colours.path / colours.picture("red", "pair")
    items = [Item("a", picture, "A blue square."), Item("b", picture), Item("c", None, "A blue square.")]
    model = tiny_model(tiny_fusing())
    embedder = Embedder(model, tmp_path)
    assert embedder.fuses
    pool = embedder.pool(read_items(items, fuses=True))
    parts = pool.parts(np.arange(3))
    np.testing.assert_allclose(parts.image[0], parts.image[1] + parts.image[2], rtol=1e-5)
    assert not parts.text.any()


def test_unreadable_images_are_left_out_and_named(colours, tiny_model, tmp_path):
    (colours.path / "mbeir_images" / "red.png").unlink()
    (colours.path / "mbeir_images" / "blue.png").write_bytes(b"no picture")
    (colours.path / "mbeir_images" / "query-green.png").write_bytes(b"")
    data = MBeir(colours.path)
    embedder = Embedder(tiny_model(), tmp_path)
    pool = embedder.pool(read_items(data.pool("test"), fuses=False))
    assert pool.unreadable == ["30:0", "30:2"]
    assert len(pool) == len(pool.phi) == len(pool.codes) == 14
    queries = embedder.queries(read_queries(data.queries("test"), first, fuses=False))
    assert np.flatnonzero(~queries.valid).tolist() == [9]
    assert not queries.phi[9].any()


def test_no_readable_image_at_all_is_an_error(colours, tiny_model, tmp_path):
    for file in (colours.path / "mbeir_images").iterdir():
        file.unlink()
    data = MBeir(colours.path)
    with pytest.raises(BadData, match="none of the 8 items can be read"):
        Embedder(tiny_model(), tmp_path).pool(
            read_items(data.pool("test", data.rows("test")[0]), fuses=False)
        )


def test_ids_that_occur_twice_are_refused():
    with pytest.raises(BadData, match="id a occurs twice"):
        read_items([Item("a", text="One."), Item("a", text="Two.")], fuses=False)


def test_a_stopped_run_goes_on(colours, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("genius.evaluate.embeddings.BATCH", 4)
    contents = read_items(MBeir(colours.path).pool("test"), fuses=False)
    model = tiny_model()
    calls = model.encoder.encode_texts

    def stop(texts):
        if model.encoder.texts >= 4:
            raise KeyboardInterrupt
        return calls(texts)

    model.encoder.encode_texts = stop
    with pytest.raises(KeyboardInterrupt):
        Embedder(model, tmp_path).pool(contents)
    again = tiny_model()
    pool = Embedder(again, tmp_path).pool(contents)
    assert len(pool) == 16
    assert (again.encoder.images, again.encoder.texts) == (0, 4)


def test_a_pool_larger_than_memory_is_mapped(colours, tiny_model, tmp_path, monkeypatch):
    contents = read_items(MBeir(colours.path).pool("test"), fuses=False)
    inside = Embedder(tiny_model(), tmp_path).pool(contents)
    monkeypatch.setattr("genius.evaluate.embeddings.available_memory", lambda: 100)
    mapped = Embedder(tiny_model(), tmp_path).pool(contents)
    assert isinstance(mapped.phi, np.memmap)
    np.testing.assert_array_equal(mapped.phi, inside.phi)


def test_nan_from_the_encoder_stops_the_run(colours, tiny_model, tmp_path):
    model = tiny_model()
    model.encoder.encode_texts = lambda texts: np.full((len(texts), 8), np.nan, dtype=np.float32)
    with pytest.raises(BadData, match="NaN"):
        Embedder(model, tmp_path).pool(read_items([Item("a", text="One.")], fuses=False))


@pytest.mark.parametrize("changed", ["torch", "numpy", "transformers", "source", "device"])
def test_another_environment_finds_nothing_in_the_cache(tiny_model, tmp_path, monkeypatch, changed):
    """Vectors and codes of another library, source or device are others, whatever the weights are."""
    contents = read_items([Item("a", text="One."), Item("b", text="Two.")], fuses=False)
    Embedder(tiny_model(), tmp_path).pool(contents)
    same = tiny_model()
    Embedder(same, tmp_path).pool(contents)
    assert (same.encoder.texts, same.quantized) == (0, 0)
    known = environment.library_version
    if changed == "source":
        monkeypatch.setattr(environment, "source_hash", lambda *parts: "edited")
    elif changed == "device":
        monkeypatch.setattr(environment, "device_name", lambda device: "another GPU")
    else:
        monkeypatch.setattr(
            environment, "library_version", lambda name: "0.0" if name == changed else known(name)
        )
    other = tiny_model()
    Embedder(other, tmp_path).pool(contents)
    assert (other.encoder.texts, other.quantized) == (2, 2)


def test_the_next_batch_is_decoded_while_one_is_encoded(tmp_path, monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(
        embeddings, "open_or_none", lambda file: opened.set() if file == tmp_path / "b" else file
    )
    batches = [[(tmp_path / "a", None), (None, "text")], [(tmp_path / "b", None)], [(tmp_path / "c", None)]]
    images = embeddings._opened(batches)
    assert next(images) == [tmp_path / "a", None]
    assert opened.wait(10)  # without asking for it
    assert [*images] == [[None], [tmp_path / "c"]]
    assert [*embeddings._opened([])] == []
