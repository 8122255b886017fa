"""Changes to an index: adding, updating and removing items, and fitting codes to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genius.data.remote import RemotePath
from genius.data.report import Report
from genius.data.rows import TableOptions
from genius.errors import BadInput
from genius.ingest.add import add_items
from genius.ingest.result import AddResult, require_items
from genius.ingest.source import ItemSource, noting_ids
from genius.ingest.update import update_items
from genius.types import Item

if TYPE_CHECKING:
    from genius.fitting.pairs import LabelledPairs
    from genius.fitting.run import FitResult
from genius.engine.opening import OpenIndex, is_storable

NO_PRUNING = "an update changes some items and prunes none: leave one of the two out"


class IndexChanges(OpenIndex):
    """The part of an engine that writes."""

    def add(
        self,
        items: Iterable[Item],
        *,
        source: str | None = None,
        allow_urls: bool = False,
        exif: bool = False,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
        fit: str = "auto",
    ) -> AddResult:
        """Add or update items by id; each batch is durable and searchable at once, without any rebuild.

        Unchanged items are not encoded again; bad ones are skipped and named in the result's report. In an
        index for an encoder without trained codes, codes are fitted at the end when that is worthwhile,
        unless `fit` is `never`. With `allow_urls`, an image can be a URL, which is fetched. With `exif`,
        date, place and camera of photos become metadata.
        """
        if fit not in ("auto", "never"):
            raise BadInput(f"fit {fit!r}: use auto or never")
        require_items(items, "add")
        with self.index.writing():
            self.index.refresh()  # a locked or read-only index is refused before the model is loaded
        model = self.model  # and the model is loaded before writing begins
        with self.index.writing():
            self.index.refresh()
            if model.fingerprint != self.index.settings["fingerprint"]:
                model = self.model  # it was fitted anew in between
            added = add_items(
                self.index,
                model,
                items,
                source=source,
                allow_urls=allow_urls,
                exif=exif,
                report=report,
                progress=progress,
            )
            self.index.compact_if_due()
            own = self.index.settings.get("fit")
            if fit == "auto" and own and not own.get("from_pairs") and self.fit_is_due():
                self.fit()
        return added

    def update(
        self,
        changes: Iterable[Item],
        *,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
    ) -> AddResult:
        """Change parts of stored items: an image or text that is None is kept, as are entries of `meta` that
        are not named; a value of None removes an entry. Unknown ids are skipped and named in the report.
        """
        require_items(changes, "update")
        with self.index.writing():
            self.index.refresh()
            updated = update_items(self.index, lambda: self.model, changes, report=report, progress=progress)
            self.index.compact_if_due()
        return updated

    def add_from(
        self,
        path: str | Path | RemotePath,
        *,
        exclude: Sequence[str] = (),
        prune: bool = False,
        update: bool = False,
        tables: TableOptions | None = None,
        exif: bool = True,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
        fit: str = "auto",
    ) -> AddResult:
        """Add what a folder, a table, a tar or a single file holds, as `genius index` does.

        `exclude` has patterns of file names to skip. With `prune`, items that `path` no longer has are
        removed, unless a folder or a line could not be read. With `update`, the rows of a table change parts
        of stored items, as in `update`. `tables` maps columns, and says whether images are fetched from
        URLs. `exif` stores date, place and camera of the photos in a folder.
        """
        source = ItemSource.of(path)
        report = Report() if report is None else report
        tables = tables or TableOptions()
        if update:
            if prune:
                raise BadInput(NO_PRUNING)
            return self.update(source.changes(report, tables), report=report, progress=progress)
        if prune:
            report.ids = set()
        seen: set[str] = set()
        items = source.items(self.index, exclude, report, tables)
        if prune:
            items = noting_ids(items, seen)
        result = self.add(
            items,
            source=source.label,
            allow_urls=tables.allow_urls,
            exif=exif and source.root is not None,
            report=report,
            progress=progress,
            fit=fit,
        )
        if prune and not report.unknown:
            result.removed = self.prune(source.label, seen | source.kept_ids(report.ids or set()))
        return result

    def remove(self, ids: str | Iterable[str]) -> int:
        """Remove one or several items by id; returns how many were removed."""
        every = [ids] if isinstance(ids, str) else ids
        return self.index.remove([id for id in every if is_storable(id)])

    def prune(self, source: str, keep: Collection[str]) -> int:
        """Remove the items of `source` whose ids are not in `keep`; returns how many were removed."""
        return self.index.remove([id for id in self.index.truth.ids_from(source) if id not in keep])

    def fit(
        self,
        *,
        item_bytes: int | None = None,
        pairs: str | Path | LabelledPairs | None = None,
        decoder: bool = False,
        seed: int = 0,
        report: Report | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> FitResult:
        """Fit the codes to the items as they are now, from their stored vectors; no labels are needed.

        `item_bytes` is the size of an item's codes in bytes (default: as at the last fit, at first 15).
        `pairs` are queries with the ids of the items they should find: (query, id) tuples, a JSONL file, or
        `captions`, the texts of the collection's own pairs. They tune the codes and, with `decoder`, train a
        decoder; a held-out part of them decides what is kept. All items get new codes in one transaction;
        searches continue meanwhile. A decoder that the model had before is no longer used.
        """
        from genius.fitting.run import fit

        with self.index.writing():
            self.index.refresh()
            return fit(
                self.index,
                lambda: self.model,
                item_bytes=item_bytes,
                pairs=pairs,
                decoder=decoder,
                seed=seed,
                report=Report() if report is None else report,
                progress=progress,
            )

    def fit_is_due(self) -> str | None:
        """Why a new fit would be worthwhile; None if it would not."""
        from genius.fitting.due import fit_state

        return fit_state(self.index).due

    def compact(self) -> int:
        """Merge all changes into a new generation of arrays; returns its number."""
        return self.index.compact()
