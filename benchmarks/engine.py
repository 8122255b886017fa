"""The engine's own cost: searches end to end at growing collections, and the share of each part.

    python benchmarks/engine.py                                          # benchmarks/results/engine.json
    python benchmarks/engine.py --sizes 10000 --queries 20 --out -       # a quick look

An index of `mini` with synthetic items: codes and vectors at random, short texts of words with a natural
frequency, a number as metadata. `Engine.search` and `search_batch` are asked with texts, none of them twice;
parts are measured inside: encoding the query, its words in the index of words, the bare search (lookup and
re-ranking by vectors), reading records, and all the rest; words, records and the rest are what is `around
the search`. Then with each `want`, with a filter that keeps 1 %, after adding and after removing items, and
the time to add 1,000 items that come with their vectors. Milliseconds are medians over single queries, of the
processor on one thread, which a machine that is busy with other work distorts least; `by the clock` is what
the caller waits. They are of one machine: compare columns. With --cache, indexes are kept for the next run;
10 million items take 25 GB and half an hour to make.
"""

from __future__ import annotations

import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from _harness import Timer, run
from numpy.typing import NDArray
from pools import CHUNK, skewed_chunk

from genius.engine import Engine
from genius.engine.searching import IndexSearch
from genius.model import Model
from genius.query.words import WordSearch
from genius.search.searcher import Searcher
from genius.store import words
from genius.store.connection import INDEX_FILE, create
from genius.store.index import Index
from genius.store.records import MODALITIES, Record
from genius.store.truth import Truth
from genius.store.words import ItemWords
from genius.types import Item, Modality

WANTS = ("any", "image", "text", "pair")
WORDS = 20_000
PARTS: dict[str, tuple[type, str]] = {
    "encode": (IndexSearch, "_embed"),
    "words": (WordSearch, "find"),
    "search": (Searcher, "search"),
    "records": (Truth, "records"),
}
ADDED = 1000
SHARE = 0.01  # that the filter keeps
BATCH = 32
SETTINGS = ("similarity alone", "filter, 1 %", "after adding", "after removing")


class Vocabulary:
    """Made-up words, drawn as often as words of a language are."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        self._words = ["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(WORDS)]
        weight = 1 / (np.arange(WORDS) + 2.7)
        self._weight = weight / weight.sum()

    def texts(self, count: int, seed: int, words: int = 8) -> list[str]:
        """Texts of some words each."""
        drawn = np.random.default_rng([seed, 1]).choice(WORDS, (count, words), p=self._weight)
        return [" ".join(self._words[word] for word in row) for row in drawn]


def vectors(count: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Random unit vectors."""
    x = np.random.default_rng([seed, 2]).standard_normal((count, dim), dtype=np.float32)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def made(folder: Path, model: Model, items: int, vocabulary: Vocabulary) -> None:
    """Fill an index of `mini` at `folder`: all items in one transaction, then a generation."""
    settings = {
        "model": "mini",
        "fingerprint": model.fingerprint,
        "sizes": list(model.sizes),
        "dim": model.dim,
        "vectors": True,
        "notes": {},
        "last_row": items,
        words.SETTING: words.VERSION,
    }

    def fill(connection: sqlite3.Connection) -> None:
        words.create(connection)
        marks = ", ".join("?" * 16)
        for start in range(0, items, CHUNK):
            rows = range(start + 1, min(start + CHUNK, items) + 1)
            own = list(zip(rows, records(start, len(rows), model, vocabulary), strict=True))
            connection.executemany(
                f"INSERT INTO items VALUES ({marks})", ((row, *record.columns()) for row, record in own)
            )
            indexed = (ItemWords(row, record.id, None, record.text, record.meta) for row, record in own)
            words.add(connection, indexed)

    folder.mkdir(parents=True)
    create(folder / INDEX_FILE, settings, fill)
    with Index.open(folder) as index:
        index.compact()


def records(start: int, count: int, model: Model, vocabulary: Vocabulary) -> Iterator[Record]:
    """Items from number `start` on, up to CHUNK of them."""
    kind = np.random.default_rng([start, 3]).integers(0, len(MODALITIES), count)
    codes = skewed_chunk(start, model.sizes)[:count]
    codes[:, 0] = np.array([model.modality_codes[modality] for modality in MODALITIES])[kind]
    half, texts = vectors(count, model.dim, start).astype(np.float16), vocabulary.texts(count, start)
    for n in range(count):
        meta = f'{{"number": {(start + n) % 100}}}'
        yield Record(item_id(start + n), MODALITIES[kind[n]], codes[n], half[n], text=texts[n], meta=meta)


