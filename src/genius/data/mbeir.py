"""M-BEIR and every dataset in its layout: queries, pools, qrels and instructions, read line by line."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from genius.data.base import LabelledQuery, Qrels, Row, keep_named
from genius.data.instructions import TASKS, Instructions, clean
from genius.data.lines import json_object, numbered_lines
from genius.data.report import Report
from genius.data.texts import clean_text
from genius.errors import BadData, BadInput
from genius.types import Item, Modality

SPLITS = ("train", "val", "test", "union_train", "union_val")
UNION = "union_"  # union_train reads query/union_train, which may repeat queries to balance the datasets
# dataset names by id, for a union file whose root has no instruction table
NAMES = (
    "visualnews",
    "fashion200k",
    "webqa",
    "edis",
    "nights",
    "oven",
    "infoseek",
    "fashioniq",
    "cirr",
    "mscoco",
    "flickr30k",
)
_NAME = re.compile(r"mbeir_(.+?)(?:_task(\d+))?(?:_(train|val|test))?(?:_qrels|_cand_pool)?")


class _File(NamedTuple):
    """A file and what its name says; dataset None: of several datasets, task None: of several tasks."""

    path: Path
    dataset: str | None
    task: int | None
    split: str | None


class MBeir:
    """A data root in M-BEIR's layout. Everything streams; a broken line raises BadData with file and line."""

    def __init__(self, root: str | Path, datasets: Sequence[str] = ()) -> None:
        self.root = Path(root)
        self.report = Report()
        self._datasets = tuple(datasets)
        self._rows: dict[str, list[Row]] = {}
        if not (self.root / "query").is_dir():
            raise BadData(f"{self.root}: no M-BEIR data here; its root holds query/, cand_pool/ and qrels/")

    @cached_property
    def instructions(self) -> Instructions:
        """The table in instructions/query_instructions.tsv."""
        return Instructions.read(self.root / "instructions" / "query_instructions.tsv")

    def splits(self) -> list[str]:
        """The splits there are queries for."""
        return [split for split in SPLITS if _files(self.root / "query" / split, ".jsonl")]

    def rows(self, split: str) -> list[Row]:
        """The rows of `split`, by task and dataset; a file that does not name its task is scanned."""
        if split not in self._rows:
            found: set[Row] = set()
            for file in self._query_files(split):
                if file.dataset is not None and file.task is not None:
                    found.add(Row(file.dataset, file.task))
                else:
                    found.update(query.row for query in self._read_queries(file))
            self._rows[split] = keep_named(list(found), self._datasets, self.root)
        return self._rows[split]

    def queries(self, split: str, row: Row | None = None) -> Iterator[LabelledQuery]:
        """The queries of `row`, or of all rows; their positives may be items of another dataset."""
        wanted: Container[Row] | None = None  # None: all
        if row is not None or self._datasets:
            wanted = self._wanted(split, row)
        for file in self._query_files(split):
            named = file.dataset is not None and file.task is not None
            if named and wanted is not None and (file.dataset, file.task) not in wanted:
                continue
            for query in self._read_queries(file):
                if wanted is None or query.row in wanted:
                    yield query

    def pool(self, split: str, row: Row | None = None) -> Iterator[Item]:
        """The local pool of `row`, or the union pool of the split, joined from local pools if it has no file.

        The train split has a union pool only.
        """
        split = split.removeprefix(UNION)
        local = self._local_pools(split)
        if row is not None:
            file = local.get((row.dataset, row.task)) or local.get((row.dataset, None))
            if file is None:
                raise BadData(
                    f"{self.root}: {row} has no pool of its own for {split}; read the union, pool({split!r})"
                )
            return self._read_pools([file])
        union = self.root / "cand_pool" / "global" / f"mbeir_union_{split}_cand_pool.jsonl"
        if not union.is_file() and not local:
            raise BadData(f"{union}: missing, and cand_pool/local has no pools for {split} to join instead")
        return self._read_pools([union] if union.is_file() else list(local.values()))

    def qrels(self, split: str, row: Row | None = None) -> Qrels:
        """Relevance above 0 by query and item; where there is no qrels file, the positives of the queries."""
        split = split.removeprefix(UNION)
        files = _files(self.root / "qrels" / split, ".txt")
        judged: Qrels = {}
        for each in self._wanted(split, row):
            own = [file for file in files if file.dataset == each.dataset and file.task in (None, each.task)]
            for file in own:
                _read_qrels(file.path, each.task, judged)
            if not own:
                for query in self.queries(split, each):
                    judged.setdefault(query.id, {}).update(dict.fromkeys(query.positives, 1))
        return {query: items for query, items in judged.items() if items}

    def _wanted(self, split: str, row: Row | None) -> list[Row]:
        rows = self.rows(split)
        if row is not None and row not in rows:
            raise BadInput(f"no row {row} in {split} of {self.root}: it has {', '.join(map(str, rows))}")
        return rows if row is None else [row]

    def _query_files(self, split: str) -> list[_File]:
        """One file per row, else the union file of the split."""
        for folder in (split, UNION + split):
            if files := _files(self.root / "query" / folder, ".jsonl"):
                single = [file for file in files if file.dataset is not None]
                return single or files
        raise BadData(f"{self.root / 'query' / split}: no queries; this root has {', '.join(self.splits())}")

    def _local_pools(self, split: str) -> dict[tuple[str, int | None], Path]:
        """(dataset, task) to its pool: the split's own file, else (not for train) the one of all splits."""
        files = [
            file for file in _files(self.root / "cand_pool" / "local", ".jsonl") if file.dataset is not None
        ]
        shared = [file for file in files if file.split is None and split != "train"]
        own = [file for file in files if file.split == split]
        return {(file.dataset or "", file.task): file.path for file in (*shared, *own)}

    def _read_queries(self, file: _File) -> Iterator[LabelledQuery]:
        for number, line in numbered_lines(file.path):
            try:
                yield self._query(json_object(line), file.dataset)
            except (ValueError, BadInput) as error:
                raise BadData(f"{file.path}:{number}: {error}") from None

    def _read_pools(self, files: Sequence[Path]) -> Iterator[Item]:
        seen = Seen()
        for file in files:
            for number, line in numbered_lines(file):
                try:
                    item = self._item(json_object(line))
                except (ValueError, BadInput) as error:
                    raise BadData(f"{file}:{number}: {error}") from None
                if item.image is None and item.text is None:
                    self.report.skip(f"{file}:{number}", f"item {item.id} has neither image nor text")
                elif seen.add(item.id):
                    self.report.read += 1
                    yield item
                elif (
                    len(files) == 1
                ):  # local pools that are joined may share items; one file may not repeat them
                    self.report.skip(f"{file}:{number}", f"item {item.id} is listed twice")

    def _query(self, fields: dict[str, Any], dataset: str | None) -> LabelledQuery:
        task = fields.get("task_id")
        if not isinstance(task, int) or isinstance(task, bool) or task not in TASKS:
            raise ValueError(f"task_id {task!r}: M-BEIR has {', '.join(map(str, TASKS))}")
        qid = _string(fields, "qid", required=True)
        modality = Modality.parse(_string(fields, "query_modality", required=True))
        text, image = self._parts(modality, _string(fields, "query_txt"), _string(fields, "query_img_path"))
        if image is None and modality is not Modality.TEXT:
            raise ValueError(f"query {qid} is of modality {modality} but has no query_img_path")
        row = Row(dataset or self._name(qid.partition(":")[0]), task)
        return LabelledQuery(
            qid, row, modality, text, image, _ids(fields, "pos_cand_list"), _ids(fields, "neg_cand_list")
        )

    def _item(self, fields: dict[str, Any]) -> Item:
        modality = Modality.parse(_string(fields, "modality", required=True))
        text, image = self._parts(modality, _string(fields, "txt"), _string(fields, "img_path"))
        return Item(_string(fields, "did", required=True), image, clean(text) or None)

    def _parts(self, modality: Modality, text: str, image: str) -> tuple[str | None, Path | None]:
        """The text and the image path, each only if the modality names it and it is there."""
        words = clean_text(text).text if modality is not Modality.IMAGE else ""
        if not image or modality is Modality.TEXT:
            return words or None, None
        path = PurePosixPath(image)
        if path.is_absolute() or ".." in path.parts or "\0" in image:
            raise ValueError(f"image path {image!r} leads out of the data root")
        return words or None, self.root / path

    def _name(self, dataset: str) -> str:
        """The name of a dataset id: by the instruction table, by the release, else the id itself."""
        try:
            names = self.instructions.names
        except BadData:
            names = {str(number): name for number, name in enumerate(NAMES)}
        return names.get(dataset, dataset)


