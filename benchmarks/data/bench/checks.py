"""What must hold of a built benchmark, checked from its files alone."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.domain import NUMBERS, TASKS
from bench.splits import PUBLIC, SHARED
from bench.tables import SOURCES
from bench.texts import comparison_key

QUERY_FIELDS = (
    "qid", "query_txt", "query_img_path", "query_modality", "query_src_content",
    "pos_cand_list", "neg_cand_list", "task_id",
)  # fmt: skip


@dataclass(slots=True)
class Seen:
    """What the queries and items of a split show."""

    images: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)  # comparison keys

    def add(self, text: str | None, image: str | None) -> None:
        """Note what a query or an item has."""
        self.images |= {image} if image else set()
        self.texts |= {comparison_key(text)} if text else set()


def problems(root: Path) -> Iterator[str]:
    """One line for each breach of the rules; none for a sound benchmark.

    Each query has its modality, an id of its own and relevant items that are in every pool it searches, as
    qrels says; nothing of train, neither picture nor group nor text, is in val or test.
    """
    union = {split: _pool(root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl") for split in PUBLIC}
    seen = {split: Seen() for split in PUBLIC}
    ids: set[str] = set()
    for split in PUBLIC:
        for file in sorted((root / "query" / split).glob("*.jsonl")):
            row = file.stem.removesuffix(f"_{split}")  # mbeir_emoji_task0
            pools = {f"the union pool of {split}": union[split]}
            if split != "train":
                pools["its pool"] = _pool(root / f"cand_pool/local/{row}_cand_pool.jsonl")
            if split == "val":
                pools["its val pool"] = _pool(root / f"cand_pool/local/{row}_val_cand_pool.jsonl")
            qrels = _qrels(root / f"qrels/{split}/{row}_{split}_qrels.txt")
            for query in _read(file):
                yield from (f"{row} {split} {query['qid']}: {p}" for p in _of_query(query, pools, qrels, ids))
                text = query["query_txt"] if query["query_modality"] == "text" else None
                seen[split].add(text, query["query_img_path"])
        for item in union[split].values():
            seen[split].add(item["txt"], item["img_path"])
    yield from _leaks(root, union, seen)


def _of_query(
    query: dict[str, Any], pools: dict[str, dict[str, Any]], qrels: dict[str, list[str]], ids: set[str]
) -> Iterator[str]:
    asks, wants = TASKS[query["task_id"]]
    if tuple(query) != QUERY_FIELDS:
        yield "other fields than M-BEIR's"
    if query["qid"] in ids:
        yield "another query has its id"
    ids.add(query["qid"])
    has = ",".join(m for m, f in (("image", "query_img_path"), ("text", "query_txt")) if query[f])
    if not has == query["query_modality"] == asks:
        yield f"has {has} where its task asks with {asks}"
    if qrels.get(query["qid"]) != query["pos_cand_list"]:
        yield "qrels has other relevant items"
    for id in query["pos_cand_list"]:
        for name, pool in pools.items():
            if id not in pool:
                yield f"{id} is not in {name}"
            elif pool[id]["modality"] != wants:
                yield f"{id} is {pool[id]['modality']} where its task wants {wants}"


def _leaks(root: Path, union: dict[str, dict[str, Any]], seen: dict[str, Seen]) -> Iterator[str]:
    """What train has in common with val and test, but for items that all splits share and bird names."""
    with gzip.open(root / SOURCES, "rt", encoding="utf-8") as file:
        sources = {path: (group, split) for path, _, group, split in (line[:-1].split("\t") for line in file)}
    shared = [item for id, item in union["train"].items() if id in union["test"]]
    birds = [i for i in union["test"].values() if i["did"].startswith(f"{NUMBERS['cub']}:") and i["img_path"]]
    allowed = {comparison_key(item["txt"]) for item in [*shared, *birds] if item["txt"]}
    own: dict[str, set[str]] = defaultdict(set)
    for split, parts in (("train", ("train",)), ("test", ("val", "test"))):
        images = {i for part in parts for i in seen[part].images if sources[i][1] != SHARED}
        own[split] = {f"picture {image}" for image in images}
        own[split] |= {f"group {image.split('/')[1]} {sources[image][0]}" for image in images}
        own[split] |= {f"text {text!r}" for part in parts for text in seen[part].texts - allowed}
    yield from (f"train and test share {what}" for what in sorted(own["train"] & own["test"]))


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def _pool(file: Path) -> dict[str, dict[str, Any]]:
    return {item["did"]: item for item in _read(file)}


def _qrels(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text("utf-8").splitlines():
        query, _, id, _, _ = line.split()
        found[query].append(id)
    return found
