"""The index on disk: the truth, the generation built from it, and the changes since then."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genius import files
from genius.errors import BadInput, IndexLocked, IndexMismatch, StorageError
from genius.failpoints import failpoint
from genius.locks import OrderedLock
from genius.store import generations, schema
from genius.store.building import LAYOUT, GenerationBuilder
from genius.store.connection import INDEX_FILE, create
from genius.store.delta import Delta
from genius.store.generations import Generation
from genius.store.large_array import CacheDamaged
from genius.store.lock import WriterLock
from genius.store.records import Amendment, PassageRows, Record
from genius.store.repair import REPAIRED, finish_repair
from genius.store.snapshot import GenerationRef, Snapshot
from genius.store.truth import Truth

LOGGER = logging.getLogger("genius.store")
LOCK = "writer.lock"
ATTEMPTS = 10  # at a snapshot while others change the index
FILES = "files"  # folder of the images that were imported with their items
SETTINGS = (
    "model",
    "fingerprint",
    "sizes",
    "dim",
    "vectors",
    "notes",
    "fit",
)  # fixed when the index is made, until `fit` changes the codes


def fixed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that say what the items of an index are coded with."""
    return {key: settings[key] for key in SETTINGS if key in settings}


class Index:
    """An open index. Threads may share it; other processes may read it, and write when nobody else does."""

    def __init__(self, folder: Path, truth: Truth) -> None:
        self.folder = folder
        self.truth = truth
        self._use(truth.settings())
        self._lock = WriterLock(folder / LOCK)
        self._writes = OrderedLock("writer")
        self._views = OrderedLock("snapshot")
        self._pinned: GenerationRef | None = None  # what the generation in use answers to
        self._snapshot: Snapshot | None = None
        self._delta: Delta | None = None  # of the generation in use
        self._passages: tuple[int, PassageRows] | None = None  # up to which row they are known

    def _use(self, settings: dict[str, Any]) -> None:
        """Adopt the settings of the truth."""
        self.settings = settings
        self.levels = len(settings["sizes"])
        self.dim: int | None = settings["dim"] if settings["vectors"] else None
        self._builder = GenerationBuilder(self.truth, settings["sizes"], self.dim)

    def refresh(self) -> None:
        """Adopt what has changed if another process has refitted the codes."""
        settings = self.truth.settings()
        if fixed_settings(settings) != fixed_settings(self.settings):
            self._use(settings)

    @property
    def embeds(self) -> bool:
        """Whether its model can embed images or texts; not if all vectors were made elsewhere."""
        return not str((self.settings.get("fit") or {}).get("encoder", "")).startswith("vectors-")

    @property
    def split_texts(self) -> bool:
        """Whether texts that are longer than the encoder reads are indexed in passages."""
        return bool(self.settings["notes"].get("split_texts"))

    @property
    def model_source(self) -> str:
        """Name or folder of the model; one that was fitted to the index lies in it and moves with it."""
        name: str = self.settings["model"]
        return str(self.folder.absolute() / name) if self.settings.get("fit") else name

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        model: str,
        fingerprint: str,
        sizes: Sequence[int],
        dim: int,
        vectors: bool = True,
        notes: Mapping[str, Any] | None = None,
        fit: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an empty index for one model in `folder`, which may exist but must hold no index.

        `notes` are further settings to keep: plain values, under names of their own. With `fit`, `model` is a
        folder in the index and its codes are fitted to the items: see `genius.fitting`.
        """
        files.make_folder(folder)
        with WriterLock(folder / LOCK):
            if (folder / INDEX_FILE).exists() or (folder / REPAIRED).exists():
                raise BadInput(f"{folder} holds an index already: open it, or choose another folder")
            settings = {
                "model": model,
                "fingerprint": fingerprint,
                "sizes": [int(size) for size in sizes],
                "dim": int(dim),
                "vectors": vectors,
                "notes": dict(notes or {}),
                **({} if fit is None else {"fit": dict(fit)}),
            }
            create(folder / INDEX_FILE, settings)

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open the index in `folder`; older tables are brought up to date, newer ones refused."""
        if not (folder / INDEX_FILE).exists() and (folder / REPAIRED).exists():
            with WriterLock(folder / LOCK):
                finish_repair(folder)
        truth = Truth.open(folder / INDEX_FILE)
        try:
            if truth.version < schema.VERSION:
                with WriterLock(folder / LOCK):
                    truth.migrate()
            return cls(folder, truth)
        except BaseException:
            truth.close()
            raise

    def close(self) -> None:
        """Close all files."""
        if self._snapshot is not None:
            self._snapshot.generation.close()
            self._snapshot = None
        self.truth.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def image_path(self, record: Record) -> str | None:
        """The file with the image of an item, if it may be opened.

        That is a file which this engine has read itself or has unpacked beside the index; a path that came
        with an import is just a string.
        """
        if record.path is None or record.stamp.seen_ns > 0:
            return record.path
        own = self.folder.absolute() / FILES / Path(record.path).name
        return record.path if record.path == str(own) else None

    def require_model(
        self,
        name: str,
        fingerprint: str,
        sizes: Sequence[int],
        dim: int,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise IndexMismatch, with the cure, unless the index was made by this very model."""
        settings = self.settings if settings is None else settings
        same = fingerprint == settings["fingerprint"]
        if same and (list(sizes) != settings["sizes"] or dim != settings["dim"]):
            raise IndexMismatch(
                f"{self.folder} has codes or vectors of other sizes than its model {name!r}, which no index "
                f"has: make a new one with `genius index PATH --to NEW_FOLDER --model {name}`"
            )
        if not same:
            raise IndexMismatch(
                f"{self.folder} was made by the model {settings['model']!r} "
                f"({settings['fingerprint'][:12]}), not by {name!r} ({fingerprint[:12]}): "
                f"use that model, or make a new index with `genius index PATH --to NEW_FOLDER --model {name}`"
            )

    # --- writing ------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, wait: bool = True) -> Iterator[None]:
        """Be the only writer for a while; raises IndexLocked naming the current one, or StorageError.

        Another process that writes is never waited for, another thread only with `wait`.
        """
        if not self._writes.acquire(blocking=wait):
            raise IndexLocked(f"{self.folder} is being written by another thread: try again later")
        try:
            with self._lock:
                yield
        finally:
            self._writes.release()

    def add(self, records: Sequence[Record], amended: Sequence[Amendment] = ()) -> None:
        """Add or replace items by id (the last of equal ids wins); on disk and searchable when it returns."""
        self.add_batches([(records, amended)])

    def add_batches(self, batches: Sequence[tuple[Sequence[Record], Sequence[Amendment]]]) -> None:
        """As `add` for one batch after the other, but all of them in one transaction."""
        for records, _ in batches:
            for record in records:
                record.require_shapes(self.levels, self.dim)
        with self.writing(), self.truth.writing():
            for records, amended in batches:
                self.truth.upsert(records)
                for change in amended:
                    self.truth.amend(change)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items by id; returns how many there were. Unknown ids are ignored."""
        with self.writing():
            with self.truth.writing():
                count = self.truth.delete(ids)
                failpoint("during-remove")
            if count:
                self.compact_if_due()
        return count

    def compact_if_due(self) -> None:
        """Compact if the changes since the last generation slow a search down.

        Those changes are committed: if there is no room for a new generation, that is logged and not raised.
        """
        with self.writing():
            if self.worth_compacting():
                try:
                    self.compact()
                except StorageError as error:
                    LOGGER.warning("%s: not compacted: %s", self.folder, error)

    def compact(self, wait: bool = True) -> int:
        """Publish a new generation that holds every item, and forget tombstones; its number."""
        with self.writing(wait):
            self.refresh()
            through = self.truth.last_row()
            base = self._builder.items(through, vectors=False)
            failpoint("before-build")
            built = self._builder.arrays(base)
            failpoint("during-build")
            number = self.next_generation()
            facts = {"layout": LAYOUT, "last_row": through, "settings": fixed_settings(self.settings)}
            digest = generations.publish(
                self.folder, number, facts, built, self._builder.vectors(len(base), through)
            )
            failpoint("before-generation-commit")
            with self.truth.writing():
                self.truth.put(generation=GenerationRef(number, digest, through, len(base)))
                self.truth.forget_removed(through)
            generations.delete_others(self.folder, keep=number)
            return number

    def next_generation(self) -> int:
        """A number that no generation has had."""
        return max(self.pinned().number, *generations.numbers(self.folder), 0) + 1

    def worth_compacting(self) -> bool:
        """Whether the delta or the tombstones have grown enough to slow a search down."""
        pinned = self.pinned()
        added, removed = self.truth.last_row() - pinned.through, self.truth.removed_digest()[0]
        return added > max(1000, pinned.items // 10) or removed > max(1000, pinned.items // 5)

    # --- reading ------------------------------------------------------------------------------------------

    def pinned(self) -> GenerationRef:
        """The generation that the truth stands for."""
        return GenerationRef(*self.truth.settings().get("generation") or ())

    def snapshot(self) -> Snapshot:
        """The current state; the same object as long as nothing has changed. A damaged cache is rebuilt."""
        damaged: list[CacheDamaged] = []
        for attempt in range(ATTEMPTS):
            try:
                with self._views:
                    if self._snapshot is None or self._snapshot.state != self._state():
                        self._snapshot = self._view()
                    return self._snapshot
            except CacheDamaged as error:
                damaged.append(error)
                if len(damaged) == 2:  # once, a compaction may have replaced it between our two looks at it
                    break
            except IndexLocked:  # it was changed while we read it without write permission
                self._snapshot = self._delta = self._passages = None  # what was read may be of two states
                if attempt == ATTEMPTS - 1:
                    raise
        return self.rebuild(str(damaged[-1]))

    @contextmanager
    def steady(self) -> Iterator[None]:
        """No change is seen inside, and none is made by this process; raises CacheDamaged."""
        with self._views, self.truth.reading():
            if self._snapshot is None or self._snapshot.state != self._state():
                self._snapshot = self._view()
            yield

    def rebuild(self, reason: str = "requested") -> Snapshot:
        """Rebuild the generation from the truth; in memory when the folder cannot be written now."""
        LOGGER.warning("%s: rebuilding the arrays of a generation: %s", self.folder, reason)
        try:
            self.compact(wait=False)  # a search does not wait until an `add` has ended
            with self._views:
                self._snapshot = self._view()
                return self._snapshot
        except (IndexLocked, StorageError, CacheDamaged):
            with self._views:
                self._renew_in_memory()
                self._snapshot = self._view()
                return self._snapshot

    def _view(self) -> Snapshot:
        """The state as it is now, taking over what it can from the last one."""
        before = self._snapshot
        with self.truth.reading():
            self.refresh()
            pinned = self.pinned()
            state = self._state()
            if before is None or pinned != self._pinned or before.state[0] != state[0]:
                generation = self._load(pinned)
                if before is not None:
                    before.generation.close()
                before, self._pinned, self._delta, self._passages = None, pinned, None, None
            else:
                generation = before.generation
            through = self.truth.last_row()
            removed = self.truth.removed_digest()
            known = before is not None and before.removed == removed
            gone = before.gone if before is not None and known else self.truth.removed(through)
            fresh, vectors = self._grown_delta(generation.last_row, through).without(gone)
            passages = self._known_passages(through)
            return Snapshot(
                state, generation, removed, gone, fresh, vectors, through, *self._codes(), passages
            )

    def _grown_delta(self, after: int, through: int) -> Delta:
        """The rows after the generation's last, with those that have come since the last look."""
        delta, self._delta = self._delta, None  # a failure on the way must not leave half of them
        if delta is None:
            delta = Delta(after, self.levels, self.dim)
        for batch in self.truth.entries(self.levels, self.dim, after=delta.through, through=through):
            delta.append(batch)
        delta.through = through
        self._delta = delta
        return delta

    def _known_passages(self, through: int) -> PassageRows:
        """Which items have passages, with those that have come since the last look; removed ones may stay."""
        after, known = self._passages or (0, PassageRows.none())
        known = known.followed_by(self.truth.passage_rows(after, through))
        self._passages = through, known
        return known

    def _state(self) -> tuple[tuple[int, int], int]:
        """What tells two states of the truth apart: the file and the number of its last change."""
        change = self.truth.change()  # opens the file again, if it has to
        return self.truth.identity, change

    def _load(self, pinned: GenerationRef) -> Generation:
        if pinned.number == 0:
            return self._builder.in_memory(0)
        return generations.load(self.folder, pinned.number, pinned.digest, LAYOUT)

    def _renew_in_memory(self) -> None:
        """Use a generation in memory instead of a damaged one that cannot be rewritten."""
        with self.truth.reading():
            self.refresh()
            through = self.truth.last_row()
            generation = self._builder.in_memory(through)
            self._delta = delta = Delta(through, self.levels, self.dim)
            gone, removed = self.truth.removed(through), self.truth.removed_digest()
            state = (self.truth.identity, -1)
            self._passages = None
            self._snapshot = Snapshot(
                state,
                generation,
                removed,
                gone,
                *delta.without(gone),
                through,
                *self._codes(),
                self._known_passages(through),
            )
            self._pinned = self.pinned()

    def _codes(self) -> tuple[str, tuple[int, ...]]:
        """The model of the codes by its fingerprint, and codes per level."""
        return self.settings["fingerprint"], tuple(self.settings["sizes"])
