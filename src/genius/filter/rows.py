"""Which rows of the truth pass the tests of a filter: one query of SQLite for each test, its rows kept.

A test of a metadata field reads the field's type and value through an index on these two expressions, which
is made when a field of a large collection is first used. What SQLite cannot decide (a text that may read as a
number, a list, a pattern) is decided here, value by value. Rows are never used twice, so rows that are known
stay known: only new ones are looked at, unless an item was amended in place.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from genius.errors import IndexLocked, StorageError
from genius.filter.grammar import Compare, FieldName, FieldTest, Has, Like, OneOf, number
from genius.filter.trigrams import trigram_query
from genius.filter.values import TRUTHS, check_of, file_date, folder
from genius.store.connection import connect, sqlite_errors
from genius.store.index import LOGGER, Index
from genius.store.records import Rows
from genius.store.snapshot import Snapshot

INDEXED_ITEMS = 10_000  # in smaller collections a field needs no index
MAX_INDEXES = 32  # fields that get one; further ones are read from the items
KEPT_BYTES = 1 << 27  # of known rows
MAX_PATH = 400  # characters; longer names are not looked up by SQLite
COLUMNS = {"id": "id", "text": "text", "folder": "path, source", "modified": "mtime_ns"}
TRIGRAMS = ("id", "text")  # fields whose trigrams are indexed
NUMBERS = "('integer', 'real')"
THERE = "('true', 'false', 'integer', 'real', 'text', 'array', 'object')"

State = tuple[tuple[int, int], int]  # the file, and the number of its last amendment


@dataclass(frozen=True, slots=True)
class KnownRows:
    """The rows up to `through` that pass a test."""

    state: State
    through: int
    rows: Rows  # ascending


@dataclass(frozen=True, slots=True)
class _Condition:
    """Rows that may pass a test: a condition on {kind} and {value}, and whether it decides."""

    sql: str
    parameters: tuple[Any, ...] = ()
    decides: bool = True


class RowFinder:
    """The rows of an index that pass tests. Threads may share it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._known: OrderedDict[FieldTest, KnownRows] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()  # an index; the writer's lock is taken inside, but never waited for
        self._indexed: set[str] = set()  # names of indexes that are there, or are one too many

    def state(self) -> State:
        """What the known rows depend on, besides new rows."""
        truth = self._index.truth
        with truth.use():
            return truth.identity, truth.amended()

    def prepare(self, test: FieldTest, items: int) -> None:
        """Make the index of the test's field, if the collection is large and this process may write now."""
        if items < INDEXED_ITEMS:
            return
        for name, columns in _indexes(test.field):
            if name not in self._indexed:
                self._make(name, columns)

    def rows(self, test: FieldTest, snapshot: Snapshot) -> tuple[Rows, State]:
        """Rows that pass the test, ascending: all of the snapshot that do, and perhaps some that are gone."""
        truth = self._index.truth
        with truth.reading():
            state = (truth.identity, truth.amended())
            with self._lock:
                known = self._known.get(test)
            if known is None or known.state != state:
                known = KnownRows(state, 0, np.zeros(0, np.int64))
            if known.through < snapshot.through:
                words = truth.has_words()
                more = _find(truth.connection, test, known.through, snapshot.through, words)
                known = KnownRows(state, snapshot.through, np.concatenate([known.rows, more]))
        self._keep(test, known)
        return known.rows[: np.searchsorted(known.rows, snapshot.through, "right")], state

    def _keep(self, test: FieldTest, known: KnownRows) -> None:
        with self._lock:
            self._known[test] = known
            self._known.move_to_end(test)
            while len(self._known) > 1 and sum(one.rows.nbytes for one in self._known.values()) > KEPT_BYTES:
                self._known.popitem(last=False)

    def _make(self, name: str, columns: str) -> None:
        """Make an index of the items, by a connection of its own: meanwhile, this process goes on searching.

        Without it, a test takes longer. It is made unless somebody else writes, or the disk refuses.
        """
        index, truth = self._index, self._index.truth
        query = "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'field_%'"
        with self._making:
            try:
                with truth.use():
                    there = {row[0] for row in truth.connection.execute(query)}
                if name not in there and len(there) < MAX_INDEXES:
                    with index.writing(wait=False), sqlite_errors(truth.file):
                        own = connect(truth.file).connection
                        try:
                            own.execute(f"CREATE INDEX IF NOT EXISTS {name} ON items ({columns})")
                        finally:
                            own.close()
                    there.add(name)
                self._indexed = there | {name}
            except (IndexLocked, StorageError) as error:
                LOGGER.info("%s: no index for a filter: %s", index.folder, error)


