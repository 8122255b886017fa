"""Ranking by vectors, by words, and by both, on queries as they are, with typos, and on product numbers.

    python benchmarks/words.py --data BENCH             # benchmarks/results/words.json

Rows of the benchmark with text queries whose right items have texts, each in the pool of all items of the
modality it wants; hit@5 in percent, means over the rows. For `typos`, two neighbouring letters are exchanged
in each word of four letters or more. For `product numbers`, every item has one, in its metadata or as its
file name; half of the queries ask for it as it is, half with two digits exchanged. Of the `weights` that cost
no row of val more than 1.5 points on queries as they are (or least, if all cost more), `best on val` has the
highest mean over the kinds of queries; the engine has those. `confidence` compares how sure the first answers
are with how many are right. `bounds` has the same means where only so many items may have a word that is
looked up, so many lengths are compared and so many items kept, with ten answers by vectors. `cost` is the
processor time of looking up the words of a query in collections of different sizes, and the bytes that the
index of words takes.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from _harness import Timer, run

from genius.data.base import Dataset, LabelledQuery, open_dataset
from genius.data.instructions import engine_instruction
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries
from genius.model import Model
from genius.query import words as lookup
from genius.query.comparing import confidences
from genius.query.embedding import EmbeddedSubquery
from genius.query.hybrid import WEIGHTS, WordWeights, rank_with_words
from genius.query.subqueries import Subquery
from genius.query.view import PoolView
from genius.query.words import WordMatches, WordSearch
from genius.search.codebooks import Codebooks
from genius.search.rank import RankedItems
from genius.store.index import Index
from genius.store.records import MODALITIES, Record
from genius.types import Item, Modality

ROWS = ("flickr8k 1", "flickr8k 2", "ikea 2")
KINDS = ("as they are", "typos", "product numbers")
GRID = [WordWeights(share, full) for share in (0.25, 0.5, 1.0, 2.0, 3.0, 4.0) for full in (0.0, 8.0, 16.0)]
LOSS = 1.5  # points of hit@5 that a row may lose
TOP, AT = 100, 5
ENGINE_TOP = 10
BOUNDS = ((4096, 1000, 200), (1024, 200, 200), (1024, 100, 100), (1024, 64, 64), (512, 100, 100))
RRF = 60  # of reciprocal rank fusion, as its authors have it
SIZES = (10_000, 100_000, 300_000)


@dataclass(frozen=True)
class Pool:
    """The items of a split, in an index and in memory."""

    index: Index
    view: PoolView
    encoded: EncodedPool
    numbers: Mapping[str, str]  # product numbers by id
    row: Mapping[str, int]


def product_number(draw: random.Random) -> str:
    letters = "".join(draw.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=3))
    return f"{letters[:2]}-{draw.randrange(1000, 9999)}-{letters[2]}"


def fill(folder: Path, model: Model, items: Sequence[Item], encoded: EncodedPool) -> Pool:
    """An index of the items, each with a product number: in its metadata, or as the name of its file."""
    draw = random.Random(0)
    texts = {item.id: item.text for item in items}
    numbers = {name: product_number(draw) for name in encoded.ids}
    Index.create(folder, model="none", fingerprint="0" * 64, sizes=model.sizes, dim=model.dim)
    index = Index.open(folder)
    half = encoded.phi.astype(np.float16)
    index.add(
        [
            Record(
                name,
                MODALITIES[encoded.modality[n]],
                encoded.codes[n],
                half[n],
                path=f"/shop/{numbers[name]}.jpg" if n % 2 else None,
                text=texts[name],
                meta="{}" if n % 2 else f'{{"sku": "{numbers[name]}"}}',
            )
            for n, name in enumerate(encoded.ids)
        ]
    )
    rows = {name: n for n, name in enumerate(encoded.ids, start=1)}
    return Pool(index, PoolView(index.snapshot()), encoded, numbers, rows)


def exchanged(word: str, draw: random.Random) -> str:
    """A word with two neighbouring letters exchanged, not the first one."""
    if len(word) < 4:
        return word
    at = draw.randrange(1, len(word) - 2)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def asked(kind: str, queries: Sequence[LabelledQuery], pool: Pool) -> list[LabelledQuery]:
    """The queries as this kind of user asks them."""
    draw = random.Random(1)
    if kind == "typos":
        texts = [" ".join(exchanged(word, draw) for word in (one.text or "").split()) for one in queries]
        return [replace(one, text=text) for one, text in zip(queries, texts, strict=True)]
    if kind == "product numbers":
        found = []
        for place, one in enumerate(queries):
            first, digits, last = pool.numbers[one.positives[0]].split("-")
            digits = digits if place % 2 else digits[:1] + digits[2] + digits[1] + digits[3]
            found.append(replace(one, text=f"{first}-{digits}-{last}", positives=one.positives[:1]))
        return found
    return list(queries)


class Answers(NamedTuple):
    """What a query finds by each system: rows of the truth, best first."""

    by_system: dict[str, list[int]]
    by_weights: dict[str, list[int]]
    confidence: dict[str, float]  # of the first answer


def answer(
    pool: Pool,
    model: Model,
    query: EmbeddedSubquery,
    matches: WordMatches,
    codebooks: Codebooks,
    grid: Sequence[WordWeights],
) -> Answers:
    want = query.subquery.modality
    assert want is not None
    items = np.flatnonzero(pool.encoded.modality == MODALITIES.index(want))
    similar = pool.encoded.phi[items] @ query.phi
    best = items[np.argsort(-similar, kind="stable")[:TOP]]
    found = RankedItems(best, np.sort(similar)[::-1][:TOP], pool.encoded.codes[best])
    nobody = WordMatches.none()
    ranked = {
        "vectors": rank_with_words(pool.view, codebooks, query, found, nobody, TOP, None),
        "hybrid": rank_with_words(pool.view, codebooks, query, found, matches, TOP, None),
    }
    rows = {name: (pool.view.rows(one.rows)).tolist() for name, (one, _) in ranked.items()}
    mine = set((items + 1).tolist())
    rows["words"] = [row for row in matches.rows.tolist() if row in mine]
    rows["reciprocal rank fusion"] = fused(rows["vectors"], rows["words"])
    tried = {}
    for weights in grid:
        one, _ = rank_with_words(pool.view, codebooks, query, found, matches, TOP, None, weights)
        tried[str(tuple(weights))] = pool.view.rows(one.rows).tolist()
    calibration = model.calibrations.get("vectors")
    sure = {
        name: float(confidences(calibration, one)[0])
        for name, (_, one) in ranked.items()
        if calibration is not None
    }
    return Answers(rows, tried, sure)


def fused(*rankings: Sequence[int]) -> list[int]:
    """Reciprocal rank fusion."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (RRF + rank)
    return sorted(scores, key=lambda row: -scores[row])


