"""Statistics of an index, without loading its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genius.store.connection import ENDINGS, INDEX_FILE
from genius.store.generations import generation_folder
from genius.store.index import Index


def stats(index: Index) -> dict[str, Any]:
    """Items, sizes and settings, as plain values.

    `bytes_per_item` is everything on disk divided by the items; `bytes` and, per item, `bytes_each` split it
    into the truth, the codes (trie, row numbers, modalities) and the vectors that a search maps.
    """
    modalities = index.truth.counts()
    items = sum(modalities.values())
    pinned = index.pinned()
    fresh, removed = index.truth.since(pinned.through)
    used = disk_use(index)
    return {
        "items": items,
        "modalities": {modality.value: count for modality, count in modalities.items()},
        "bytes_per_item": round(sum(used.values()) / items, 1) if items else 0.0,
        "bytes_each": {part: round(size / items, 1) if items else 0.0 for part, size in used.items()},
        "bytes": used,
        "model": index.settings["model"],
        "fingerprint": index.settings["fingerprint"],
        "levels": index.levels,
        "sizes": index.settings["sizes"],
        "vectors": index.dim is not None,
        "search": index.settings["notes"].get("search", {}),
        "generation": pinned.number,
        "changes": index.truth.change(),
        "fresh": fresh,
        "removed": removed,
        "folder": str(index.folder),
    }


def disk_use(index: Index) -> dict[str, int]:
    """Bytes on disk of the truth, and of what the present generation keeps of codes and vectors."""
    truth = sum(_size(index.folder / (INDEX_FILE + ending)) for ending in ("", *ENDINGS))
    codes = vectors = 0
    for file in _files(generation_folder(index.folder, index.pinned().number)):
        if file.name.startswith("vectors."):
            vectors += _size(file)
        else:
            codes += _size(file)
    return {"truth": truth, "codes": codes, "vectors": vectors}


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _size(file: Path) -> int:
    """Bytes of a file; a compaction or a checkpoint may have taken it away meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