def _indexes(field: FieldName) -> Iterator[tuple[str, str]]:
    """Names and columns of the indexes that tests of a field use."""
    if field.built_in == "folder":
        yield "field_folder", "path, source"
    if field.built_in in ("modified", "date"):
        yield "field_modified", "mtime_ns"
    path = ("date",) if field.built_in == "date" else field.path
    if path and (where := _json_path(path)) is not None:
        digest = blake2b("\0".join(path).encode(), digest_size=12).hexdigest()
        yield f"field_{digest}", f"{_kind(where)}, {_value(where)}"


def _find(connection: sqlite3.Connection, test: FieldTest, after: int, through: int, words: bool) -> Rows:
    """The rows in (after, through] that pass the test, ascending; those of the file that is open now."""
    if test.field.built_in is not None:
        return _find_built_in(connection, test, after, through, words)
    where = _json_path(test.field.path)
    check = check_of(test)
    if where is None:  # SQLite cannot name this field
        found = []
        for row, meta in connection.execute(_select("row, meta", after), (after, through)):
            if check(_value_at(meta, test.field.path)):
                found.append(row)
        return np.array(found, dtype=np.int64)
    parts = [np.zeros(0, np.int64)]
    for condition in _conditions(test):
        sql = condition.sql.format(kind=_kind(where), value=_value(where))
        columns = "row" if condition.decides else f"row, {_kind(where)}, {_value(where)}"
        answer = connection.execute(
            f"{_select(columns, after)} AND {sql}", (after, through, *condition.parameters)
        )
        if condition.decides:
            rows = [row for (row,) in answer]
        else:
            rows = [row for row, kind, value in answer if check(_plain(kind, value))]
        parts.append(np.array(rows, dtype=np.int64))
    return np.unique(np.concatenate(parts))


def _find_built_in(
    connection: sqlite3.Connection, test: FieldTest, after: int, through: int, words: bool
) -> Rows:
    name = test.field.built_in
    assert name in COLUMNS, name
    check = check_of(test)
    values = _exact_texts(test) if name == "id" else None
    if values is not None:
        sql = f"{_select('row', after)} AND id IN (SELECT value FROM json_each(?))"
        answer = connection.execute(sql, (after, through, json.dumps(values)))
        return np.sort(np.array([row for (row,) in answer], dtype=np.int64))
    found = []
    query, parameters = _select(f"row, {COLUMNS[name]}", after), (after, through)
    if words and isinstance(test, Like) and name in TRIGRAMS:
        may = trigram_query(test.pattern)
        if may is not None:
            among = "SELECT rowid FROM trigrams WHERE trigrams MATCH ? AND rowid > ? AND rowid <= ?"
            query = f"SELECT row, {name} FROM items WHERE row IN ({among})"
            parameters = (may, after, through)  # type: ignore[assignment]
    for row, *columns in connection.execute(query, parameters):
        if check(_built_in_value(name, columns)):
            found.append(row)
    return np.sort(np.array(found, dtype=np.int64))


def _built_in_value(name: str, columns: list[Any]) -> str | None:
    value = columns[0]
    if name == "modified":
        return file_date(value)
    if value is None or name != "folder":
        return None if value is None else str(value)
    return folder(os.fsdecode(value), None if columns[1] is None else os.fsdecode(columns[1]))


