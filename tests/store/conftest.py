"""A small index and records whose codes and vectors follow from a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from genius.search.trie import Trie
from genius.store.index import Index
from genius.store.records import Record
from genius.types import Modality

SIZES = (3, 16, 16, 16)
DIM = 8


def record_of(number: int, id: str | None = None, vectors: bool = True) -> Record:
    noise = np.random.default_rng(number)
    modality = list(Modality)[number % 3]
    codes = np.array([number % 3, *noise.integers(0, 16, 3)], dtype=np.uint16)
    vector = noise.standard_normal(DIM).astype(np.float16) if vectors else None
    name = f"item-{number}" if id is None else id
    return Record(name, modality, codes, vector, text=f"text {number}", hash=bytes([number % 256]))


def contents_of(index: Index) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """What a search can see, by id: codes and vector, read through the generation and the delta alone."""
    snapshot = index.snapshot()
    seen = {}
    places = np.flatnonzero(snapshot.alive())
    rows = [*snapshot.runs.rows(places).tolist(), *snapshot.delta.rows.tolist()]
    trie = Trie.from_arrays(snapshot.generation.arrays)
    settled = np.empty((trie.items, len(trie.sizes)), np.uint16)
    settled[trie.rows(slice(None))] = trie.codes(np.arange(trie.items))
    codes = [*settled[places], *snapshot.delta.codes]
    large = snapshot.generation.large.get("vectors")
    if large is None:
        vectors = [b""] * len(rows)
    else:
        delta = [] if snapshot.vectors is None else [*snapshot.vectors]
        vectors = [row.tobytes() for row in [*large[places], *delta]]
    records = index.truth.records(rows)
    for row, code, vector in zip(rows, codes, vectors, strict=True):
        seen[records[row].id] = (tuple(code.tolist()), vector)
    assert len(seen) == len(rows)
    return seen


@pytest.fixture
def record() -> Callable[..., Record]:
    return record_of


@pytest.fixture
def contents() -> Callable[[Index], dict[str, tuple[tuple[int, ...], bytes]]]:
    return contents_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an empty index."""
    Index.create(tmp_path / "index", model="fake", fingerprint="f" * 64, sizes=SIZES, dim=DIM)
    return tmp_path / "index"


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    with Index.open(folder) as opened:
        yield opened
