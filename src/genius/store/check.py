"""Checks every page, row and array of an index, and repairs a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from genius.errors import IndexCorrupt, ModelMismatch
from genius.model_toml import read_model_toml
from genius.store import generations
from genius.store.building import LAYOUT
from genius.store.connection import INDEX_FILE
from genius.store.index import LOCK, Index
from genius.store.large_array import CacheDamaged
from genius.store.lock import WriterLock
from genius.store.repair import RepairReport, repair_truth


@dataclass(slots=True)
class CheckReport:
    """What is wrong: with the truth (items may be lost), the cache (rebuilt without loss), codebooks."""

    items: int = 0
    truth: list[str] = field(default_factory=list)
    cache: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.truth or self.cache or self.model)


def check(folder: Path) -> CheckReport:
    """Read everything and report what is wrong; changes nothing."""
    findings = CheckReport()
    try:
        with Index.open(folder) as index:
            findings.truth.extend(_truth_problems(index, findings))
            findings.model.extend(filter(None, [model_problem(index)]))
            if not findings.truth:
                findings.cache.extend(_cache_problems(index))
                if not index.truth.words_agree():
                    findings.cache.append("cache: the index of words does not agree with the items")
    except IndexCorrupt as error:
        findings.truth.append(str(error))
    return findings


def repair(folder: Path) -> tuple[CheckReport, RepairReport]:
    """Repair what `check` finds; returns what was found, and what could be saved of a damaged truth."""
    salvage = RepairReport()
    findings = check(folder)
    if findings.truth:
        with WriterLock(folder / LOCK):
            salvage = repair_truth(folder)
    if findings.truth or findings.cache:
        with Index.open(folder) as index:
            if not index.truth.words_agree():
                with index.writing(), index.truth.writing():
                    index.truth.build_words()
            index.compact()
    return findings, salvage


def _truth_problems(index: Index, findings: CheckReport) -> Iterator[str]:
    file = index.folder / INDEX_FILE
    for problem in index.truth.integrity():
        yield f"{file}: {problem}"
    index.truth.settings()
    index.truth.removed(index.truth.last_row())
    index.truth.check_thumbnails()
    index.truth.check_passages()
    sizes = np.array(index.settings["sizes"])
    for batch in index.truth.entries(index.levels, index.dim):
        findings.items += len(index.truth.records(batch.rows.tolist()))  # verifies checksums of the content
        outside = (batch.codes >= sizes).any(axis=1)
        for row in batch.rows[outside]:
            yield f"{file}: row {row} has codes that the model does not have"
    if findings.items != sum(index.truth.counts().values()):
        yield f"{file}: the count of items does not match the rows up to the last one"


def model_problem(index: Index) -> str | None:
    """What is wrong with the model that was fitted to the items, and the cure; None if nothing is."""
    fit = index.settings.get("fit")
    if not fit:
        return None
    folder = Path(index.model_source)
    try:
        named = read_model_toml(folder).get("encoder", {}).get("fingerprint") == fit["encoder"]
        whole = blake2b((folder / "quantizer.safetensors").read_bytes(), digest_size=16).hexdigest()
    except (OSError, ModelMismatch):
        named, whole = False, ""
    if named and whole == fit["digest"]:
        return None
    return (
        f"{folder}: the codebooks are damaged or gone, though no item is: "
        f"`genius fit --in {index.folder}` makes new ones"
    )


def _cache_problems(index: Index) -> Iterator[str]:
    pinned = index.pinned()
    if pinned.number == 0:
        return
    try:
        generation = generations.load(index.folder, pinned.number, pinned.digest, LAYOUT)
        try:
            generations.verify(generation)
        finally:
            generation.close()
    except CacheDamaged as error:
        yield f"cache: {error}"
        return
    for _ in range(10):  # somebody may be writing
        snapshot = index.snapshot()
        rows = np.sort(np.concatenate([index.truth.rows(), index.truth.passage_rows().rows()[0]]))
        if index.truth.change() == snapshot.change:
            break
    found = np.concatenate([snapshot.runs.rows(np.flatnonzero(snapshot.alive())), snapshot.delta.rows])
    if not np.array_equal(found, rows):
        yield f"cache: generation {pinned.number} and the changes since do not add up to the items"
