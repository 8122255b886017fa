"""Which instruction an engine should put before a query whose user gives none: its default sentence, or none.

    python benchmarks/instructions.py --data BENCH             # benchmarks/results/instructions.json

Every query of the val split is asked for the modality it wants: with the sentence of its dataset, with the
default sentence of the engine, and with none. Exact search on phi over the items of that modality in
the universal pool; hit@5 per row, and means over the rows of each kind of query. What is better on val is the
product's default (`genius.data.instructions:default_instruction`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import run

from genius.data.base import LabelledQuery, open_dataset
from genius.data.instructions import DEFAULTS
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder
from genius.model import Model
from genius.types import Modality

MODALITIES = tuple(Modality)
AT = 5


def main(data: Path, model: str = "mini", cache: Path = Path("runs/any-cache")) -> dict[str, Any]:
    dataset = open_dataset("mbeir", data)
    embedder = Embedder(Model.load(model), cache)
    pool = embedder.pool(read_items(dataset.pool("val"), fuses=embedder.fuses))
    place = {name: number for number, name in enumerate(pool.ids)}
    sentences: dict[str, Callable[[LabelledQuery], str]] = {
        "dataset": lambda query: dataset.instructions.chosen(query).sentence,
        "default": lambda query: DEFAULTS[query.modality][query.want],
        "none": lambda query: "",
    }
    rows: dict[str, dict[str, float]] = {}
    kinds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in dataset.rows("val"):
        queries = list(dataset.queries("val", row))
        wanted = np.flatnonzero(pool.modality == MODALITIES.index(queries[0].want))
        found = {}
        for name, sentence in sentences.items():
            phi = embedder.queries(read_queries(queries, sentence, fuses=embedder.fuses)).phi
            best = wanted[np.argsort(-(phi @ pool.phi[wanted].T), axis=1, kind="stable")[:, :AT]]
            right = [{place[item] for item in query.positives if item in place} for query in queries]
            hits = [not mine.isdisjoint(answer) for mine, answer in zip(right, best.tolist(), strict=True)]
            found[name] = round(float(np.mean(hits)), 4)
            kinds[f"{queries[0].modality} to {queries[0].want}"][name].append(found[name])
        rows[str(row)] = found
    means = {
        kind: {name: round(float(np.mean(values)), 4) for name, values in by.items()}
        for kind, by in kinds.items()
    }
    return {"model": model, "split": "val", "rows": rows, "kinds": means}


if __name__ == "__main__":
    run(main)
