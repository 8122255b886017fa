"""Texts that are longer than the encoder reads: what is found with and without `--split-texts`.

    python benchmarks/split_texts.py --data BENCH             # benchmarks/results/split_texts.json

Rows of the benchmark that want a caption, asked by another caption or by the picture. Every caption of the
val pool is put somewhere into a document of its own, among captions of other pictures, from train; mini reads
the first 128 tokens of it. hit@5 in percent: of the captions alone, of the documents by their beginning, and
of the documents in passages; `deep` are the queries whose right captions all begin after what is read. Words
do not count in the ranking. `passages` is how many a document has on average, `bytes` what an item takes.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import run

from genius.data.base import LabelledQuery, open_dataset
from genius.engine import Engine
from genius.types import Item, Modality

ROWS = ("flickr8k 1", "flickr8k 3")
AT = 5


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


def main(data: Path, model: str = "mini", sentences: int = 24, queries: int = 400) -> dict[str, Any]:
    dataset, draw = open_dataset("mbeir", data), random.Random(0)
    rows = [row for row in dataset.rows("val") if str(row) in ROWS]
    captions = [item for item in dataset.pool("val", rows[0]) if item.modality is Modality.TEXT and item.text]
    own = captions[0].id.partition(":")[0]
    fillers = sorted(
        {item.text for item in dataset.pool("train") if item.text and item.id.startswith(f"{own}:")}
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
        alone, whole, split = (
            Engine.create(Path(folder) / name, model, split_texts=name == "split")
            for name in ("alone", "whole", "split")
        )
        alone.add(captions)
        result["long"] = whole.add(documents).long_texts
        split.add(documents)
        rows_of = split.index.truth.passage_rows()
        result["passages"] = round(1 + float(rows_of.counts.sum()) / len(documents), 2)
        limit = {item.id: _read(split, item.id) for item in documents}
        deep = {item.id for item, begins in made if begins >= limit[item.id]}
        for row in rows:
            asked = [query for query in dataset.queries("val", row) if query.positives][:queries]
            below = [query for query in asked if deep.issuperset(query.positives)]
            result[str(row)] = {
                name: {
                    "queries": len(some),
                    "captions alone": hit_rate(alone, some),
                    "beginning": hit_rate(whole, some),
                    "passages": hit_rate(split, some),
                }
                for name, some in {"all": asked, "deep": below}.items()
            }
        for name, engine in {"whole": whole, "split": split}.items():
            engine.compact()
            result.setdefault("bytes", {})[name] = engine.stats()["bytes_per_item"]
            engine.close()
    return result


def _read(engine: Engine, id: str) -> int:
    """How many characters of its text the encoder reads, about: up to the end of the first passage."""
    found = engine.index.truth.record(id)
    assert found is not None
    passages = engine.index.truth.passages(found[0])
    return len(found[1].text or "") if passages is None else int(passages.spans[0, 1])


if __name__ == "__main__":
    run(main)
