"""Vectors looked up by key, from every kind of file, and refused when they cannot be trusted."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from genius.data.images import open_image
from genius.encode.base import Encoder, encode_parts, load_encoder
from genius.encode.precomputed import PrecomputedEncoder, VectorTable, load, read_vectors
from genius.errors import BadData, BadInput, ModelMismatch, ModelNotFound

BENCH = Path(__file__).resolve().parents[3] / "shared" / "bench" / "features"
VECTORS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
FILES = ["a/1.jpg", "a/2.jpg", "b/1.jpg"]
TEXTS = ["a red dog", "two cats", "Ein Hündchen"]


def write(folder: Path, part: str, keys: list[str], vectors: Any, suffix: str = ".safetensors") -> Path:
    file = folder / f"{part}{suffix}"
    if suffix == ".npy":
        np.save(file, vectors)
    else:
        save_file({"embeds": vectors}, file)
    (folder / f"{part}.names.txt").write_text("\n".join(keys) + "\n", encoding="utf-8")
    return file


def picture(source: str | None) -> Image.Image:
    image = Image.new("RGB", (2, 2))
    if source is not None:
        image.info["source"] = source
    return image


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_images_and_texts_are_found_by_key(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, "images", FILES, VECTORS, suffix)
    write(tmp_path, "texts", TEXTS, VECTORS[::-1].copy(), suffix)
    encoder = load_encoder("precomputed", tmp_path)
    assert isinstance(encoder, Encoder)
    assert encoder.dim == 4
    images = [picture("b/1.jpg"), picture("a/1.jpg")]
    assert np.array_equal(encoder.encode_images(images), VECTORS[[2, 0]])
    assert np.array_equal(encoder.encode_texts(["two\n  cats ", "Ein Hündchen"]), VECTORS[[1, 0]])
    parts = encode_parts(encoder, [images[0], None], [None, "a red dog"])
    assert np.array_equal(parts.image, [VECTORS[2], np.zeros(4)])
    assert np.array_equal(parts.text, [np.zeros(4), VECTORS[2]])
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, 4)


def test_paths_match_from_their_end(tmp_path: Path) -> None:
    encoder = load(write(tmp_path, "x", [*FILES, "1.jpg"], np.eye(4, dtype=np.float16)))
    sources = ["/data/root/a/1.jpg", "./a/2.jpg", "/other/1.jpg", "b/1.jpg"]
    found = encoder.encode_images([picture(source) for source in sources])
    assert found.dtype == np.float32
    assert found.argmax(axis=1).tolist() == [0, 1, 3, 2]
    with pytest.raises(BadInput, match=r"no vector for 1 of 2 keys, such as '/data/c/9\.jpg'"):
        encoder.encode_images([picture("a/1.jpg"), picture("/data/c/9.jpg")])


def test_an_opened_file_knows_its_path(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "one.png")
    encoder = PrecomputedEncoder(images=VectorTable(VECTORS[:1], ["one.png"]))
    assert np.array_equal(encoder.encode_images([open_image(tmp_path / "one.png")]), VECTORS[:1])
    with Image.open(tmp_path / "one.png") as image:
        assert np.array_equal(encoder.encode_images([image]), VECTORS[:1])
    with pytest.raises(BadInput, match=r"image\.info"):
        encoder.encode_images([picture(None)])


def test_one_part_alone_says_what_it_lacks() -> None:
    table = VectorTable(VECTORS, TEXTS)
    with pytest.raises(BadInput, match="of texts only"):
        PrecomputedEncoder(texts=table).encode_images([picture("a")])
    with pytest.raises(BadInput, match="of images only"):
        PrecomputedEncoder(images=table).encode_texts(["a red dog"])
    with pytest.raises(BadInput, match="needs a table"):
        PrecomputedEncoder()
    with pytest.raises(BadData, match="4 wide, text vectors 3"):
        PrecomputedEncoder(table, VectorTable(VECTORS[:, :3], TEXTS))


def test_fingerprint_follows_keys_and_vectors() -> None:
    def mark(vectors: Any, keys: list[str]) -> str:
        return PrecomputedEncoder(images=VectorTable(vectors, keys)).fingerprint

    changed = VECTORS.copy()
    changed[2, 3] += 1e-6
    first = mark(VECTORS, FILES)
    assert first == mark(VECTORS.copy(), list(FILES))
    others = {mark(changed, FILES), mark(VECTORS, FILES[::-1]), mark(VECTORS.astype(np.float64), FILES)}
    others.add(PrecomputedEncoder(texts=VectorTable(VECTORS, FILES)).fingerprint)
    assert len(others | {first}) == 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_nan_and_inf_are_refused_naming_the_key(tmp_path: Path, suffix: str, value: float) -> None:
    spoilt = VECTORS.astype(np.float16)
    spoilt[1, 2] = value
    file = write(tmp_path, "images", FILES, spoilt, suffix)
    with pytest.raises(BadData, match=r"NaN or Inf in row 1 \('a/2\.jpg'\)"):
        load(file)


def test_tables_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    for vectors, keys, message in (
        (VECTORS, FILES[:2], "3 vectors but 2 keys"),
        (VECTORS, ["a", "b", "a"], "'a' occurs twice"),
        (VECTORS[0], FILES, "rows of floats"),
        (VECTORS.astype(np.int32), FILES, "rows of floats"),
    ):
        with pytest.raises(BadData, match=message):
            load(write(tmp_path, "images", keys, vectors))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="needs a source"):
        load(None)
    with pytest.raises(ModelNotFound, match="no vectors in"):
        load(tmp_path)
    with pytest.raises(ModelNotFound, match=r"no none\.npy"):
        load(tmp_path / "none.npy")
    file = write(tmp_path, "images", FILES, VECTORS)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelMismatch, match="is damaged"):
        load(file)
    (tmp_path / "images.names.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadData, match="not UTF-8"):
        load(file)
    (tmp_path / "images.names.txt").unlink()
    with pytest.raises(ModelNotFound, match=r"no images\.names\.txt"):
        load(file)


def test_npy_files_run_no_code_and_may_be_damaged(tmp_path: Path) -> None:
    class RunsCode:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    file = write(tmp_path, "images", FILES, VECTORS, ".npy")
    whole = file.read_bytes()
    np.save(file, np.array([RunsCode()], dtype=object))
    with pytest.raises(BadData, match="plain numbers"):
        load(file)
    assert not (tmp_path / "ran").exists()
    for damaged in (b"", whole[:20], whole[:-4], b"no numbers at all"):
        file.write_bytes(damaged)
        with pytest.raises(BadData, match="damaged"):
            load(file)


def test_a_tensor_is_chosen_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    (tmp_path / "keys.txt").write_text("\n".join(FILES))
    brain = torch.from_numpy(VECTORS).bfloat16()
    save_torch({"image_embeds": brain, "other": torch.zeros(1)}, file)
    with pytest.raises(BadData, match=r"several tensors.*image_embeds"):
        read_vectors(file, tmp_path / "keys.txt")
    with pytest.raises(BadData, match="no tensor 'text_embeds'"):
        read_vectors(file, tmp_path / "keys.txt", "text_embeds")
    table = read_vectors(file, tmp_path / "keys.txt", "image_embeds")
    assert np.array_equal(table.lookup(["b/1.jpg"]), brain[2:].float().numpy())


@pytest.mark.skipif(not BENCH.is_dir(), reason="the shared benchmark is not beside this checkout")
def test_the_shared_features_can_be_read() -> None:
    file = BENCH / "clip_vitb16.safetensors"
    table = read_vectors(file, tensor="image_embeds")
    assert (len(table), table.dim) == (31_865, 512)
    keys = (BENCH / "clip_vitb16.names.txt").read_text().splitlines()
    rows = [0, 17, 31_864]
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as opened:
        expected = opened.get_tensor("image_embeds")[rows]
    encoder = load(file)
    found = encoder.encode_images([picture(f"/anywhere/{keys[row]}") for row in rows])
    assert np.array_equal(found, expected.astype(np.float32))
