"""BEIR's layout, with images: queries, items and qrels of one's own benchmark in one folder.

    queries.jsonl                     {"_id": "q1", "text": "…", "image": "q1.jpg", "instruction": "…"}
    items.jsonl or corpus.jsonl       {"_id": "d1", "title": "…", "text": "…", "image": "d1.jpg"}
    qrels/{split}.tsv or qrels.tsv    query-id, corpus-id, score; TREC's four columns are read too

A query or item has a text, an image (a path in the folder) or both. What a query wants is the modality of
most of its relevant items; queries of one kind are a row. All rows are searched in the same pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from genius.data.base import LabelledQuery, Qrels, Row, keep_named
from genius.data.instructions import TASKS, Instruction, Instructions, clean, default_instruction
from genius.data.lines import json_object, numbered_lines
from genius.data.report import Report
from genius.data.texts import clean_text
from genius.errors import BadData, BadInput
from genius.types import Item, Modality

QUERIES, ITEMS, QRELS = "queries.jsonl", ("items.jsonl", "corpus.jsonl"), "qrels.tsv"
ONLY_SPLIT = "test"  # of a folder with a single qrels.tsv
TASK_OF = {pair: task for task, pair in TASKS.items()}


class QueryInstructions(Instructions):
    """Each query's own instruction or, where it has none, the product's sentence for its modalities."""

    def __init__(self, own: Mapping[str, str], source: str) -> None:
        super().__init__({}, {}, source)
        self._own = own

    def of(self, query: LabelledQuery) -> tuple[Instruction, ...]:
        """The one way to ask `query`."""
        return (Instruction(1, self._own.get(query.id) or default_instruction(query.modality, query.want)),)


class Beir:
    """A folder in BEIR's layout. Items stream; queries and qrels are held in memory."""

    def __init__(self, root: str | Path, datasets: Sequence[str] = ()) -> None:
        self.root = Path(root)
        self.report = Report()
        self._datasets = tuple(datasets)
        self._labelled: dict[str, list[LabelledQuery]] = {}
        found = [self.root / name for name in ITEMS if (self.root / name).is_file()]
        if not (self.root / QUERIES).is_file() or not found:
            raise BadData(f"{self.root}: no BEIR data here; it holds {QUERIES}, {' or '.join(ITEMS)}, qrels")
        self._items = found[0]

    @cached_property
    def instructions(self) -> Instructions:
        """The queries' own instructions, and ours."""
        own = {name: str(fields.get("instruction") or "") for name, fields in self._queries.items()}
        return QueryInstructions(own, str(self.root / QUERIES))

    def splits(self) -> list[str]:
        """The splits there are qrels for."""
        return sorted(self._qrels_files)

    def rows(self, split: str) -> list[Row]:
        """One row for each pair of modalities asked and wanted."""
        return keep_named(list({query.row for query in self._of(split)}), self._datasets, self.root)

    def queries(self, split: str, row: Row | None = None) -> Iterator[LabelledQuery]:
        """The judged queries of the split."""
        rows = self._wanted(split, row)
        return (query for query in self._of(split) if query.row in rows)

    def pool(self, split: str, row: Row | None = None) -> Iterator[Item]:
        """All items, whatever the row."""
        self._wanted(split, row)
        seen: set[str] = set()
        for where, fields in _records(self._items):
            item = self._item(fields, where)
            if item.image is None and item.text is None:
                self.report.skip(where, f"item {item.id} has neither image nor text")
            elif item.id in seen:
                self.report.skip(where, f"item {item.id} is listed twice")
            else:
                seen.add(item.id)
                self.report.read += 1
                yield item

    def qrels(self, split: str, row: Row | None = None) -> Qrels:
        """The relevant items of the queries of a row, or of all."""
        judged = self._judged(split)
        return {query.id: judged[query.id] for query in self.queries(split, row)}

    def _wanted(self, split: str, row: Row | None) -> list[Row]:
        rows = self.rows(split)
        if row is not None and row not in rows:
            raise BadInput(f"no row {row} in {split} of {self.root}: it has {', '.join(map(str, rows))}")
        return rows if row is None else [row]

    @cached_property
    def _qrels_files(self) -> dict[str, Path]:
        files = {file.stem: file for file in (self.root / "qrels").glob("*.tsv")}
        single = self.root / QRELS
        return files or ({ONLY_SPLIT: single} if single.is_file() else {})

    @cached_property
    def _queries(self) -> dict[str, dict[str, Any]]:
        return {_string(f, "_id", where): f for where, f in _records(self.root / QUERIES)}

    @cached_property
    def _modality(self) -> dict[str, Modality]:
        """The modality of each item that some query is about."""
        named = {
            item for split in self._qrels_files for items in self._judged(split).values() for item in items
        }
        found = (self._item(fields, where) for where, fields in _records(self._items))
        return {item.id: item.modality for item in found if item.id in named and (item.image or item.text)}

    def _of(self, split: str) -> list[LabelledQuery]:
        """The queries of `split` that are judged and can be asked, in the order of their file."""
        if split not in self._qrels_files:
            raise BadData(f"{self.root}: no qrels of {split!r}; it has {', '.join(self.splits()) or 'none'}")
        if split not in self._labelled:
            judged = self._judged(split)
            every = (
                self._query(name, fields, judged.get(name, {})) for name, fields in self._queries.items()
            )
            self._labelled[split] = [query for query in every if query is not None]
        return self._labelled[split]

    def _query(
        self, name: str, fields: Mapping[str, Any], relevant: Mapping[str, int]
    ) -> LabelledQuery | None:
        """The query as asked; None, and perhaps a line in the report, for one that cannot be."""
        where = f"{self.root / QUERIES}: query {name}"
        text, image = clean_text(_string(fields, "text", where)).text or None, self._image(fields, where)
        if not relevant:  # of another split, or nobody's
            return None
        if text is None and image is None:
            self.report.skip(where, "it has neither image nor text")
            return None
        wanted = Counter(self._modality[item] for item in relevant if item in self._modality)
        if not wanted:
            self.report.skip(where, "none of its relevant items is among the items")
            return None
        have = Modality.PAIR if image and text else Modality.IMAGE if image else Modality.TEXT
        want = max(Modality, key=lambda modality: wanted[modality])
        if (have, want) not in TASK_OF:
            self.report.skip(where, f"{have} to {want} is no task of M-BEIR's")
            return None
        row = Row(self.root.resolve().name, TASK_OF[have, want])
        return LabelledQuery(name, row, have, text, image, tuple(relevant))

    def _item(self, fields: Mapping[str, Any], where: str) -> Item:
        title, text = _string(fields, "title", where), _string(fields, "text", where)
        whole = clean_text(f"{title} {text}").text
        return Item(_string(fields, "_id", where), self._image(fields, where), clean(whole) or None)

    def _image(self, fields: Mapping[str, Any], where: str) -> Path | None:
        name = _string(fields, "image", where)
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise BadData(f"{where}: image {name!r} leads out of the folder")
        return self.root / path if name else None

    def _judged(self, split: str) -> Qrels:
        """Relevance above 0 by query and item."""
        judged: Qrels = {}
        file = self._qrels_files[split]
        for number, line in numbered_lines(file):
            columns = (line or b"").decode(errors="replace").split()
            if number == 1 and columns and not columns[-1].lstrip("-").isdigit():
                continue  # the header
            try:
                query, item, relevance = columns if len(columns) == 3 else (columns[0], *columns[2:4])
                grade = int(relevance)
            except (ValueError, IndexError):
                raise BadData(f"{file}:{number}: expected query-id, corpus-id and score") from None
            if grade > 0:
                judged.setdefault(query, {})[item] = grade
        return judged


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its place."""
    for number, line in numbered_lines(file):
        where = f"{file}:{number}"
        try:
            fields = json_object(line)
        except ValueError as error:
            raise BadData(f"{where}: {error}") from None
        if not _string(fields, "_id", where):
            raise BadData(f"{where}: no _id")
        yield where, fields


def _string(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadData(f"{where}: {name}: a string is expected, not {value!r}")
    return value or ""
