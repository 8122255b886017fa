"""Texts that are longer than the encoder reads: what is found with and without `--split-texts`.

    python benchmarks/split_texts.py --data BENCH             # benchmarks/results/split_texts.json

The row of the benchmark's val split that asks for a caption with another one of the same picture. Every right
caption is put somewhere into a document of its own, among captions of other pictures, from train; mini reads
the first 128 tokens of it. hit@5 in percent: of the captions alone, of the documents by their beginning, and
of the documents in passages of different sizes, in tokens; `deep` are the queries whose right captions all
begin after what is read. Words do not count in the ranking. `passages` is how many a document has on average.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import run

from genius.data.base import LabelledQuery, open_dataset
from genius.data.passages import passages
from genius.engine import Engine
from genius.ingest import embedding
from genius.types import Item, Modality

ROWS = ("flickr8k 1",)
AT = 5
SIZES = [128, 64, 32, 16]  # tokens of a passage


def document(item: Item, others: Sequence[str], draw: random.Random, size: int) -> tuple[Item, int]:
    """The text of an item somewhere among `size` others, and where it begins."""
    sentences = draw.sample(others, size)
    place = draw.randrange(size + 1)
    sentences.insert(place, item.text or "")
    begins = sum(len(one) + 1 for one in sentences[:place])
    return replace(item, text=" ".join(sentences)), begins


def hit_rate(engine: Engine, queries: Sequence[LabelledQuery]) -> float:
    """Share of queries that find a right item, in percent."""
    asked = [query.asked("") for query in queries]
    plain = [replace(query, instruction=None) for query in asked]  # the engine's own sentence
    found = engine.search_batch(plain, AT, Modality.TEXT, hybrid=False)
    hits = [any(hit.id in query.positives for hit in own) for query, own in zip(queries, found, strict=True)]
    return round(100 * statistics.mean(hits), 1) if hits else 0.0


def main(
    data: Path, model: str = "mini", sentences: int = 24, queries: int = 40, sizes: list[int] = SIZES
) -> Iterator[dict[str, Any]]:
    dataset, draw = open_dataset("mbeir", data), random.Random(0)
    rows = [row for row in dataset.rows("val") if str(row) in ROWS]
    asked = {row: [one for one in dataset.queries("val", row) if one.positives][:queries] for row in rows}
    right = {id for several in asked.values() for query in several for id in query.positives}
    captions = [item for item in dataset.pool("val") if item.id in right]
    source = f"{captions[0].id.partition(':')[0]}:"
    fillers = sorted(
        {item.text for item in dataset.pool("train") if item.text and item.id.startswith(source)}
    )
    made = [document(item, fillers, draw, sentences) for item in captions]
    documents = [item for item, _ in made]
    result: dict[str, Any] = {
        "model": model,
        "documents": len(documents),
        "sentences": sentences + 1,
        "at": AT,
    }
    with tempfile.TemporaryDirectory() as folder:
        alone, whole = (Engine.create(Path(folder) / name, model) for name in ("alone", "whole"))
        alone.add(captions)
        result["long"] = whole.add(documents).long_texts
        split = {}
        for size in sizes:
            embedding.PASSAGE = size
            split[size] = Engine.create(Path(folder) / f"split-{size}", model, split_texts=True)
            split[size].add(documents)
        counts = {size: engine.index.truth.passage_rows().counts for size, engine in split.items()}
        result["passages"] = {size: round(1 + own.sum() / len(documents), 1) for size, own in counts.items()}
        read = _read(whole, documents)
        deep = {item.id for item, begins in made if begins >= read[item.id]}
        for row, every in asked.items():
            below = [query for query in every if deep.issuperset(query.positives)]
            result[str(row)] = {
                name: {
                    "queries": len(some),
                    "captions alone": hit_rate(alone, some),
                    "beginning": hit_rate(whole, some),
                    **{f"passages of {size}": hit_rate(engine, some) for size, engine in split.items()},
                }
                for name, some in {"all": every, "deep": below}.items()
            }
            yield result
        for engine in (alone, whole, *split.values()):
            engine.close()


def _read(engine: Engine, documents: Sequence[Item]) -> dict[str, int]:
    """How many characters of each text the encoder reads, about."""
    limit = embedding.text_limit(engine.model)
    assert limit is not None
    found = {}
    for item in documents:
        text = item.text or ""
        found[item.id] = passages(text, limit.count_tokens, limit.max_tokens)[0][1]
    return found


if __name__ == "__main__":
    run(main)
