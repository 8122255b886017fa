"""Which rows pass a filter: SQLite's answers, with and without its indexes, are those of plain Python.

The oracle is written here a second time, for values and filters that hypothesis makes up: each filter comes
as a text and as the function that it should be.
"""

from __future__ import annotations

import json
import operator
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genius.filter import rows as finding
from genius.query.filtered import Filters
from genius.query.view import PoolView
from genius.store.index import Index
from genius.store.records import Amendment, Record, Stamp
from genius.types import Modality

NAMES = [
    "price",
    "größe",
    'a"b',
    "x'); drop table items; --",
    "a.b",
    "",
    "价格",
    "back\\slash",
    "$",
    "line\nbreak",
]
TEXTS = [
    "sofa",
    "Sofa",
    "",
    " 5",
    "5.0",
    "5",
    "10",
    "-1e1",
    "true",
    "TRUE",
    "yes",
    "No",
    "it's",
    "100%",
    "a_s",
    "\\_",
    "ü",
    "👍",
    "zz",
]
NUMBERS = [0, 1, 5, 5.0, -10, 0.1, 10, 49.99, 2**53 + 1, 2**63, 10**30, -0.0, 1e-300]
MISSING = object()

plain = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.booleans()
values = (
    plain
    | st.none()
    | st.integers(-20, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(plain | st.none(), max_size=3)
    | st.just({"deep": 5})
)
metas = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)

OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
READS_AS_NUMBER = re.compile(
    r"[ \t\n\r\f\v]*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[ \t\n\r\f\v]*", re.ASCII | re.I
)


def numeric(value: Any) -> Any:
    """A number as SQLite has it; None for what does not read as one."""
    if isinstance(value, str):
        if not READS_AS_NUMBER.fullmatch(value):
            return None
        value = float(value) if re.search("[.eE]", value) else int(value)
    return float(value) if isinstance(value, int) and abs(value) > 2**63 - 1 else value


def passes(value: Any, symbol: str, wanted: Any) -> bool:
    """Whether a stored value compares so with one in a filter."""
    if isinstance(value, list):
        return any(passes(one, symbol, wanted) for one in value)
    if value is MISSING or value is None or isinstance(value, dict):
        return False
    if isinstance(wanted, bool) or isinstance(value, bool):
        if isinstance(value, str):
            return symbol == "=" and value.lower() in (("true", "yes") if wanted else ("false", "no"))
        return symbol == "=" and isinstance(wanted, bool) and value is wanted
    if isinstance(value, str) and isinstance(wanted, str):
        return bool(OPERATORS[symbol](value, wanted))
    left, right = numeric(value), numeric(wanted)
    return left is not None and right is not None and bool(OPERATORS[symbol](left, right))


def there(value: Any) -> bool:
    return value is not MISSING and value is not None


def written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def like(value: Any, pattern: str) -> bool:
    if isinstance(value, list):
        return any(like(one, pattern) for one in value)
    anything = {"%": ".*", "_": "."}
    tokens = re.findall(r"\\[%_\\]|.", pattern, re.S)  # a backslash takes the next character as it is
    expression = "".join(anything.get(token) or re.escape(token[-1]) for token in tokens)
    return isinstance(value, str) and re.fullmatch(expression, value, re.I | re.S) is not None


@st.composite
def single(draw: Any) -> tuple[str, Any]:
    """A test as a text, and as a function of an item's metadata."""
    name = draw(st.sampled_from(NAMES))

    def get(meta: dict[str, Any]) -> Any:
        return meta.get(name, MISSING)

    kind = draw(st.sampled_from(["compare", "not equal", "in", "not in", "like", "has", "missing", "alone"]))
    wanted = draw(plain)
    if kind == "compare":
        symbols = ["="] if isinstance(wanted, bool) else list(OPERATORS)
        symbol = draw(st.sampled_from(symbols))
        return f"{named(name)} {symbol} {written(wanted)}", lambda meta: passes(get(meta), symbol, wanted)
    if kind == "not equal":
        return (
            f"{named(name)} != {written(wanted)}",
            lambda meta: there(get(meta)) and not passes(get(meta), "=", wanted),
        )
    if kind in ("in", "not in"):
        several = draw(st.lists(plain, min_size=1, max_size=4))
        text = f"{named(name)} {kind} ({', '.join(map(written, several))})"

        def one_of(meta: dict[str, Any]) -> bool:
            return any(passes(get(meta), "=", one) for one in several)

        return text, one_of if kind == "in" else lambda meta: there(get(meta)) and not one_of(meta)
    if kind == "like":
        pattern = draw(st.text("aofsS%_5ü\\", max_size=5))
        return f"{named(name)} like {written(pattern)}", lambda meta: like(get(meta), pattern)
    if kind == "has":
        return f"has {named(name)}", lambda meta: there(get(meta))
    if kind == "missing":
        return f"{named(name)} is missing", lambda meta: not there(get(meta))
    return named(name), lambda meta: passes(get(meta), "=", True)


