"""An evaluation from data and model to results: estimate, encode, search every row with every system, score.

Whatever takes long is kept on disk by content: vectors and codes (encoding.py), and the answers of each
system on each row. A run that was stopped, or that asks for one more system, does the rest only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, LabelledQuery, Row
from genius.errors import BadData, BadInput
from genius.evaluate.answers import Searcher
from genius.evaluate.contents import Contents, Progress, read_items, read_queries
from genius.evaluate.encoding import Embedding, Encoding, Pool, Questions, joined
from genius.evaluate.estimate import Estimate
from genius.evaluate.metrics import NOTHING, Judgements, stacked
from genius.evaluate.protocol import SETTINGS, Faults, Labels, RowFigures, figures, label
from genius.evaluate.results import Entry, Results
from genius.evaluate.systems import Found, System
from genius.evaluate.trec import write_run

BYTES_BESIDE = 1000  # memory per item for ids, keys and counts, beside its vector and codes


@dataclass(frozen=True, slots=True)
class Asked:
    """The queries of one row, once for each way to ask them."""

    row: Row
    ways: Sequence[Contents]


class Evaluation:
    """One model on one dataset in one setting. Nothing is encoded until `run`."""

    def __init__(
        self,
        dataset: Dataset,
        model: Embedding,
        *,
        setting: str,
        split: str = "test",
        cache: Path,
        all_instructions: bool = False,
        limit: int = 0,
        progress: Progress | None = None,
    ) -> None:
        if setting not in SETTINGS:
            raise BadInput(f"unknown setting {setting!r}: choose local or universal")
        if split not in dataset.splits():
            raise BadInput(f"no split {split!r}: the data has {', '.join(dataset.splits()) or 'none'}")
        self.setting, self.split, self.limit = setting, split, limit
        self.all_instructions = all_instructions
        self._dataset, self._model, self._cache = dataset, model, cache
        self._encoding = Encoding(model, cache, progress)
        self._asked = [self._ask(row) for row in dataset.rows(split)]
        wanted: list[Row | None] = [None] if setting == "universal" else [asked.row for asked in self._asked]
        self._pools = {
            row: read_items(dataset.pool(split, row), fuses=self._encoding.fuses) for row in wanted
        }

    @property
    def encoding(self) -> Encoding:
        """The caches of this model."""
        return self._encoding

    @property
    def rows(self) -> list[Row]:
        """The rows that will be run."""
        return [asked.row for asked in self._asked]

    @property
    def query_contents(self) -> list[Contents]:
        """The queries of each row, under their first instruction."""
        return [asked.ways[0] for asked in self._asked]

    def estimate(self) -> Estimate:
        """What `run` will cost; a few of the missing images and texts are encoded to time them."""
        everything = self._everything()
        images, texts = self._encoding.to_encode(everything)
        dim, levels = self._model.encoder.dim, len(self._model.sizes)
        queries = [len(way) for asked in self._asked for way in asked.ways]
        largest = max(map(len, self._pools.values()), default=0)
        held = sum(queries) if self.setting == "universal" else max(queries, default=0)
        return Estimate(
            items=sum(map(len, self._pools.values())),
            queries=sum(queries),
            images=images,
            texts=texts,
            memory=largest * (4 * dim + 2 * levels + BYTES_BESIDE) + held * 8 * dim,
            disk=(images + texts) * (4 * dim + 16),
            seconds=self._encoding.seconds_to_encode(everything),
        )

    def run(
        self,
        systems: Sequence[System],
        *,
        names: Mapping[str, Any],
        runs: Path | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Results:
        """Figures of every system on every row. `names` describes data, model and recipe in the results.

        Systems of the same name are one system under several seeds: its figures are their mean.
        `runs` is a folder for TREC run files. `say` gets a line whenever a system has finished a row.
        """
        self._encoding.encode(self._everything())
        entries: list[Entry] = []
        not_run: list[dict[str, Any]] = []
        for pool, row_of, group in self._groups():
            judged = [(a, label(a.row, a.ways[0].ids, self._qrels(a.row), row_of)) for a in group]
            questions = {a.row: [self._encoding.questions(way) for way in a.ways] for a in group}
            for same in _by_name(systems):
                made_for = [(a, labels) for a, labels in judged if same[0].answers(a.row)]
                not_run += [_left(same[0], a.row) for a, _ in judged if not same[0].answers(a.row)]
                if not made_for:
                    continue
                searchers = [Searcher(s, pool, self._cache, self._model.fingerprint) for s in same]
                for asked, labels in made_for:
                    ways = questions[asked.row]
                    answers = [[searcher.search(way) for way in ways] for searcher in searchers]
                    size = searchers[0].bytes_per_item()
                    entry = self._entry(asked.row, same[0], labels, answers, pool, ways[0], size)
                    entries.append(entry)
                    if runs is not None:
                        self._write_run(runs, same[0], asked.row, pool, ways[0], answers[0][0][0])
                    if say is not None:
                        say(f"{same[0].name}, {asked.row}: {100 * entry.figures.headline:.1f}")
        order = {system.name: number for number, system in enumerate(systems)}
        entries.sort(key=lambda e: (order[e.figures.system], self.rows.index(e.figures.row)))
        return Results(
            setting=self.setting,
            split=self.split,
            fingerprint=self._model.fingerprint,
            entries=entries,
            systems_used={
                same[0].name: dict(same[0].settings) | ({"seeds": len(same)} if len(same) > 1 else {})
                for same in _by_name(systems)
            },
            instructions="all" if self.all_instructions else "chosen by a hash of the query id",
            limit=self.limit,
            not_run=not_run,
            reading=list(self._dataset.report.lines()),
            **names,
        )

    def all_at_once(self) -> tuple[Pool, Questions, Judgements]:
        """The universal pool, and the queries of all rows one after the other with their judgements."""
        if self.setting != "universal":
            raise BadInput("queries of all rows share a pool in the universal setting only")
        self._encoding.encode(self._everything())
        ((pool, row_of, group),) = self._groups()
        labels = [label(a.row, a.ways[0].ids, self._qrels(a.row), row_of).judgements for a in group]
        return pool, joined([self._encoding.questions(a.ways[0]) for a in group]), stacked(labels)

    def _entry(
        self,
        row: Row,
        system: System,
        labels: Labels,
        answers: Sequence[Sequence[tuple[Found, float]]],  # for each seed, for each way to ask
        pool: Pool,
        questions: Questions,
        size: float,
    ) -> Entry:
        faults = Faults(
            unreadable_queries=int((~questions.askable).sum()), unreadable_items=len(pool.unreadable)
        )

        def of(lists: Sequence[NDArray[np.integer]]) -> RowFigures:
            return figures(row, self.setting, system.name, labels, lists, len(pool), faults)

        by_seed = [[found.rows for found, _ in ways] for ways in answers]
        return Entry(
            figures=of([rows for ways in by_seed for rows in ways]),
            fingerprint=self._model.fingerprint,
            pool_hash=pool.digest,
            queries_hash=questions.digest,
            bytes_per_item=size,
            seconds=sum(spent for ways in answers for _, spent in ways) / len(answers),
            seeds=[of(ways).headline for ways in by_seed] if len(by_seed) > 1 else [],
        )

    def _groups(self) -> Iterator[tuple[Pool, dict[str, int], list[Asked]]]:
        """Each pool with the rows that are searched in it; one pool is held at a time."""
        for row, contents in self._pools.items():
            pool = self._encoding.pool(contents)
            row_of = {item: number for number, item in enumerate(pool.ids)}
            yield pool, row_of, [asked for asked in self._asked if row is None or asked.row == row]

    def _everything(self) -> list[Contents]:
        return [*self._pools.values(), *(way for asked in self._asked for way in asked.ways)]

    def _ask(self, row: Row) -> Asked:
        queries = list(self._dataset.queries(self.split, row))
        if not queries:
            raise BadData(f"{row}: no queries in split {self.split}")
        if self.limit:
            chosen = {query.id for query in islice(sorted(queries, key=_shuffled), self.limit)}
            queries = [query for query in queries if query.id in chosen]
        table = self._dataset.instructions
        if not self.all_instructions:
            ways: list[Callable[[LabelledQuery], str]] = [lambda query: table.chosen(query).sentence]
        else:
            most = max(len(table.of(query)) for query in queries)
            ways = [_numbered(table.of, number) for number in range(most)]
        return Asked(row, [read_queries(queries, way, fuses=self._encoding.fuses) for way in ways])

    def _qrels(self, row: Row) -> dict[str, dict[str, int]]:
        return self._dataset.qrels(self.split, row)

    def _write_run(
        self, folder: Path, system: System, row: Row, pool: Pool, questions: Questions, found: Found
    ) -> None:
        lists = {
            query: [
                (pool.ids[item], float(score))
                for item, score in zip(found.rows[number], found.scores[number], strict=True)
                if item != NOTHING
            ]
            for number, query in enumerate(questions.ids)
        }
        name = f"{row.dataset}_task{row.task}_{self.split}_{self.setting}.{system.name}.trec"
        write_run(folder / name, lists, system.name)


def _by_name(systems: Sequence[System]) -> list[list[System]]:
    """Systems of the same name together, in the order of their first ones."""
    found: dict[str, list[System]] = {}
    for system in systems:
        found.setdefault(system.name, []).append(system)
    return list(found.values())


def _numbered(of: Callable[[LabelledQuery], Sequence[Any]], number: int) -> Callable[[LabelledQuery], str]:
    def sentence(query: LabelledQuery) -> str:
        ways = of(query)
        return str(ways[number % len(ways)].sentence)

    return sentence


def _shuffled(query: LabelledQuery) -> bytes:
    """A fixed shuffle of the queries, so that a limit takes a fair sample."""
    return hashlib.blake2b(query.id.encode(errors="surrogatepass"), digest_size=8).digest()


def _left(system: System, row: Row) -> dict[str, Any]:
    return {
        "system": system.name,
        "dataset": row.dataset,
        "task": row.task,
        "reason": "not made for this task",
    }