def figures(
    pool: Pool,
    model: Model,
    embedder: Embedder,
    dataset: Dataset,
    split: str,
    grid: Sequence[WordWeights] = (),
) -> dict[str, Any]:
    """Hit rates of a split."""
    codebooks, search = Codebooks(model.codebooks()), WordSearch(pool.index)
    result: dict[str, Any] = {"items": len(pool.encoded)}
    for kind in KINDS:
        by_row: dict[str, dict[str, float]] = {}
        hits: dict[str, dict[str, list[bool]]] = {}
        sure: dict[str, list[tuple[float, bool]]] = {}
        for row in dataset.rows(split):
            if str(row) not in ROWS:
                continue
            queries = asked(kind, list(dataset.queries(split, row)), pool)
            encoded = embedder.queries(read_queries(queries, sentence, fuses=embedder.fuses))
            for number, query in enumerate(queries):
                right = {pool.row[name] for name in query.positives if name in pool.row}
                found = answer(
                    pool,
                    model,
                    embedded(encoded, number, row.want),
                    search.find(query.text or ""),
                    codebooks,
                    grid,
                )
                for name, rows in (found.by_system | found.by_weights).items():
                    hits.setdefault(name, {}).setdefault(str(row), []).append(bool({*rows[:AT]} & right))
                for name, value in found.confidence.items():
                    sure.setdefault(name, []).append((value, found.by_system[name][0] in right))
        for name, own in hits.items():
            by_row[name] = {row: round(100 * statistics.mean(ones), 1) for row, ones in own.items()}
            by_row[name]["mean"] = round(statistics.mean(by_row[name].values()), 1)
        result[kind] = {name: own for name, own in by_row.items() if not name.startswith("(")}
        tried = {name: own for name, own in by_row.items() if name.startswith("(")}
        result[kind] |= {"weights": tried} if tried else {}
        result[kind]["confidence"] = {
            name: {
                "first answer": round(100 * statistics.mean(value for value, _ in own), 1),
                "right": round(100 * statistics.mean(was for _, was in own), 1),
            }
            for name, own in sure.items()
        }
    return result