def item_id(number: int) -> str:
    return f"item-{number:08d}"


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds spent in each part while the context is open."""
    spent = dict.fromkeys(PARTS, 0.0)

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return original(*args, **options)
            finally:
                spent[name] += time.thread_time() - start

        return call

    patches = [
        mock.patch.object(owner, function, counted(name, getattr(owner, function)))
        for name, (owner, function) in PARTS.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()


def one_by_one(search: Callable[[str], Any], queries: list[str]) -> dict[str, float]:
    """Median milliseconds of a query: in all, in each part, and the rest; the first three warm up."""
    found: dict[str, list[float]] = {}
    for query in [*queries[:3], *queries]:
        with timed() as spent, Timer() as timer:
            search(query)
        rest = timer.processor - sum(spent.values())
        around = spent["words"] + spent["records"] + rest
        own = {
            **spent,
            "rest": rest,
            "around the search": around,
            "all": timer.processor,
            "by the clock": timer.seconds,
        }
        for name, value in own.items():
            found.setdefault(name, []).append(1000 * value)
    return {name: round(statistics.median(values[3:]), 3) for name, values in found.items()}


def measure(engine: Engine, texts: Callable[[], list[str]], dim: int) -> dict[str, Any]:
    """All figures of one size; no query is asked twice."""
    found: dict[str, Any] = {"want": {}}
    for want in WANTS:
        found["want"][want] = one_by_one(lambda q, want=want: engine.search(q, want=want), texts())  # type: ignore[misc]
    found["similarity alone"] = one_by_one(lambda q: engine.search(q, want="image", hybrid=False), texts())
    where = "number < 1"
    found["filter, 1 %"] = one_by_one(lambda q: engine.search(q, want="image", where=where), texts())
    batch = texts()[:BATCH]
    with timed() as spent, Timer() as timer:
        engine.search_batch(batch, want="image")
    found["batch"] = {name: round(1000 * value / len(batch), 3) for name, value in spent.items()}
    found["batch"]["all"] = round(1000 * timer.processor / len(batch), 3)
    with Timer() as timer:
        engine.add(fresh_items(dim))
    found["adding_1000_s"] = round(timer.seconds, 3)
    found["after adding"] = one_by_one(lambda q: engine.search(q, want="image"), texts())
    gone = [item_id(n) for n in range(ADDED)]
    with Timer() as timer:
        engine.remove(gone)
    found["removing_1000_s"] = round(timer.seconds, 3)
    found["after removing"] = one_by_one(lambda q: engine.search(q, want="image"), texts())
    return found


def fresh_items(dim: int) -> list[Item]:
    """Items that are not in any index yet."""
    own = vectors(ADDED, dim, 99)
    return [Item(f"new-{n}", text=f"new item {n}", vector=vector) for n, vector in enumerate(own)]


def growth(sizes: dict[str, Any]) -> dict[str, float]:
    """What all but encoding takes in the largest collection, as a multiple of the smallest."""
    smallest, *_, largest = sizes.values()
    return {
        name: round(
            (large["all"] - large["encode"]) / (small["all"] - small["encode"]),
            2,
        )
        for name, small, large in (
            *((f"want {want}", smallest["want"][want], largest["want"][want]) for want in WANTS),
            *((name, smallest[name], largest[name]) for name in SETTINGS),
        )
    }


def main(
    sizes: list[int] = [10_000, 100_000, 1_000_000, 10_000_000],  # noqa: B006
    queries: int = 60,
    cache: Path | None = None,
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    model, vocabulary = Model.load("mini"), Vocabulary()
    numbers = itertools.count(7)
    result: dict[str, Any] = {"milliseconds": "of the processor", "queries": queries, "items": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for items in (0, *sizes):
            folder = (cache or Path(scratch)) / f"engine-{items}"
            if not folder.exists():
                made(folder, model, items, vocabulary)
            with Engine.open(folder) as engine:
                engine.remove([f"new-{n}" for n in range(ADDED)])
                if not items:
                    engine.search("first")  # loads the model
                    with Timer() as timer:
                        engine.add(fresh_items(model.dim))
                    result["adding_1000_to_an_empty_index_s"] = round(timer.seconds, 3)
                    continue
                assert Modality.IMAGE in engine.model.modality_codes
                figures = measure(
                    engine, lambda: vocabulary.texts(queries, next(numbers), words=5), model.dim
                )
                result["items"][f"{items:,}"] = figures
            if len(result["items"]) > 1:
                result["largest over smallest, without encoding"] = growth(result["items"])
            yield result


if __name__ == "__main__":
    run(main)
