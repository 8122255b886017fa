"""The engine's own cost: searches end to end at growing collections, and the share of each part.

    python benchmarks/engine.py                                          # benchmarks/results/engine.json
    python benchmarks/engine.py --sizes 10000 --queries 20 --out -       # a quick look

An index of `mini` with synthetic items: codes and vectors at random, short texts of words with a natural
frequency, a number as metadata. `Engine.search` and `search_batch` are asked with texts, and parts are
measured inside:

    encode               the query
    words                its words looked up in the index of words, and the ranking by words and vectors
    search               lookup and re-ranking by vectors; of what a strict filter keeps, every item
    records              of the hits, read and verified
    rest                 all else
    around the search    records and rest

with each `want`, without words, with a filter that keeps 1 %, after adding and after removing 1,000 items
that come with their vectors. Every query is asked twice: a `new` one reads from the disk and verifies what no
other has touched, the pages of an index that is larger than the memory, too; `again` it finds all of that in
memory, and the items that have its words. Milliseconds are medians over single queries, of the processor on
one thread, which a machine that is busy with other work distorts least; `by the clock` is what the caller
waits. They are of one machine: compare columns. With --cache, indexes are kept for the next run, without the
items that were removed; 10 million items take 25 GB and half an hour to make.
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
from genius.query import ranking
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
PARTS: dict[str, list[tuple[Any, str]]] = {  # and what does it
    "encode": [(IndexSearch, "_embed")],
    "words": [(WordSearch, "find"), (ranking, "rank_all_with_words")],
    "search": [(Searcher, "search"), (ranking, "rank_all")],
    "records": [(Truth, "records")],
}
ADDED = 1000
SHARE = 0.01  # that the filter keeps
BATCH = 32
ASKED = ("new", "again")


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
        for name, several in PARTS.items()
        for owner, function in several
    ]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()


def parts(spent: dict[str, float], timer: Timer, queries: int = 1) -> dict[str, float]:
    """Milliseconds of a query: of each part, of all else, and of all."""
    rest = timer.processor - sum(spent.values())
    own = {
        **spent,
        "rest": rest,
        "around the search": spent["records"] + rest,
        "all but encoding": timer.processor - spent["encode"],
        "all": timer.processor,
        "by the clock": timer.seconds,
    }
    return {name: 1000 * value / queries for name, value in own.items()}


def one_by_one(search: Callable[[str], Any], queries: list[str]) -> dict[str, dict[str, float]]:
    """Median milliseconds of a query that is new, and asked again; three others warm up."""
    for query in queries[:3]:
        search(query)
    found = {}
    for asked in ASKED:
        every = []
        for query in queries[3:]:
            with timed() as spent, Timer() as timer:
                search(query)
            every.append(parts(spent, timer))
        found[asked] = {name: round(statistics.median(one[name] for one in every), 3) for name in every[0]}
    return found


def measure(engine: Engine, texts: Callable[[], list[str]], dim: int) -> dict[str, Any]:
    """All figures of one size; the queries of each setting are others."""
    found: dict[str, Any] = {
        f"want {want}": one_by_one(lambda q, want=want: engine.search(q, want=want), texts())  # type: ignore[misc]
        for want in WANTS
    }
    found["without words"] = one_by_one(lambda q: engine.search(q, want="image", hybrid=False), texts())
    where = "number < 1"
    found["filter, 1 %"] = one_by_one(lambda q: engine.search(q, want="image", where=where), texts())
    batch = texts()[:BATCH]
    found["batch"] = {}
    for asked in ASKED:
        with timed() as spent, Timer() as timer:
            engine.search_batch(batch, want="image")
        own = parts(spent, timer, len(batch))
        found["batch"][asked] = {name: round(value, 3) for name, value in own.items()}
    found["adding 1,000, seconds"] = seconds(lambda: engine.add(fresh_items(dim)))
    found["after adding"] = one_by_one(lambda q: engine.search(q, want="image"), texts())
    gone = list(itertools.islice(engine.index.truth.ids(), ADDED))
    found["removing 1,000, seconds"] = seconds(lambda: engine.remove(gone))
    found["after removing"] = one_by_one(lambda q: engine.search(q, want="image"), texts())
    return found


def seconds(change: Callable[[], Any]) -> dict[str, float]:
    """What a change of the index takes."""
    with Timer() as timer:
        change()
    return {"processor": round(timer.processor, 3), "by the clock": round(timer.seconds, 3)}


def reset(engine: Engine) -> None:
    """Take out what an earlier run has added, and compact: each run begins with a generation alone."""
    engine.remove([f"new-{n}" for n in range(ADDED)])
    if any(engine.index.truth.since(engine.index.pinned().through)):
        engine.index.compact()


def fresh_items(dim: int) -> list[Item]:
    """Items that are not in any index yet."""
    own = vectors(ADDED, dim, 99)
    return [Item(f"new-{n}", text=f"new item {n}", vector=vector) for n, vector in enumerate(own)]


def growth(sizes: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What all but encoding takes in the largest collection, as a multiple of the smallest."""
    smallest, *_, largest = sizes.values()
    return {
        asked: {
            name: round(largest[name][asked]["all but encoding"] / found[asked]["all but encoding"], 2)
            for name, found in smallest.items()
            if asked in found
        }
        for asked in ASKED
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
                reset(engine)
                if not items:
                    engine.search("first")  # loads the model
                    empty = seconds(lambda: engine.add(fresh_items(model.dim)))
                    result["adding 1,000 to an empty index, seconds"] = empty
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