def with_bounds(
    pool: Pool, model: Model, embedder: Embedder, dataset: Dataset, split: str
) -> dict[str, dict[str, float]]:
    """Mean hit@5 of both together for other bounds of the lookup, with ten answers by vectors."""
    found = {}
    for rare, measured, kept in BOUNDS:
        named: dict[str, Any] = {"RARE": rare, "MEASURED": measured, "KEPT": kept}
        with mock.patch.multiple(lookup, **named), mock.patch(f"{__name__}.TOP", ENGINE_TOP):
            own = figures(pool, model, embedder, dataset, split, ())
        found[f"{rare}, {measured}, {kept}"] = {kind: own[kind]["hybrid"]["mean"] for kind in KINDS}
    return found


def chosen(val: Mapping[str, Any]) -> Any:
    """The best weights on val, with the mean over the kinds of queries."""
    plain = val[KINDS[0]]
    lost = {
        name: max(plain["vectors"][row] - own[row] for row in ROWS) for name, own in plain["weights"].items()
    }
    fair = [name for name in lost if lost[name] <= max(LOSS, min(lost.values()))]
    return max(fair, key=lambda name: statistics.mean(val[kind]["weights"][name]["mean"] for kind in KINDS))


def sentence(query: LabelledQuery) -> str:
    return engine_instruction(query.modality, query.want)


def embedded(queries: EncodedQueries, number: int, want: Modality) -> EmbeddedSubquery:
    return EmbeddedSubquery(Subquery(None, "", "", want), queries.z[number], queries.phi[number])


def cost(texts: Sequence[str], asked: Sequence[str]) -> dict[str, Any]:
    """Time of looking up words, and bytes, in collections of spliced texts."""
    draw = random.Random(2)
    found: dict[str, Any] = {}
    for items in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            Index.create(
                Path(folder) / "index", model="none", fingerprint="0", sizes=[2], dim=1, vectors=False
            )
            with Index.open(Path(folder) / "index") as index:
                for start in range(0, items, 10_000):
                    index.add([spliced(draw, texts, number) for number in range(start, start + 10_000)])
                found[str(items)] = {
                    "ms": lookup_ms(index, asked),
                    "ms with typos": lookup_ms(
                        index, [" ".join(exchanged(w, draw) for w in one.split()) for one in asked]
                    ),
                    "bytes per item": {
                        table: round(
                            index.truth.connection.execute(
                                f"SELECT sum(length(block)) FROM {table}_data"
                            ).fetchone()[0]
                            / items
                        )
                        for table in ("words", "trigrams")
                    },
                }
    return found


def spliced(draw: random.Random, texts: Sequence[str], number: int) -> Record:
    """An item with the beginning of one text and the end of another."""
    one, other = draw.choice(texts).split(), draw.choice(texts).split()
    text = " ".join(one[: len(one) // 2] + other[len(other) // 2 :])
    return Record(f"photos/{number:07d}.jpg", Modality.TEXT, np.zeros(1, np.uint16), text=text)


def lookup_ms(index: Index, asked: Sequence[str]) -> float:
    """Median milliseconds of a lookup that remembers nothing."""
    times = []
    for text in asked:
        search = WordSearch(index)
        with Timer() as timer:
            search.find(text)
        times.append(timer.processor)
    return round(1000 * statistics.median(times), 2)


def main(data: Path, model: str = "mini", cache: Path = Path("runs/any-cache")) -> Iterator[dict[str, Any]]:
    dataset, loaded = open_dataset("mbeir", data), Model.load(model)
    embedder = Embedder(loaded, cache)
    result: dict[str, Any] = {"model": model, "at": AT, "rows": list(ROWS), "weights": str(tuple(WEIGHTS))}
    for split in ("val", "test"):
        with_text = [item for item in dataset.pool(split) if item.text]
        encoded = embedder.pool(read_items(iter(with_text), fuses=embedder.fuses))
        with tempfile.TemporaryDirectory() as folder:
            pool = fill(Path(folder) / "index", loaded, with_text, encoded)
            result[split] = figures(pool, loaded, embedder, dataset, split, GRID if split == "val" else ())
            result[split]["bounds"] = with_bounds(pool, loaded, embedder, dataset, split)
            pool.index.close()
        result["best on val"] = chosen(result["val"])
        yield result
    texts = [item.text for item in dataset.pool("test") if item.text]
    asked_texts = [query.text or "" for query in dataset.queries("val") if str(query.row) in ROWS]
    result["cost"] = cost(texts, random.Random(3).sample(asked_texts, 100))
    yield result


if __name__ == "__main__":
    run(main)
