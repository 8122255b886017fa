"""Fitted codes in folds of train made like the pool of test, for choices that must not be made on test.

    python benchmarks/fit_folds.py --data BENCH --features FEATURES/clip_vitb16
    python benchmarks/fit_folds.py --data BENCH --features FEATURES/clip_vitb16 --folds 0,3 --seeds 1 --out -

A fit sees no labels, so train is as good as val for it, and val has few queries. A fold has as many pictures
of each dataset as the pool of test, drawn by group, so that a query and the items that resemble it are in the
same fold; the ikea products are in each, as in every split. CLIP's image vectors, the rows of pictures, at
most 1,200 queries a row. Writes benchmarks/results/fit_folds.json: for each fold, figures of exact search and
of our codes, means over seeds.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _harness import run
from fit import IMAGE_TASKS, MODALITIES, OURS, Fitted, Pool, measure, over_seeds, unit

from genius.data.base import Dataset, LabelledQuery, open_dataset
from genius.encode.precomputed import VectorTable, read_vectors
from genius.evaluate.protocol import match_qrels
from genius.types import Item

PICTURES = {"fashion": 1804, "emoji": 546, "flickr8k": 1214, "cub": 400}  # in the pool of test; ikea has all
QUERIES = 1200  # of a row, at most


def picture(root: Path, one: Item | LabelledQuery) -> str:
    """Path of its picture as the tables have it."""
    assert isinstance(one.image, Path)
    return str(one.image.relative_to(root))


def shuffled_pictures(root: Path, items: list[Item], draw: np.random.Generator) -> dict[str, list[str]]:
    """The pictures of each dataset, group after group in random order; of `ikea`, as they come."""
    with gzip.open(root / "sources.tsv.gz", "rt", encoding="utf-8") as lines:
        group_of = {row["img_path"]: row["group"] for row in csv.DictReader(lines, delimiter="\t")}
    pictures: dict[str, dict[str, None]] = {}
    for item in items:
        path = picture(root, item)
        pictures.setdefault(path.split("/")[1], {})[path] = None
    ordered = {"ikea": list(pictures["ikea"])}
    for dataset in PICTURES:
        groups: dict[str, list[str]] = {}
        for path in pictures[dataset]:
            groups.setdefault(group_of.get(path, path), []).append(path)
        names = sorted(groups)
        draw.shuffle(names)
        ordered[dataset] = [path for name in names for path in groups[name]]
    return ordered


def pools_of_train(dataset: Dataset, root: Path, table: VectorTable) -> Iterator[Pool]:
    """Five folds, the same at each call."""
    draw = np.random.default_rng(0)
    items = [item for item in dataset.pool("train") if item.image is not None]
    rows = [row for row in dataset.rows("train") if row.task in IMAGE_TASKS]
    queries = {row: list(dataset.queries("train", row)) for row in rows}
    qrels = {row: dataset.qrels("train", row) for row in rows}
    ordered = shuffled_pictures(root, items, draw)

    def vectors(of: list[Any]) -> Any:
        return unit(table.lookup([picture(root, one) for one in of]))

    for fold in range(5):
        drawn = set(ordered["ikea"])
        for name, count in PICTURES.items():
            drawn |= set(ordered[name][fold * count : (fold + 1) * count])
        pool = [item for item in items if picture(root, item) in drawn]
        row_of = {item.id: number for number, item in enumerate(pool)}
        searched = {}
        for row in rows:
            asked = [
                query
                for query in queries[row]
                if any(item in row_of for item in qrels[row].get(query.id, {}))
            ]
            if row.dataset == "cub":  # the photos that ask are no items
                asked = [query for query in asked if picture(root, query) not in drawn]
            if len(asked) > QUERIES:
                asked = [asked[number] for number in np.sort(draw.permutation(len(asked))[:QUERIES])]
            matched = match_qrels(row, [query.id for query in asked], qrels[row], row_of)
            searched[row] = vectors(asked), matched
        modality = np.array([MODALITIES.index(item.modality) for item in pool])
        yield Pool(vectors(pool), modality, searched)


def main(data: Path, features: Path, folds: str = "0,1,2,3,4", seeds: int = 2) -> Iterator[dict[str, Any]]:
    files = features.with_suffix(".safetensors"), features.with_suffix(".names.txt")
    pools = pools_of_train(open_dataset("mbeir", data), data, read_vectors(*files, "image_embeds"))
    result: dict[str, Any] = {"metric": "hit@5, mean of the rows", "options": str(OURS), "seeds": seeds}
    for number, pool in enumerate(pools):
        if str(number) not in folds.split(","):
            continue
        tables = [
            measure(iter([pool]), "universal", {"genius": Fitted(replace(OURS, seed=seed))}, {})
            for seed in range(seeds)
        ]
        result[f"fold {number}"] = {name: over_seeds([table[name] for table in tables]) for name in tables[0]}
        yield result


if __name__ == "__main__":
    run(main)