def _exact_texts(test: FieldTest) -> list[str] | None:
    """The texts that pass a test for being equal to texts; None for another test."""
    if isinstance(test, Compare) and test.operator == "=" and isinstance(test.value, str):
        return [test.value]
    if isinstance(test, OneOf) and all(isinstance(value, str) for _, value in test.values):
        return [str(value) for _, value in test.values]
    return None


def _select(columns: str, after: int) -> str:
    """The beginning of a query: from the first row on by any index, later only over the new rows."""
    if after:
        return f"SELECT {columns} FROM items NOT INDEXED WHERE row > ? AND row <= ?"
    return f"SELECT {columns} FROM items WHERE +row > ? AND +row <= ?"


def _conditions(test: FieldTest) -> list[_Condition]:
    """The conditions under which SQLite finds what passes a test of a metadata field."""
    if isinstance(test, Has):
        return [_Condition("{kind} IN " + THERE)]
    if isinstance(test, Like):
        return [_ARRAY, _Condition("{kind} = 'text'", decides=False)]
    if isinstance(test, Compare):
        return [_ARRAY, *_compare_conditions(test)]
    texts = [value for _, value in test.values if isinstance(value, str)]
    plain = [value for is_truth, value in test.values if not is_truth and not isinstance(value, str)]
    numbers = plain + [read for text in texts if (read := number(text)) is not None]
    found = [_ARRAY, *([_NUMERIC_TEXT] if plain else [])]
    for is_truth, value in test.values:
        if is_truth:
            found += _compare_conditions(Compare(test.field, "=", value))
    for kinds, values in (("('text')", texts), (NUMBERS, numbers)):
        if values:
            sql = f"{{kind}} IN {kinds} AND {{value}} IN (SELECT value FROM json_each(?))"
            found.append(_Condition(sql, (json.dumps(values),)))
    return found


_ARRAY = _Condition("{kind} = 'array'", decides=False)
_NUMERIC_TEXT = _Condition(
    "{kind} = 'text' AND {value} < ':'", decides=False
)  # blank, sign, dot or digit first


def _compare_conditions(test: Compare) -> list[_Condition]:
    value, operator = test.value, test.operator
    if isinstance(value, bool):
        names = TRUTHS[value]
        same = _Condition("{kind} = 'text' AND {value} COLLATE NOCASE IN (?, ?)", names)
        return [_Condition("{kind} = ?", names[:1]), same]
    numeric = f"{{kind}} IN {NUMBERS} AND {{value}} {operator} ?"
    if isinstance(value, str):
        found = [_Condition(f"{{kind}} = 'text' AND {{value}} {operator} ?", (value,))]
        if (read := number(value)) is not None:
            found.append(_Condition(numeric, (read,)))
        return found
    return [_Condition(numeric, (value,)), _NUMERIC_TEXT]


def _plain(kind: str, value: Any) -> Any:
    """The value that SQLite has read out of JSON, as Python reads it."""
    if kind == "array":
        return json.loads(value)
    return value if kind == "text" else None


def _value_at(meta: str, path: tuple[str, ...]) -> Any:
    """The value at a path of a JSON object; None if there is none."""
    try:
        value = json.loads(meta)
    except (ValueError, RecursionError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _kind(where: str) -> str:
    return f"CASE WHEN json_valid(meta) THEN json_type(meta, {where}) END"


def _value(where: str) -> str:
    return f"CASE WHEN json_valid(meta) THEN json_extract(meta, {where}) END"


@lru_cache(1024)
def _json_path(path: tuple[str, ...]) -> str | None:
    """The path for SQLite, quoted; None if it cannot find the field by it, as with a quote in its name."""
    text = "$" + "".join(f".{json.dumps(key)}" for key in path)
    if len(text) > MAX_PATH:
        return None
    document: Any = 1
    for key in reversed(path):
        document = {key: document}
    connection = sqlite3.connect(":memory:")
    try:
        query = "SELECT json_extract(?, ?), json_type(?, ?)"
        found = connection.execute(query, (json.dumps(document), text, "{}", text)).fetchone()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return "'" + text.replace("'", "''") + "'" if found == (1, None) else None
