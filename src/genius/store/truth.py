"""The truth of an index: one SQLite file (WAL, synchronous FULL) of items, codes, vectors and settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from genius.store import schema
from genius.store.connection import corrupt
from genius.store.records import (
    MODALITIES,
    Amendment,
    Codes,
    Known,
    PassageRows,
    Record,
    RecordBatch,
    Rows,
    Stamp,
    Vectors,
    checksum,
    rows_digest,
)
from genius.store.stored_passages import StoredPassages
from genius.store.words import ItemWords
from genius.types import Modality

CHUNK = 4096  # rows read at a time
AT_ONCE = 256  # rows that are asked for by number in one query
_PLACE = {modality.value: place for place, modality in enumerate(MODALITIES)}
_INSERT = (
    "INSERT INTO items (row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, "
    "hash, codes, vector, content_sum, codes_sum) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_CONTENT = (
    "row, id, modality, path, text, source, meta, size, mtime_ns, ctime_ns, seen_ns, hash, codes, content_sum"
)


class Truth(StoredPassages):
    """The items of an index: added, removed and read by row or id, each with its checksums verified."""

    @classmethod
    def open(cls, file: Path) -> Truth:
        """Open the truth for reading and writing, or just reading where the folder cannot be written."""
        return cls(file)

    # --- writing ------------------------------------------------------------------------------------------

    def upsert(self, records: Sequence[Record]) -> None:
        """Add or replace items by id, the last of equal ids winning; the caller holds the transaction."""
        last = {record.id: record for record in records}
        self.delete(list(last))
        next_row, new = self.last_row() + 1, []
        for record in last.values():
            self.connection.execute(_INSERT, (next_row, *record.columns()))
            self._keep_thumbnail(next_row, record.thumbnail)
            new.append(_words(next_row, record))
            if record.passages is not None:
                self.keep_passages(next_row, record.passages)
                next_row += len(record.passages.codes)
            next_row += 1
        self.put(last_row=next_row - 1)
        if not self.has_words():
            self.build_words()
        else:
            self.change_words(new=new)

    def delete(self, ids: Sequence[str]) -> int:
        """Take items out, leaving tombstones; how many there were. The caller holds the transaction."""
        found: list[tuple[Any, ...]] = []
        query = f"DELETE FROM items WHERE id = ? RETURNING {_CONTENT}"
        for id in dict.fromkeys(ids):
            found += self.connection.execute(query, (id,)).fetchall()
        gone = [values[:1] for values in found]
        if gone:
            if all(checksum(values[1:-1]) == values[-1] for values in found):
                self.change_words(old=[ItemWords(v[0], v[1], v[3], v[4], v[6]) for v in found])
            else:  # nobody knows what was indexed of a damaged item
                self.give_up_words()
            self.connection.executemany("DELETE FROM thumbnails WHERE row = ?", gone)
            passages = self.delete_passages([row for (row,) in gone])
            rows = [*gone, *((row,) for row in passages)]
            self.connection.executemany("INSERT INTO removed VALUES (?)", rows)
            count, digest = self.get("removed")
            more, change = rows_digest(np.array(rows, np.int64).ravel())
            self.put(removed=(count + more, (digest + change) % 2**64))
        return len(gone)

    def _keep_thumbnail(self, row: int, jpeg: bytes | None) -> None:
        if jpeg is not None:
            self.connection.execute(
                "INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?)", (row, jpeg, checksum((row, jpeg)))
            )

    def amend(self, change: Amendment) -> None:
        """Change what a search does not look at, in place; the caller holds the transaction."""
        for record in self.records([change.row]).values():
            new = replace(
                record, path=change.path, source=change.source, meta=change.meta, stamp=change.stamp
            )
            values = new.columns()
            self.connection.execute(
                "UPDATE items SET path = ?, text = ?, source = ?, meta = ?, size = ?, mtime_ns = ?, "
                "ctime_ns = ?, seen_ns = ?, content_sum = ? WHERE row = ?",
                (*values[2:10], values[-2], change.row),
            )
            if (new.path, new.meta) != (record.path, record.meta):
                self.change_words([_words(change.row, record)], [_words(change.row, new)])
            self.put(amended=self.amended() + 1)

    def recode(self, rows: Rows, codes: Codes) -> None:
        """Give the items and passages of these rows other codes, (n, levels), in the caller's transaction."""
        passages = self.passage_rows(int(rows[0]) - 1, int(rows[-1])) if len(rows) else PassageRows.none()
        self.recode_passages(passages, rows, codes)
        of_items = passages.items_of(rows) == rows
        rows, codes = rows[of_items], codes[of_items]
        query = f"SELECT {_CONTENT}, vector FROM items WHERE row = ?"
        update = "UPDATE items SET codes = ?, content_sum = ?, codes_sum = ? WHERE row = ?"
        for row, own in zip(rows.tolist(), np.ascontiguousarray(codes, dtype="<u2"), strict=True):
            (_, *content, expected, vector) = self.connection.execute(query, (row,)).fetchone()
            if checksum(content) != expected:
                raise corrupt(self.file, f"row {row} fails its checksum")
            content[-1] = own.tobytes()
            sums = checksum(content), checksum((content[1], content[-1], vector))
            self.connection.execute(update, (content[-1], *sums, row))

    def vectors(self, rows: Rows, dim: int) -> Vectors:
        """The vectors of these rows, (n, dim), checksums verified."""
        query = "SELECT row, modality, codes, codes_sum, vector FROM items WHERE row IN ({}) ORDER BY row"
        found = np.empty((len(rows), dim), dtype=np.float16)
        with self.use():
            for start in range(0, len(rows), AT_ONCE):
                some, places = np.unique(rows[start : start + AT_ONCE], return_inverse=True)
                marks = ", ".join("?" * len(some))
                values = self.connection.execute(query.format(marks), some.tolist()).fetchall()
                if gone := set(some.tolist()).difference(row[0] for row in values):
                    raise corrupt(self.file, f"row {min(gone)} is gone")
                batch = self._batch(values, len(values[0][2]) // 2, dim)
                assert batch.vectors is not None
                found[start : start + AT_ONCE] = batch.vectors[places]
        return found

    def forget_removed(self, through: int) -> None:
        """Drop tombstones of rows that no generation holds any more; the caller holds the transaction."""
        self.connection.execute("DELETE FROM removed WHERE row <= ?", (through,))
        self.put(removed=rows_digest(self._removed_rows()))

    # --- reading ------------------------------------------------------------------------------------------

    def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """Of the stored ones among `ids`, what tells whether they have changed."""
        found = {}
        with self.use():
            for id in ids:
                if (stored := self.record(id)) is not None:
                    row, record = stored
                    found[id] = Known(row, record.path, record.source, record.meta, record.hash, record.stamp)
        return found

    def records(self, rows: Iterable[int]) -> dict[int, Record]:
        """The items of these rows, without vectors; rows that are gone are left out."""
        wanted = [int(row) for row in rows]
        found: dict[int, Record] = {}
        with self.use():
            for start in range(0, len(wanted), AT_ONCE):
                some = wanted[start : start + AT_ONCE]
                query = f"SELECT {_CONTENT} FROM items WHERE row IN ({', '.join('?' * len(some))})"
                found |= {values[0]: self._record(values) for values in self.connection.execute(query, some)}
        return found

    def record(self, id: str) -> tuple[int, Record] | None:
        """Row and content of the item called `id`."""
        with self.use():
            values = self.connection.execute(f"SELECT {_CONTENT} FROM items WHERE id = ?", (id,)).fetchone()
        if values is None:
            return None
        record = self._record(values)
        if record.id != id:
            raise corrupt(self.file, "its index of ids leads to another item")
        return int(values[0]), record

    def thumbnail(self, row: int) -> bytes | None:
        """The stored thumbnail of a row, if it has one."""
        with self.use():
            query = "SELECT row, jpeg, sum FROM thumbnails WHERE row = ?"
            found = self.connection.execute(query, (row,)).fetchone()
        return None if found is None else self._thumbnail(found)

    def check_thumbnails(self) -> None:
        """Read all thumbnails; raises IndexCorrupt if one is damaged or belongs to no item."""
        with self.use():
            for found in self.connection.execute("SELECT row, jpeg, sum FROM thumbnails"):
                self._thumbnail(found)
            orphans = "SELECT count(*) FROM thumbnails WHERE row NOT IN (SELECT row FROM items)"
            if self.connection.execute(orphans).fetchone()[0]:
                raise corrupt(self.file, "a thumbnail belongs to no item")

    def check_passages(self) -> None:
        """Raise IndexCorrupt if passages belong to no item, or have the row of another one."""
        rows, _ = self.passage_rows().rows()
        with self.use():
            orphans = "SELECT count(*) FROM passages WHERE row NOT IN (SELECT row FROM items)"
            (alone,) = self.connection.execute(orphans).fetchone()
        if alone or np.intersect1d(rows, self.rows()).size or (len(rows) and rows[-1] > self.last_row()):
            raise corrupt(self.file, "passages belong to no item")

    def _thumbnail(self, values: tuple[Any, ...]) -> bytes:
        row, jpeg, expected = values
        if checksum((row, jpeg)) != expected:
            raise corrupt(self.file, f"the thumbnail of row {row} fails its checksum")
        return bytes(jpeg)

    def ids_from(self, source: str) -> list[str]:
        """Ids of the items that were read from `source`, in row order."""
        query = f"SELECT {_CONTENT} FROM items WHERE source = ? ORDER BY row"
        with self.use():
            found = self.connection.execute(query, (os.fsencode(source),))
            return [self._record(values).id for values in found]

    def ids(self) -> Iterator[str]:
        """Ids of all items in row order, a chunk at a time; items that come meanwhile come last."""
        last = 0
        query = f"SELECT row, id FROM items WHERE row > ? ORDER BY row LIMIT {CHUNK}"
        while True:
            with self.use():
                chunk = self.connection.execute(query, (last,)).fetchall()
            if not chunk:
                return
            for row, id in chunk:
                if row <= last:  # else a damaged tree could be walked for ever
                    raise corrupt(self.file, "its rows are out of order")
                last = row
                yield id

    def batches(
        self, levels: int, dim: int | None, after: int = 0, through: int | None = None
    ) -> Iterator[RecordBatch]:
        """Items with row numbers in (after, through] as arrays, a chunk at a time, checksums verified.

        `dim` is the width of the vectors, or None to leave them out.
        """
        last = self.last_row() if through is None else through
        columns = "row, modality, codes, codes_sum, vector"
        query = f"SELECT {columns} FROM items WHERE row > ? AND row <= ? ORDER BY row LIMIT {CHUNK}"
        while True:
            with self.use():
                chunk = self.connection.execute(query, (after, last)).fetchall()
            if not chunk:
                return
            for values in chunk:
                if not after < values[0] <= last:  # else a damaged tree could be walked for ever
                    raise corrupt(self.file, "its rows are out of order")
                after = values[0]
            yield self._batch(chunk, levels, dim)

    def entries(
        self, levels: int, dim: int | None, after: int = 0, through: int | None = None
    ) -> Iterator[RecordBatch]:
        """The same with the passages of long texts, as searches see them."""
        for batch in self.batches(levels, dim, after, through):
            yield self.with_passages(batch, levels, dim)

    def removed(self, through: int) -> Rows:
        """Rows up to `through` that are gone, ascending; raises IndexCorrupt if one is lost or changed."""
        with self.reading():
            rows = self._removed_rows()
            if rows_digest(rows) != self.removed_digest():
                raise corrupt(self.file, "its list of removed rows fails its checksum")
        return np.sort(rows[rows <= through])

    def removed_digest(self) -> tuple[int, int]:
        """How many rows are gone, and a number that changes with them."""
        count, digest = self.get("removed")
        return count, digest

    def amended(self) -> int:
        """A number that grows with every change of an item that keeps its row."""
        return int(self.get("amended", 0))

    def _removed_rows(self) -> Rows:
        with self.use():
            found = self.connection.execute("SELECT row FROM removed").fetchall()
        return np.array(found, dtype=np.int64).ravel()

    def since(self, row: int) -> tuple[int, int]:
        """How many items have come after `row`, and how many have gone since the last compaction."""
        with self.reading():
            added = self.connection.execute("SELECT count(*) FROM items WHERE row > ?", (row,)).fetchone()[0]
            return int(added), int(self.get("removed")[0])

    def rows(self) -> Rows:
        """Row numbers of all items, ascending."""
        with self.use():
            return np.array(
                [row for (row,) in self.connection.execute("SELECT row FROM items ORDER BY row")], np.int64
            )

    def some_rows(self, most: int) -> Rows:
        """Row numbers of up to `most` items, spread over all of them."""
        query = "SELECT row FROM items WHERE row >= ? ORDER BY row LIMIT 1"
        starts = np.linspace(1, self.last_row(), most).astype(np.int64)
        with self.use():
            found = {self.connection.execute(query, (start,)).fetchone() for start in starts.tolist()}
        return np.array(sorted(row[0] for row in found if row is not None), dtype=np.int64)

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file, and whether the tables are the ones we made."""
        with self.use():
            found = [str(line) for (line,) in self.connection.execute("PRAGMA integrity_check(20)")]
            if found == ["ok"]:
                found = []
            if schema.columns(self.connection) != schema.expected_columns():
                found.append("its tables are not those of an index")
        return found

    def last_row(self) -> int:
        """The highest row number ever used (0 if none was)."""
        return int(self.get("last_row"))

    def counts(self) -> dict[Modality, int]:
        """How many items there are of each modality."""
        with self.use():
            found = dict(self.connection.execute("SELECT modality, count(*) FROM items GROUP BY modality"))
        return {modality: int(found.get(modality.value, 0)) for modality in MODALITIES}

    def _record(self, values: tuple[Any, ...]) -> Record:
        row, id, modality, path, text, source, meta, *stamp, hash, codes, expected = values
        if checksum(values[1:-1]) != expected:
            raise corrupt(self.file, f"row {row} fails its checksum")
        numbers = np.frombuffer(codes, dtype="<u2").astype(np.uint16, copy=False)
        return Record(
            id, Modality(modality), numbers, None, _path(path), text, _path(source), meta, hash, Stamp(*stamp)
        )

    def _batch(self, chunk: list[tuple[Any, ...]], levels: int, dim: int | None) -> RecordBatch:
        for row, modality, codes, expected, vector in chunk:
            sound = checksum((modality, codes, vector)) == expected and modality in _PLACE
            if not sound or len(codes) != 2 * levels:
                raise corrupt(self.file, f"row {row} fails its checksum")
            if dim is not None and (vector is None or len(vector) != 2 * dim):
                raise corrupt(self.file, f"row {row} has no vector of width {dim}")
        vectors = None
        if dim is not None:
            joined = b"".join(row[4] for row in chunk)
            vectors = (
                np.frombuffer(joined, dtype="<f2").reshape(len(chunk), dim).astype(np.float16, copy=False)
            )
        codes = np.frombuffer(b"".join(row[2] for row in chunk), dtype="<u2").reshape(len(chunk), levels)
        return RecordBatch(
            np.array([row[0] for row in chunk], dtype=np.int64),
            np.array([_PLACE[row[1]] for row in chunk], dtype=np.uint8),
            codes.astype(np.uint16, copy=False),
            vectors,
        )


def _words(row: int, record: Record) -> ItemWords:
    path = None if record.path is None else os.fsencode(record.path)
    return ItemWords(row, record.id, path, record.text, record.meta)


def _path(raw: bytes | None) -> str | None:
    return None if raw is None else os.fsdecode(raw)
