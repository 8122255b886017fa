"""The dataset protocol (rows of labelled queries, each with a pool of items) and the registry of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from genius.data.instructions import TASKS, Instructions
from genius.data.report import Report
from genius.errors import BadData, BadInput
from genius.types import Item, Modality, Query

Qrels = dict[str, dict[str, int]]  # query id -> item id -> relevance, above 0 only


class Row(NamedTuple):
    """One line of a results table: a dataset asked one way, by M-BEIR's task number."""

    dataset: str
    task: int

    def __str__(self) -> str:
        return f"{self.dataset} {self.task}"

    @property
    def have(self) -> Modality:
        """The modality of the queries."""
        return TASKS[self.task][0]

    @property
    def want(self) -> Modality:
        """The modality of the items that are wanted."""
        return TASKS[self.task][1]


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query whose answers are known; `text` is as written in the source, without an instruction."""

    id: str
    row: Row
    modality: Modality  # as the source declares it; picks the instruction
    text: str | None = None
    image: Path | None = None
    positives: tuple[str, ...] = ()  # ids of items, of any dataset
    negatives: tuple[str, ...] = ()

    @property
    def dataset_id(self) -> str:
        """What stands before the colon of the id."""
        return self.id.partition(":")[0]

    @property
    def want(self) -> Modality:
        """The modality of the items that are wanted."""
        return self.row.want

    def asked(self, instruction: str) -> Query:
        """The query as a user would put it, with this instruction."""
        return Query(text=self.text, image=self.image, want=self.want, instruction=instruction, id=self.id)


@runtime_checkable
class Dataset(Protocol):
    """Labelled queries and pools, streamed: all that training and evaluation need of a format.

    `split` is a name out of `splits`. With a row, queries, pool and qrels are those of the row (local);
    without, those of all rows together (universal). Items come with clean texts and unopened images.
    """

    @property
    def report(self) -> Report:
        """What was left out while reading, and why."""

    @property
    def instructions(self) -> Instructions:
        """The sentences that may stand before a query's text."""

    def splits(self) -> list[str]:
        """The splits there are queries for."""

    def rows(self, split: str) -> list[Row]:
        """The rows of the split, by task and dataset."""

    def queries(self, split: str, row: Row | None = None) -> Iterator[LabelledQuery]:
        """The queries of a row, or of all rows one after the other."""

    def pool(self, split: str, row: Row | None = None) -> Iterator[Item]:
        """The row's own pool, or the union of all pools, each item once."""

    def qrels(self, split: str, row: Row | None = None) -> Qrels:
        """The relevant items of each query that has any."""


# format -> "module:class"; the class gets (root, datasets). A new format is one file and one line here.
DATASETS: dict[str, str] = {
    "mbeir": "genius.data.mbeir:MBeir",
    "karpathy": "genius.data.karpathy:Karpathy",
    "beir": "genius.data.beir:Beir",
}
AUTO = "auto"  # for `open_dataset`: whichever format the files are of


def open_dataset(format: str, root: str | Path, datasets: Sequence[str] = ()) -> Dataset:
    """The dataset of that format under `root`; `datasets` keeps only rows of these names, empty keeps all."""
    if format == AUTO:
        format = find_format(Path(root))
    if format not in DATASETS:
        raise BadInput(f"unknown dataset format {format!r}: choose one of {', '.join(sorted(DATASETS))}")
    module, name = DATASETS[format].split(":")
    opener: Callable[..., Dataset] = getattr(import_module(module), name)
    return opener(Path(root), datasets)


def find_format(root: Path) -> str:
    """The format of the files under `root`; raises BadData if they are of none."""
    if (root / "queries.jsonl").is_file():
        return "beir"
    if (root / "query").is_dir():
        return "mbeir"
    if root.is_file() or any(root.glob("*.json")):
        return "karpathy"
    raise BadData(
        f"{root}: no benchmark here; M-BEIR's root holds query/, cand_pool/ and qrels/, "
        "BEIR's queries.jsonl, Karpathy's dataset_*.json"
    )


def keep_named(rows: Sequence[Row], datasets: Sequence[str], root: Path) -> list[Row]:
    """`rows` by task and dataset, only those of `datasets` if any are given; an unknown name is refused."""
    known = sorted({row.dataset for row in rows})
    for name in datasets:
        if rows and name not in known:
            raise BadInput(f"no dataset {name!r} under {root}: it holds {', '.join(known)}")
    kept = [row for row in rows if not datasets or row.dataset in datasets]
    return sorted(kept, key=lambda row: (row.task, row.dataset))