class Seen:
    """A set of ids; a numbered one ("9:1234") costs one bit, so that millions of them fit in memory."""

    def __init__(self) -> None:
        self._bits: dict[str, bytearray] = {}
        self._others: set[str] = set()

    def add(self, item: str) -> bool:
        """Add `item`; True if it is new."""
        dataset, _, digits = item.partition(":")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 8 or str(int(digits)) != digits:
            new = item not in self._others
            self._others.add(item)
            return new
        number = int(digits)
        bits = self._bits.setdefault(dataset, bytearray())
        place, bit = number // 8, 1 << number % 8
        if place >= len(bits):
            bits.extend(bytes(max(place + 1, 2 * len(bits)) - len(bits)))
        new = not bits[place] & bit
        bits[place] |= bit
        return new


def _files(folder: Path, suffix: str) -> list[_File]:
    """The files of `folder` that M-BEIR knows by their name, in order."""
    found = []
    for path in sorted(folder.glob(f"mbeir_*{suffix}")):
        if match := _NAME.fullmatch(path.stem):
            name, task, split = match.groups()
            dataset = None if name.startswith("union") else name
            found.append(_File(path, dataset, None if task is None else int(task), split))
    return found


def _read_qrels(file: Path, task: int, judged: Qrels) -> None:
    """Put the relevant items of `task` in `file` into `judged`."""
    for number, line in numbered_lines(file):
        columns = (line or b"").decode(errors="replace").split()
        try:
            query, _, item, relevance = columns[:4]
            relevant = int(relevance) > 0 and (len(columns) < 5 or int(columns[4]) == task)
        except ValueError:
            raise BadData(
                f"{file}:{number}: expected 'query 0 item relevance task', blank-separated"
            ) from None
        if relevant:
            judged.setdefault(query, {})[item] = int(relevance)


def _string(fields: dict[str, Any], name: str, *, required: bool = False) -> str:
    """The string under `name`, "" if it is absent or null and not required."""
    value = fields.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value.strip()):
        raise ValueError(f"{name}: a string is expected, not {value!r}")
    return value


def _ids(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    """The item ids under `name`, written as strings or as objects with a `did`."""
    values = fields.get(name) or []
    if not isinstance(values, list):
        raise ValueError(f"{name}: a list is expected")  # noqa: TRY004
    ids: list[Any] = [value.get("did") if isinstance(value, dict) else value for value in values]
    if not all(isinstance(value, str) and value for value in ids):
        raise ValueError(f"{name}: item ids, or objects with a did, are expected")
    return tuple(ids)