def combined(inner: Any) -> Any:
    pairs = st.tuples(inner, inner)
    return (
        inner.map(lambda one: (f"not ({one[0]})", lambda meta: not one[1](meta)))
        | pairs.map(lambda two: (f"({two[0][0]}) and {two[1][0]}", lambda m: two[0][1](m) and two[1][1](m)))
        | pairs.map(lambda two: (f"(({two[0][0]}) or ({two[1][0]}))", lambda m: two[0][1](m) or two[1][1](m)))
    )


filters = st.recursive(single(), combined, max_leaves=4)


def record(number: int, meta: dict[str, Any], **fields: Any) -> Record:
    kind = (Modality.IMAGE, Modality.TEXT, Modality.PAIR)[number % 3]
    codes = np.array([number % 3, number % 4, number // 4 % 4], dtype=np.uint16)
    return Record(f"i{number}", kind, codes, meta=json.dumps(meta, sort_keys=True), **fields)


def new_index(folder: Any) -> Index:
    Index.create(folder, model="m", fingerprint="f", sizes=[3, 4, 4], dim=2, vectors=False)
    return Index.open(folder)


def kept(index: Index, found: Filters, where: str, items: int = 0) -> set[str]:
    """Ids of the items that a filter keeps."""
    found.prepare(where, items)
    view = PoolView(index.snapshot())
    pool = found.pool(where, view)
    rows = view.rows(np.flatnonzero(pool.mask))
    assert sum(segment.allowed.items for segment in pool.segments if segment.allowed) == len(rows)
    return {one.id for one in index.truth.records(rows.tolist()).values()}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    items=st.lists(metas, min_size=1, max_size=12),
    several=st.lists(filters, min_size=1, max_size=4),
    indexed=st.booleans(),
)
def test_a_filter_keeps_what_plain_python_keeps(tmp_path_factory, items, several, indexed):
    with new_index(tmp_path_factory.mktemp("index")) as index:
        half = len(items) // 2
        index.add([record(number, meta) for number, meta in enumerate(items[:half])])
        index.compact()
        found = Filters(index)
        size = finding.INDEXED_ITEMS if indexed else 0
        for where, _ in several:
            found.prepare(where, size)
        metas = dict(enumerate(items[:half]))
        for where, function in several:  # before there are new items
            assert kept(index, found, where, size) == {f"i{n}" for n, m in metas.items() if function(m)}, (
                where
            )
        index.add([record(number, meta) for number, meta in enumerate(items[half:], half)])
        index.remove(["i0"])
        metas = {number: meta for number, meta in enumerate(items) if number}
        for where, function in several:
            assert kept(index, found, where, size) == {f"i{n}" for n, m in metas.items() if function(m)}, (
                where
            )
        index.compact()
        for where, function in several:
            assert kept(index, found, where, size) == {f"i{n}" for n, m in metas.items() if function(m)}, (
                where
            )


@pytest.fixture
def index(tmp_path):
    with new_index(tmp_path / "index") as opened:
        yield opened


def test_fields_that_every_item_has(index):
    day = 86_400 * 10**9
    index.add(
        [
            record(0, {}, path="/p/a/1.jpg", source="/p", text="An oak", stamp=Stamp(mtime_ns=19_000 * day)),
            record(
                1, {"date": "2024-05-31T10:00:00"}, path="/p/2.jpg", source="/p", stamp=Stamp(mtime_ns=day)
            ),
            record(2, {"date": "2023-01-01", "modality": "odd"}, path="/t/img/3.jpg", source="/t/rows.csv"),
            record(3, {"folder": "own"}, text="A pine"),
            record(4, {}, path="/elsewhere/deep/5.jpg", source="/p"),
        ]
    )
    found = Filters(index)

    def ids(where: str) -> set[str]:
        return kept(index, found, where)

    assert ids("folder = 'a'") == {"i0"} and ids("folder = ''") == {"i1"} and ids("folder = 'img'") == {"i2"}
    assert ids("folder = 'deep'") == {"i4"} and ids("folder is missing") == {"i3"}
    assert ids("meta.folder = 'own'") == {"i3"}
    assert ids("date >= '2024'") == {"i1"}  # of the metadata, where they have one
    assert ids("date < '2024'") == {"i0", "i2"} and ids("date like '2022-01-08%'") == {"i0"}
    assert ids("date is missing") == {"i3", "i4"} and ids("modified < '2000'") == {"i1"}
    assert ids("modality = 'image'") == {"i0", "i3"} and ids("modality in ('text', 'pair')") == {
        "i1",
        "i2",
        "i4",
    }
    assert ids("meta.modality = 'odd'") == {"i2"} and ids("not modality = 'image' and not has date") == {"i4"}
    assert (
        ids("id = 'i2'") == {"i2"}
        and ids("id in ('i0', 'i9')") == {"i0"}
        and ids("id > 'i2'") == {"i3", "i4"}
    )
    assert ids(r"id like 'i\_'") == set() and len(ids("id like 'i_'")) == 5
    assert ids("text like '%OAK%'") == {"i0"} and ids("text is missing") == {"i1", "i2", "i4"}


def test_the_truth_values_of_tables(index):
    """A column of yes and no, as shops export it; with and without an index of the field."""
    answers = ["yes", "No", "YES", "maybe", "true", True, False, "no", "", None, 1]
    index.add([record(number, {"sold": answer}) for number, answer in enumerate(answers)])
    for size in (len(answers), finding.INDEXED_ITEMS):
        found = Filters(index)
        assert kept(index, found, "sold", size) == {"i0", "i2", "i4", "i5"}
        assert kept(index, found, "sold = false", size) == {"i1", "i6", "i7"}
        assert kept(index, found, "sold != true", size) == {"i1", "i3", "i6", "i7", "i8", "i10"}
        assert kept(index, found, "sold = 'yes'", size) == {"i0"}


def test_a_list_of_10000_values(index):
    index.add([record(number, {"sku": str(number), "n": number}) for number in range(500)])
    found = Filters(index)
    many = ", ".join(f"'{number}'" for number in range(250, 10_250))
    assert kept(index, found, f"sku in ({many})", finding.INDEXED_ITEMS) == {f"i{n}" for n in range(250, 500)}
    assert len(kept(index, found, f"n not in ({many})")) == 250  # texts that read as numbers


def test_what_is_amended_in_place_is_seen(index):
    index.add([record(0, {"price": 10}), record(1, {"price": 99})])
    found = Filters(index)
    assert kept(index, found, "price < 50") == {"i0"}
    (row, _) = index.truth.record("i1")
    index.add([], [Amendment(row, None, None, '{"price": 20}', Stamp())])
    assert kept(index, found, "price < 50") == {"i0", "i1"}


def test_only_new_rows_are_looked_at_again(index, monkeypatch):
    index.add([record(number, {"price": number}) for number in range(10)])
    found, asked = Filters(index), []
    real = finding._find
    monkeypatch.setattr(finding, "_find", lambda *args: asked.append(args[2]) or real(*args))
    assert len(kept(index, found, "price < 5")) == 5
    assert len(kept(index, found, "price < 5 and price >= 0")) == 5
    index.add([record(10, {"price": 1})])
    index.remove(["i0"])
    assert len(kept(index, found, "price < 5")) == 5
    assert asked == [0, 0, 10]


def test_indexes_are_made_for_large_collections_only_and_not_without_end(index):
    index.add([record(0, {"price": 1})])
    found = Filters(index)

    def names() -> list[str]:
        query = "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'field_%'"
        return [name for (name,) in index.truth.connection.execute(query)]

    kept(index, found, "price = 1", finding.INDEXED_ITEMS - 1)
    assert not names()
    kept(index, found, "price = 1", finding.INDEXED_ITEMS)
    assert len(names()) == 1
    for number in range(finding.MAX_INDEXES + 5):
        assert kept(index, found, f"field{number} = 1", finding.INDEXED_ITEMS) == set()
    assert len(names()) == finding.MAX_INDEXES
    assert not index.truth.integrity()
    index.add([record(1, {"price": 1, "field3": 1})])
    assert kept(index, found, "field3 = 1") == {"i1"}


def test_another_writer_or_a_folder_that_cannot_be_written_holds_nothing_up(index, monkeypatch):
    index.add([record(0, {"price": 1})])
    with index.writing():  # by this thread: a second one would be told that it is locked
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as other:
            assert other.submit(kept, index, Filters(index), "price = 1", 10**6).result() == {"i0"}
    names = index.truth.connection.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'field_%'")
    assert names.fetchone() == (0,)


def test_metadata_that_is_no_json_passes_no_test(index):
    """Older versions stored NaN; a damaged file may have anything."""
    index.add([record(0, {"price": 1}), record(1, {})])
    index.truth.connection.execute("UPDATE items SET meta = '{\"price\": NaN' WHERE id = 'i1'")
    found = Filters(index)
    assert kept_rows(index, found, "price = 1") == [1] and kept_rows(index, found, "not price = 1") == [2]
    assert kept_rows(index, found, "has price", finding.INDEXED_ITEMS) == [1]


def kept_rows(index: Index, found: Filters, where: str, items: int = 0) -> list[int]:
    found.prepare(where, items)
    view = PoolView(index.snapshot())
    rows: list[int] = view.rows(np.flatnonzero(found.pool(where, view).mask)).tolist()
    return rows
