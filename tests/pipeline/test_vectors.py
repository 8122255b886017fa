"""Vectors of a split: made once, kept in parts, found again only for the same encoder and files."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genius.data.base import open_dataset
from genius.data.images import open_image
from genius.data.report import Report
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode import clip
from genius.encode.base import Array
from genius.errors import TrainingStopped
from genius.pipeline import vectors
from genius.pipeline.vectors import encode_set


class Plain:
    """An encoder that only encodes: no towers to train."""

    dim, fingerprint = 4, "plain"

    def encode_images(self, images: Any) -> Array:
        return np.array([[*np.asarray(image).mean(axis=(0, 1)), 1] for image in images], np.float32)

    def encode_texts(self, texts: Any) -> Array:
        return np.array([[len(text), 0, 0, 2] for text in texts], np.float32)


@pytest.fixture
def data(root: Path, tmp_path: Path) -> TrainingSet:
    """A copy of the split whose files a test may change."""
    own = tmp_path / "own"
    shutil.copytree(root, own)
    return read_training_set(open_dataset("mbeir", own), "val")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "IMAGES_AT_ONCE", 8)
    monkeypatch.setattr(vectors, "TEXTS_AT_ONCE", 50)


@pytest.mark.usefixtures("small_parts")
def test_towers_give_what_the_encoder_gives(data: TrainingSet, clip_folder: Path, tmp_path: Path) -> None:
    encoder = clip.load(clip_folder)
    images, texts = encode_set(encoder, data, tmp_path / "kept")
    expected = encoder.encode_images([open_image(file) for file in data.images])
    assert images.dtype == np.float16  # as they are stored
    assert np.allclose(images, expected, rtol=2e-3, atol=2e-3)  # kept as float16
    assert np.allclose(texts, encoder.encode_texts(data.texts), rtol=2e-3, atol=2e-3)
    again = encode_set(encoder, data, tmp_path / "kept")
    assert np.array_equal(again[0], images)


@pytest.mark.usefixtures("small_parts")
def test_only_what_is_missing_is_made(data: TrainingSet, tmp_path: Path, monkeypatch) -> None:
    calls: list[int] = []
    plain = vectors.image_vectors

    def counted(encoder: Any, files: Any, report: Any) -> Array:
        calls.append(len(files))
        return plain(encoder, files, report)

    monkeypatch.setattr(vectors, "image_vectors", counted)
    images, _ = encode_set(Plain(), data, tmp_path / "kept")
    assert calls == [8, 8, 8, 6]
    (part,) = (tmp_path / "kept").glob("images-*/000000016.npy")
    part.unlink()  # as if it had been stopped there
    assert np.array_equal(encode_set(Plain(), data, tmp_path / "kept")[0], images)
    assert calls == [8, 8, 8, 6, 8]

    other = Plain()
    other.fingerprint = "other"  # another encoder
    encode_set(other, data, tmp_path / "kept")
    assert len(calls) == 9
    os.utime(data.images[0], (1, 1))  # another picture under the same name
    encode_set(Plain(), data, tmp_path / "kept")
    assert len(calls) == 13


@pytest.mark.parametrize("kind", ["plain", "clip"])
def test_a_bad_picture_has_a_zero_vector_and_is_named(data: TrainingSet, clip_folder, tmp_path, kind) -> None:
    data.images[2].write_bytes(b"no picture")
    data.images[5].unlink()
    report = Report()
    encoder = Plain() if kind == "plain" else clip.load(clip_folder)
    images, _ = encode_set(encoder, data, tmp_path / "kept", report)
    assert (~images.any(axis=1)).nonzero()[0].tolist() == [2, 5]
    assert report.skipped == 2
    assert [name for name, _ in report.names] == [str(data.images[2]), str(data.images[5])]


def test_a_split_without_pictures(data: TrainingSet, tmp_path: Path) -> None:
    from dataclasses import replace

    bare = replace(data, images=[])
    assert encode_set(Plain(), bare, tmp_path / "kept")[0].shape == (0, 4)


def test_a_process_waits_for_the_files_of_the_others(tmp_path: Path, monkeypatch) -> None:
    """It is the first of two; the other one needs longer, and no collective operation waits for it."""
    monkeypatch.setattr(vectors.distributed, "world_size", lambda: 2)
    monkeypatch.setattr(vectors.distributed, "rank", lambda: 0)
    monkeypatch.setattr(vectors.distributed, "barrier", lambda: None)
    inputs, made = [1.0, 2.0, 3.0, 4.0], []

    def encode(part: list[float]) -> Array:
        made.append(part)
        return np.array([[value, value] for value in part], np.float32)

    def other() -> None:
        time.sleep(0.3)
        np.save(tmp_path / "000000002.npy", np.full((2, 2), 9, np.float16))

    thread = threading.Thread(target=other)
    thread.start()
    found = vectors.cached(tmp_path, inputs, 2, encode, 2)
    thread.join()
    assert made == [[1.0, 2.0]]  # its own file
    assert found[:, 0].tolist() == [1, 2, 9, 9]


def test_waiting_for_other_processes_ends_with_the_last_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    files[0].touch()

    def write() -> None:
        for file in files[1:]:
            time.sleep(0.15)
            file.touch()

    other = threading.Thread(target=write)
    other.start()
    vectors.wait_for(files, patience=5, pause=0.02)  # each file begins the patience anew
    assert all(file.exists() for file in files)
    other.join()
    with pytest.raises(TrainingStopped, match="1 files that other processes should write are not there"):
        vectors.wait_for([*files, tmp_path / "never"], patience=0.1, pause=0.02)
