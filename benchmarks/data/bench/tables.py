"""The tables of the benchmark: M-BEIR's files, written from the datasets, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench.domain import NUMBERS, TASKS, Domain
from bench.splits import PUBLIC

FOLDER = Path(__file__).parent
CHECKSUMS = FOLDER / "checksums.sha256"
POOL_SPLITS = {"train": ("train",), "val": ("val",), "test": ("val", "test")}  # pool: what it holds
SOURCES, SOURCES_TEXT = "sources.tsv.gz", "sources.tsv"


@cache
def rows() -> Sequence[Mapping[str, Any]]:
    """The rows of the benchmark: dataset, task, what asks for what, instructions."""
    listed: Sequence[Mapping[str, Any]] = tomllib.loads((FOLDER / "rows.toml").read_text("utf-8"))["row"]
    return listed


def write_tables(domains: Mapping[str, Domain], root: Path) -> None:
    """Write queries, qrels, pools, instructions and sources of these datasets under `root`."""
    pools: dict[str, dict[str, str]] = {split: {} for split in POOL_SPLITS}  # id to line, in order
    for row in rows():
        domain, task = domains.get(row["dataset"]), row["task"]
        if domain is None:
            continue
        name = f"mbeir_{domain.name}_task{task}"
        for split in PUBLIC:
            asked = domain.queries[task, split]
            _write(root / f"query/{split}/{name}_{split}.jsonl", map(_json, asked))
            _write(root / f"qrels/{split}/{name}_{split}_qrels.txt", _qrels(asked))
        for split, parts in POOL_SPLITS.items():
            pool = {id: _json(domain.items[id]) for id in domain.pool(task, parts)}
            pools[split] |= pool
            if split != "train":
                suffix = "_val" if split == "val" else ""
                _write(root / f"cand_pool/local/{name}{suffix}_cand_pool.jsonl", pool.values())
    for split, lines in pools.items():
        _write(root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl", lines.values())
    for split, name in (("train", "mbeir_union_up_train"), ("val", "mbeir_union_val")):
        ordered = sorted((domain.name, task) for domain in domains.values() for task in domain.pools)
        queries = (query for of, task in ordered for query in domains[of].queries[task, split])
        _write(root / f"query/union_{split}/{name}.jsonl", map(_json, queries))
    _write(root / "instructions/query_instructions.tsv", _instructions())
    table = "".join("\t".join(line) + "\n" for line in _sources(domains.values()))
    (root / SOURCES).write_bytes(gzip.compress(table.encode(), mtime=0))


def verify_tables(root: Path, datasets: Iterable[str] = NUMBERS) -> dict[str, str]:
    """Table to what is wrong with it, if its bytes are not those of the committed checksum.

    Tables that join all datasets are compared when all of them are meant.
    """
    wrong = {}
    for path, expected in expected_checksums(datasets).items():
        file = root / (SOURCES if path == SOURCES_TEXT else path)
        if not file.exists():
            wrong[path] = "is missing"
        elif checksum(file) != expected:
            wrong[path] = "differs"
    return wrong


def expected_checksums(datasets: Iterable[str] = NUMBERS) -> dict[str, str]:
    """The committed checksum of each table that these datasets fill."""
    lines = [line.split("  ") for line in CHECKSUMS.read_text("utf-8").splitlines()]
    prefixes = tuple(f"mbeir_{name}_task" for name in datasets)
    everything = len(prefixes) == len(NUMBERS)
    return {
        path: digest
        for digest, path in lines
        if everything or path.startswith("instructions/") or Path(path).name.startswith(prefixes)
    }


def checksum(file: Path) -> str:
    """SHA-256 of a table; of its text if it is compressed, as compressors differ."""
    content = file.read_bytes()
    return hashlib.sha256(gzip.decompress(content) if file.suffix == ".gz" else content).hexdigest()


def _write(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _qrels(queries: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for query in queries:
        for id in query["pos_cand_list"]:
            yield f"{query['qid']} 0 {id} 1 {query['task_id']}"


def _instructions() -> Iterable[str]:
    head = ["query_modality", "cand_modality", "dataset_name", "dataset_id"]
    yield "\t".join([*head, *(f"prompt_{number}" for number in (1, 2, 3, 4))])
    for row in rows():
        name = row["dataset"]
        yield "\t".join([*TASKS[row["task"]], name, str(NUMBERS[name]), *row["instructions"]])


def _sources(domains: Iterable[Domain]) -> Iterable[list[str]]:
    yield ["img_path", "source", "group", "split"]
    pictures = {path: picture for domain in domains for path, picture in domain.public_pictures().items()}
    for path in sorted(pictures):
        yield [path, pictures[path].source, pictures[path].group, pictures[path].split]
