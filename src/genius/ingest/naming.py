"""Ids of files: the path below what the user named, with more of the path before it where that is taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from genius.data.folder import item_id
from genius.data.validate import MAX_ID
from genius.ingest.item import NO_IMAGE, digest
from genius.store.records import Known
from genius.types import Item

Lookup = Callable[[Sequence[str]], Mapping[str, Known]]  # what is stored of these ids


def unique_ids(items: Iterable[Item], root: str, source: str, known: Lookup) -> Iterator[Item]:
    """The items of `source`, each under an id that no other source has.

    A file whose item is stored keeps its id. `root` is the folder that the ids start from.
    """
    for item in items:
        names = possible_ids(item.id, root)
        stored = known(names[:2])  # most files need no longer name
        if len(stored) == 2:
            stored = {**stored, **known(names[2:])}
        own = (name for name in names if name in stored and _is_same(stored[name], item, source))
        free = (name for name in names if name not in stored)
        yield replace(item, id=next(own, None) or next(free, item.id))


def possible_ids(id: str, root: str) -> list[str]:
    """The ids that a file may have: `id`, then with one folder more of `root` before it each."""
    folders = [part for part in root.replace(os.sep, "/").split("/") if part]
    longer = (f"{item_id('/'.join(folders[-count:]))}/{id}" for count in range(1, len(folders) + 1))
    return [id, *(name for name in longer if len(name) <= MAX_ID)]


def _is_same(stored: Known, item: Item, source: str) -> bool:
    """Whether a stored item is that of this file: read from it before, or from where it was moved away."""
    if stored.source == source:
        return True
    if item.image is None:
        moved = stored.path is None and stored.source is not None and not Path(stored.source).exists()
        return moved and stored.hash == NO_IMAGE + digest((item.text or "").encode())
    if not isinstance(item.image, Path) or stored.path is None:
        return False
    path = os.path.abspath(item.image)  # noqa: PTH100 (as it is stored: links are kept)
    if path == stored.path:
        return True
    try:
        moved = not Path(stored.path).exists() and Path(path).stat().st_size == stored.stamp.size
        return moved and stored.hash.startswith(digest(Path(path).read_bytes()))
    except OSError:
        return False
