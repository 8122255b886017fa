"""The evaluator: encode data with a model, search every row with every system, compute the metrics.

Whatever takes long is cached by content: embeddings and codes (embeddings.py), and the answers of each
system on each row. A run that was stopped, or that asks for one more system, does only the rest.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from genius.data.base import Dataset, LabelledQuery, Row
from genius.errors import BadData, BadInput
from genius.evaluate.cache import Inputs, Key, Progress, key_of, read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries, EncoderOnly
from genius.evaluate.environment import SEARCH_SOURCES, environment, threads
from genius.evaluate.intervals import group_queries
from genius.evaluate.metrics import NO_ITEM, Ints, Qrels
from genius.evaluate.options import EvalOptions
from genius.evaluate.protocol import DEPTH, SETTINGS, Faults, RowMetrics, RowQrels, match_qrels, row_metrics
from genius.evaluate.results import Entry, Results
from genius.evaluate.systems import System, TopK
from genius.evaluate.trec import write_run
from genius.files import storage_errors, write_file

if TYPE_CHECKING:
    from genius.model import Model


class CachedSearch:
    """A system on a pool whose answers are cached; the pool is indexed once an answer is missing.

    The key holds all that an answer depends on: the system and its settings (the hash of a decoder among
    them), the model's fingerprint, the hashes of pool and queries, and the environment of the search.
    """

    def __init__(
        self, system: System, pool: EncodedPool, cache: Path, fingerprint: str, device: object = "cpu"
    ) -> None:
        self._system, self._pool, self._folder = system, pool, cache / "answers"
        settings = json.dumps(dict(system.settings), sort_keys=True, default=str)
        where = f"{environment(device, *SEARCH_SOURCES)}, {threads()}"
        parts = (system.name, settings, fingerprint, pool.digest, where, str(DEPTH))
        self._key = [part.encode() for part in parts]
        self._indexed = False
        self.bytes_per_item = float("nan")  # known after a search

    def search(self, queries: EncodedQueries) -> tuple[TopK, float]:
        """The DEPTH best items of each query, and the seconds that the search took (now or then)."""
        file = self._folder / f"{key_of(*self._key, queries.digest.encode()).hex()}.safetensors"
        cached = _load_answers(file)
        if cached is not None:
            self.bytes_per_item = float(cached["size"][0])
            return TopK(cached["rows"], cached["scores"]), float(cached["seconds"][0])
        if not self._indexed:
            self._system.index(self._pool)
            self._indexed = True
            self.bytes_per_item = self._system.bytes_per_item()
        start = time.perf_counter()
        top = self._system.search(queries, DEPTH)
        seconds = time.perf_counter() - start
        top.rows[~queries.valid] = NO_ITEM
        tensors: dict[str, NDArray[Any]] = {
            "rows": top.rows,
            "scores": top.scores,
            "seconds": np.array([seconds]),
            "size": np.array([self.bytes_per_item]),
        }
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_file(file, [save(tensors)])
        return top, seconds


def _load_answers(file: Path) -> dict[str, NDArray[Any]] | None:
    """The answers in `file`, None where there are none or they are damaged."""
    try:
        cached = load_file(file)
    except (OSError, SafetensorError):
        return None
    return cached if {"rows", "scores", "seconds", "size"} <= cached.keys() else None


class Evaluator:
    """One model on one dataset in one setting. Nothing is encoded until `run`."""

    def __init__(
        self,
        dataset: Dataset,
        model: Model | EncoderOnly,
        options: EvalOptions,
        cache: Path,
        progress: Progress | None = None,
    ) -> None:
        split = options.split
        if options.setting not in SETTINGS:
            raise BadInput(f"unknown setting {options.setting!r}: choose local or universal")
        if split not in dataset.splits():
            raise BadInput(f"no split {split!r}: the data has {', '.join(dataset.splits()) or 'none'}")
        self.options = options
        self.embedder = Embedder(model, cache, progress)
        self._dataset, self._model, self._cache = dataset, model, cache
        self.rows = list(dataset.rows(split))
        self._queries = {row: self._read_queries(row) for row in self.rows}
        pools: list[Row | None] = [None] if options.setting == "universal" else [*self.rows]
        self._pools = {row: read_items(dataset.pool(split, row), fuses=self.embedder.fuses) for row in pools}

    @property
    def query_inputs(self) -> list[Inputs]:
        """The queries of each row, under their first instruction."""
        return [versions[0] for versions in self._queries.values()]

    def describe(self) -> str:
        """Counts of items and queries, and what is still to encode, in a line."""
        images, texts = self.embedder.count_missing(self._all_inputs())
        items = sum(map(len, self._pools.values()))
        queries = sum(len(version) for versions in self._queries.values() for version in versions)
        missing = f"{images:,} images and {texts:,} texts to encode" if images or texts else ""
        return f"{items:,} items, {queries:,} queries; {missing or 'all embeddings are cached'}"

    def run(
        self,
        systems: Sequence[System],
        *,
        names: Mapping[str, Any],
        runs: Path | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> Results:
        """Metrics of every system on every row. `names` describes data, model and recipe in the results.

        Systems of the same name are one system under several seeds: its metrics are their mean.
        `runs` is a folder for TREC run files. `log` gets a line whenever a system has finished a row.
        """
        self.embedder.encode(self._all_inputs())
        groups = self.query_groups()
        by_name: dict[str, list[System]] = {}
        for system in systems:
            by_name.setdefault(system.name, []).append(system)
        entries: list[Entry] = []
        not_run: list[dict[str, Any]] = []
        for pool, group in self._groups():
            encoded = {row: list(map(self.embedder.queries, self._queries[row])) for row in group}
            for name, seeds in by_name.items():
                marks = (self._model.fingerprint, self.embedder.device)
                searches = [CachedSearch(system, pool, self._cache, *marks) for system in seeds]
                for row, matched in group.items():
                    if not seeds[0].supports(row):
                        left = {"system": name, "dataset": row.dataset, "task": row.task}
                        not_run.append(left | {"reason": "not made for this task"})
                        continue
                    answers = [[search.search(version) for version in encoded[row]] for search in searches]
                    size = searches[0].bytes_per_item
                    entry = self._entry(row, name, matched, answers, pool, encoded[row][0], groups[row], size)
                    entries.append(entry)
                    if runs is not None:
                        self._write_run(runs, name, row, pool, encoded[row][0], answers[0][0][0])
                    log(f"{name}, {row}: {100 * entry.metrics.headline:.1f}")
        order = list(by_name)
        entries.sort(key=lambda e: (order.index(e.metrics.system), self.rows.index(e.metrics.row)))
        return Results(
            setting=self.options.setting,
            split=self.options.split,
            fingerprint=self._model.fingerprint,
            entries=entries,
            systems_used={
                name: dict(seeds[0].settings) | ({"seeds": len(seeds)} if len(seeds) > 1 else {})
                for name, seeds in by_name.items()
            },
            instructions="all" if self.options.all_instructions else "chosen by a hash of the query id",
            limit=self.options.limit,
            not_run=not_run,
            reading=list(self._dataset.report.lines()),
            **names,
        )

    def universal_rows(self) -> tuple[EncodedPool, dict[Row, tuple[EncodedQueries, RowQrels]]]:
        """The universal pool, and the queries of each row with their qrels."""
        if self.options.setting != "universal":
            raise BadInput("queries of all rows share a pool in the universal setting only")
        self.embedder.encode(self._all_inputs())
        ((pool, group),) = self._groups()
        return pool, {
            row: (self.embedder.queries(self._queries[row][0]), matched) for row, matched in group.items()
        }

    def universal(self) -> tuple[EncodedPool, EncodedQueries, Qrels]:
        """The universal pool, and the queries of all rows one after the other with their qrels."""
        pool, rows = self.universal_rows()
        queries, matched = zip(*rows.values(), strict=True)
        return pool, EncodedQueries.concat(queries), Qrels.concat([each.qrels for each in matched])

    def _entry(
        self,
        row: Row,
        system: str,
        matched: RowQrels,
        answers: Sequence[Sequence[tuple[TopK, float]]],  # for each seed, for each instruction
        pool: EncodedPool,
        queries: EncodedQueries,
        groups: Ints,
        bytes_per_item: float,
    ) -> Entry:
        invalid = int((~queries.valid).sum())
        faults = Faults(unreadable_queries=invalid, unreadable_items=len(pool.unreadable))

        def metrics(lists: Sequence[NDArray[np.integer]]) -> RowMetrics:
            return row_metrics(row, self.options.setting, system, matched, lists, len(pool), faults, groups)

        by_seed = [[top.rows for top, _ in versions] for versions in answers]
        return Entry(
            metrics=metrics([rows for versions in by_seed for rows in versions]),
            fingerprint=self._model.fingerprint,
            pool_hash=pool.digest,
            queries_hash=queries.digest,
            bytes_per_item=bytes_per_item,
            seconds=sum(seconds for versions in answers for _, seconds in versions) / len(answers),
            seeds=[metrics(versions).headline for versions in by_seed] if len(by_seed) > 1 else [],
        )

    def query_groups(self) -> dict[Row, Ints]:
        """The queries of each row in groups that share a picture or a relevant item, across rows."""
        pictures = {
            id: picture
            for pool in self._pools.values()
            for id, picture in zip(pool.ids, pool.pictures, strict=True)
        }
        links = {}
        for row, (queries, *_) in self._queries.items():
            qrels = self._dataset.qrels(self.options.split, row)
            links[row] = [
                [part for part in _about(picture, qrels.get(id, {}), pictures) if part is not None]
                for id, picture in zip(queries.ids, queries.pictures, strict=True)
            ]
        return group_queries(links)

    def _groups(self) -> Iterator[tuple[EncodedPool, dict[Row, RowQrels]]]:
        """Each pool with the rows that are searched in it and their qrels; one pool is held at a time."""
        for pool_row, inputs in self._pools.items():
            pool = self.embedder.pool(inputs)
            row_of = {item: number for number, item in enumerate(pool.ids)}
            group = self.rows if pool_row is None else [pool_row]
            matched = {}
            for row in group:
                qrels = self._dataset.qrels(self.options.split, row)
                matched[row] = match_qrels(row, self._queries[row][0].ids, qrels, row_of)
            yield pool, matched

    def _all_inputs(self) -> list[Inputs]:
        return [*self._pools.values(), *chain.from_iterable(self._queries.values())]

    def _read_queries(self, row: Row) -> list[Inputs]:
        """The queries of a row, once for each instruction."""
        queries = list(self._dataset.queries(self.options.split, row))
        if not queries:
            raise BadData(f"{row}: no queries in split {self.options.split}")
        if self.options.limit:
            chosen = {query.id for query in sorted(queries, key=_shuffle_key)[: self.options.limit]}
            queries = [query for query in queries if query.id in chosen]
        table = self._dataset.instructions
        sentences: list[Callable[[LabelledQuery], str]] = [lambda query: table.chosen(query).sentence]
        if self.options.all_instructions:
            most = max(len(table.of(query)) for query in queries)
            sentences = [partial(_numbered, table.of, number) for number in range(most)]
        return [read_queries(queries, sentence, fuses=self.embedder.fuses) for sentence in sentences]

    def _write_run(
        self, folder: Path, system: str, row: Row, pool: EncodedPool, queries: EncodedQueries, top: TopK
    ) -> None:
        lists = {
            query: [(pool.ids[i], float(s)) for i, s in zip(rows, scores, strict=True) if i != NO_ITEM]
            for query, rows, scores in zip(queries.ids, top.rows, top.scores, strict=True)
        }
        name = f"{row.dataset}_task{row.task}_{self.options.split}_{self.options.setting}.{system}.trec"
        write_run(folder / name, lists, system)


def _about(
    picture: Key | None, judged: Mapping[str, int], pictures: Mapping[str, Key | None]
) -> Iterator[Key | str | None]:
    """What a query is about: its picture, its relevant items and their pictures."""
    yield picture
    for id, gain in judged.items():
        if gain > 0:
            yield id
            yield pictures.get(id)


def _numbered(of: Callable[[LabelledQuery], Sequence[Any]], number: int, query: LabelledQuery) -> str:
    """The instruction of that number; a query with fewer of them starts again."""
    instructions = of(query)
    return str(instructions[number % len(instructions)].sentence)


def _shuffle_key(query: LabelledQuery) -> bytes:
    """A fixed shuffle of the queries, so that a limit takes a fair sample."""
    return hashlib.blake2b(query.id.encode(errors="surrogatepass"), digest_size=8).digest()
