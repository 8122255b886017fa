"""Duplicates: the same content by its hash, near copies by their embeddings, in groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genius.errors import BadInput
from genius.query.duplicates import find_duplicates
from genius.store.index import Index
from genius.store.records import Record
from genius.types import Modality

DIM = 8


@pytest.fixture
def index(tmp_path: Path):
    Index.create(tmp_path / "index", model="fake", fingerprint="f" * 64, sizes=(3, 16), dim=DIM)
    with Index.open(tmp_path / "index") as opened:
        yield opened


def record(
    id: str, axis: int, tilt: float = 0.0, modality: Modality = Modality.IMAGE, hash: bytes = b""
) -> Record:
    vector = np.zeros(DIM, np.float16)
    vector[axis], vector[-1] = 1.0, tilt
    codes = np.array([list(Modality).index(modality), axis], np.uint16)
    return Record(id, modality, codes, vector, path=f"/{id}", hash=hash or id.encode())


def test_groups(index: Index) -> None:
    index.add(
        [
            record("a", 0, hash=b"same"),
            record("b", 1),
            record("a copy", 0, hash=b"same"),
            record("b smaller", 1, tilt=0.1),
            record("b cropped", 1, tilt=0.3),
            record("b as text", 1, modality=Modality.TEXT),
            record("c", 2),
            record("gone", 2),
        ]
    )
    index.remove(["gone"])
    found = find_duplicates(index, at_least=0.97)
    assert [(group.ids, group.exact) for group in found] == [
        (("a", "a copy"), True),
        (("b", "b smaller", "b cropped"), False),  # each near to one of the others
    ]
    assert 0.97 < found[1].similarity < 0.99 and found[0].paths == ("/a", "/a copy")
    assert [group.ids for group in find_duplicates(index, at_least=None)] == [("a", "a copy")]


def test_more_items_than_are_compared_at_a_time(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.query.duplicates.BLOCK", 3)
    index.add([record(f"{number}", number % 7, hash=bytes([number % 7 + 1])) for number in range(14)])
    assert [group.ids for group in find_duplicates(index)] == [(f"{n}", f"{n + 7}") for n in range(7)]


def test_nothing_and_nonsense(index: Index) -> None:
    assert find_duplicates(index) == []
    with pytest.raises(BadInput, match="at most 1"):
        find_duplicates(index, at_least=2)


def test_without_vectors_only_contents_are_compared(tmp_path: Path) -> None:
    Index.create(
        tmp_path / "codes", model="fake", fingerprint="f" * 64, sizes=(3, 16), dim=DIM, vectors=False
    )
    with Index.open(tmp_path / "codes") as index:
        with pytest.raises(BadInput, match="--exact"):
            find_duplicates(index)
        assert find_duplicates(index, None) == []
