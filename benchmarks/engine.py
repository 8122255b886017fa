"""The engine's own cost: searches end to end at growing collections, and the share of each part.

    python benchmarks/engine.py                                          # benchmarks/results/engine.json
    python benchmarks/engine.py --sizes 10000 --queries 20 --out -       # a quick look

An index of `mini` with synthetic items: codes and vectors at random, short texts of words with a natural
frequency, a number as metadata. `Engine.search` and `search_batch` are asked with texts; parts are measured
inside: encoding the query, its words in the index of words, the bare search (lookup and re-ranking by
vectors), reading records, and all the rest. Then with each `want`, with a filter that keeps 1 %, after adding
and after removing items, and the time to add 1,000 items that come with their vectors. Milliseconds are of
one machine: compare columns. With --cache, indexes are kept for the next run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _harness import Timer, run
from numpy.typing import NDArray
from pools import CHUNK, skewed_codes

from genius.engine import Engine
from genius.engine.searching import IndexSearch
from genius.model import Model
from genius.query.words import WordSearch
from genius.search.searcher import Searcher
from genius.store.index import Index
from genius.store.records import MODALITIES, Record
from genius.store.truth import Truth
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
    """Fill an index of `mini` at `folder`."""
    dim = model.encoder.dim
    Index.create(folder, model="mini", fingerprint=model.fingerprint, sizes=model.sizes, dim=dim)
    codes = skewed_codes(max(items, 1), model.sizes)
    level_zero = np.array([model.modality_codes[modality] for modality in MODALITIES])
    with Index.open(folder) as index:
        for start in range(0, items, CHUNK):
            count = min(CHUNK, items - start)
            kind = np.random.default_rng([start, 3]).integers(0, len(MODALITIES), count)
            own, half = codes[start : start + count], vectors(count, dim, start).astype(np.float16)
            own[:, 0] = level_zero[kind]
            texts = vocabulary.texts(count, start)
            index.add(
                [
                    Record(
                        f"item-{start + n}",
                        MODALITIES[kind[n]],
                        own[n],
                        half[n],
                        text=texts[n],
                        meta=f'{{"number": {(start + n) % 100}}}',
                    )
                    for n in range(count)
                ]
            )
        index.compact()


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds spent in each part while the context is open."""
    spent = dict.fromkeys(PARTS, 0.0)

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **options)
            finally:
                spent[name] += time.perf_counter() - start

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
        own = {**spent, "rest": timer.seconds - sum(spent.values()), "all": timer.seconds}
        for name, value in own.items():
            found.setdefault(name, []).append(1000 * value)
    return {name: round(statistics.median(values[3:]), 3) for name, values in found.items()}


def measure(engine: Engine, queries: list[str], dim: int) -> dict[str, Any]:
    """All figures of one size."""
    found: dict[str, Any] = {"want": {}}
    for want in WANTS:
        found["want"][want] = one_by_one(lambda q, want=want: engine.search(q, want=want), queries)  # type: ignore[misc]
    found["similarity alone"] = one_by_one(lambda q: engine.search(q, want="image", hybrid=False), queries)
    where = "number < 1"
    found["filter, 1 %"] = one_by_one(lambda q: engine.search(q, want="image", where=where), queries)
    with timed() as spent, Timer() as timer:
        engine.search_batch(queries[:BATCH], want="image")
    found["batch"] = {name: round(1000 * value / BATCH, 3) for name, value in spent.items()}
    found["batch"]["all"] = round(1000 * timer.seconds / BATCH, 3)
    fresh = [
        Item(f"new-{n}", text=f"new item {n}", vector=vector)
        for n, vector in enumerate(vectors(ADDED, dim, 99))
    ]
    with Timer() as timer:
        engine.add(fresh)
    found["adding_1000_s"] = round(timer.seconds, 3)
    found["after adding"] = one_by_one(lambda q: engine.search(q, want="image"), queries)
    with Timer() as timer:
        engine.remove([f"item-{n}" for n in range(ADDED)])
    found["removing_1000_s"] = round(timer.seconds, 3)
    found["after removing"] = one_by_one(lambda q: engine.search(q, want="image"), queries)
    return found


def main(
    sizes: list[int] = [10_000, 100_000, 1_000_000],  # noqa: B006
    queries: int = 100,
    cache: Path | None = None,
) -> Iterator[dict[str, Any]]:
    model, vocabulary = Model.load("mini"), Vocabulary()
    asked = vocabulary.texts(queries, 7, words=5)
    result: dict[str, Any] = {"milliseconds": "median of single queries", "queries": queries, "items": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for items in (0, *sizes):
            folder = (cache or Path(scratch)) / f"engine-{items}"
            if not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                made(folder, model, items, vocabulary)
            with Engine.open(folder) as engine:
                engine.remove([f"new-{n}" for n in range(ADDED)])
                if not items:
                    fresh = vectors(ADDED, model.encoder.dim, 99)
                    with Timer() as timer:
                        engine.add(
                            Item(f"new-{n}", text=f"new item {n}", vector=v) for n, v in enumerate(fresh)
                        )
                    result["adding_1000_to_an_empty_index_s"] = round(timer.seconds, 3)
                    continue
                assert Modality.IMAGE in engine.model.modality_codes
                result["items"][f"{items:,}"] = measure(engine, asked, model.encoder.dim)
            yield result


if __name__ == "__main__":
    run(main)
