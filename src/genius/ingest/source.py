"""Something that a user names to be indexed: a folder, a file or a URI, read as items under their own ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from genius.data.remote import RemotePath, location
from genius.data.report import Report
from genius.data.rows import PLAIN, TableOptions
from genius.data.tables import is_table, read_items
from genius.errors import BadInput
from genius.ingest.naming import possible_ids, unique_ids
from genius.store.index import Index
from genius.types import Item


@dataclass(frozen=True, slots=True)
class ItemSource:
    """A folder, table, shard or single file."""

    place: Path | RemotePath

    @classmethod
    def of(cls, path: str | Path | RemotePath) -> ItemSource:
        """The source at a path or URI."""
        return cls(location(path) if isinstance(path, str) else path)

    @property
    def label(self) -> str:
        """What an index remembers it by."""
        return str(self.place.resolve()) if isinstance(self.place, Path) else str(self.place)

    @property
    def root(self) -> str | None:
        """The folder that the ids of its files start from; None for a table, whose rows have ids."""
        if is_table(self.place):
            return None
        folder = self.place if not _is_media(self.place) else self.place.parent
        return os.path.abspath(folder) if isinstance(folder, Path) else str(folder)  # noqa: PTH100

    def items(
        self, index: Index | None, exclude: Sequence[str], report: Report, options: TableOptions = PLAIN
    ) -> Iterator[Item]:
        """Its items, each under an id that no other source has in `index`; the index itself is left out."""
        if index is None:
            return read_items(self.place, exclude, report, options)
        items = read_items(self.place, self.patterns(index.folder, exclude), report, options)
        root = self.root
        return items if root is None else unique_ids(items, root, self.label, index.truth.known)

    def changes(self, report: Report, options: TableOptions = PLAIN) -> Iterator[Item]:
        """Its rows, as changes of stored items in part; raises BadInput if it has none."""
        if self.root is not None:
            raise BadInput("an update reads a table whose rows have ids: give one, or leave the update out")
        return read_items(self.place, report=report, options=replace(options, partial=True))

    def patterns(self, index: Path, exclude: Sequence[str]) -> list[str]:
        """What to leave out: never forgetting the index itself."""
        if not isinstance(self.place, Path):
            return list(exclude)
        own = os.path.relpath(index, self.place)
        return list(exclude) if own.startswith("..") else [*exclude, Path(own).as_posix()]

    def kept_ids(self, ids: set[str]) -> set[str]:
        """The ids that files which were skipped may have in an index: they are still there."""
        root = self.root
        return ids if root is None else {name for id in ids for name in possible_ids(id, root)}


def noting_ids(items: Iterable[Item], ids: set[str]) -> Iterator[Item]:
    """The items as they come; their ids go to `ids`."""
    for item in items:
        ids.add(item.id)
        yield item


def _is_media(place: Path | RemotePath) -> bool:
    """Whether it is a single image or text and no folder, as far as its name tells."""
    from genius.data.folder import TEXT_SUFFIX
    from genius.data.images import SUFFIXES

    named = place.suffix.lower() in SUFFIXES or place.suffix.lower() == TEXT_SUFFIX
    return named and not (isinstance(place, Path) and place.is_dir())
