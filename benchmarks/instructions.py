"""Which instruction an engine should put before a query whose user gives none: its default sentence, or none.

    python benchmarks/instructions.py --data BENCH --photos PHOTOS    # benchmarks/results/instructions.json

Every query of the val split is asked for the modality it wants: with the sentence of its dataset, with the
default sentence of its kind, and with none. Exact search on phi over the items of that modality in
the universal pool; hit@5 per row, and means over the rows of each kind of query.

PHOTOS is a folder of labelled photos of everyday things with a table captions.tsv (file, split, kind, text).
Each val photo that shares its label with another one asks for the others; precision of the first three.
What the engine asks with is `genius.data.instructions:engine_instruction`.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import run

from genius.data.base import LabelledQuery, open_dataset
from genius.data.images import open_image
from genius.data.instructions import DEFAULTS
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder
from genius.model import Model
from genius.types import Modality

MODALITIES = tuple(Modality)
AT = 5
FIRST = 3
SMALL = ("tiny_imagenet/", "intel_scenes/")  # 64 pixels wide


def labelled_photos(folder: Path) -> tuple[list[Path], list[str]]:
    """Val photos and their labels, without tiny photos and without labels that only one photo has."""
    with (folder / "captions.tsv").open(encoding="utf-8", newline="") as table:
        rows = [
            (folder / row["file"], row["text"])
            for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)
            if (row["split"], row["kind"]) == ("val", "label") and not row["file"].startswith(SMALL)
        ]
    counts = Counter(label for _, label in rows)
    kept = [(file, label) for file, label in rows if counts[label] > 1 and file.is_file()]
    return [file for file, _ in kept], [label for _, label in kept]


def photo_figures(model: Model, folder: Path) -> dict[str, Any]:
    """Precision of the first three other photos, with the default sentence and with none."""
    files, labels = labelled_photos(folder)
    pictures = [open_image(file) for file in files]
    items = model.phi(model.embed_items(pictures, [None] * len(pictures)))
    names = np.array(labels)
    found = {}
    for name, sentence in {"default": DEFAULTS[Modality.IMAGE][Modality.IMAGE], "none": ""}.items():
        sentences = [sentence] * len(pictures)
        similar = model.phi(model.embed_queries(pictures, [None] * len(pictures), sentences)) @ items.T
        np.fill_diagonal(similar, -np.inf)
        best = np.argsort(-similar, axis=1, kind="stable")[:, :FIRST]
        right = names[best] == names[:, None]
        most = np.bincount(best.ravel(), minlength=len(files)).max()
        found[name] = {
            "precision@3": round(float(right.mean()), 4),
            "right first": round(float(right[:, 0].mean()), 4),
            "most answers that one photo is among": int(most),
        }
    return {"photos": len(files), "labels": len(set(labels)), **found}


def main(
    data: Path, photos: Path | None = None, model: str = "mini", cache: Path = Path("runs/any-cache")
) -> dict[str, Any]:
    dataset = open_dataset("mbeir", data)
    loaded = Model.load(model)
    embedder = Embedder(loaded, cache)
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
    result = {"model": model, "split": "val", "rows": rows, "kinds": means}
    return result if photos is None else result | {"photos": photo_figures(loaded, photos)}


if __name__ == "__main__":
    run(main)
