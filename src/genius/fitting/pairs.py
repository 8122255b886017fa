"""Labelled pairs for a fit: click logs, or the captions of the collection's own pairs, as embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.lines import json_object, numbered_lines
from genius.data.report import Report, printable
from genius.data.validate import unit_vector, valid_id
from genius.errors import BadInput
from genius.query.embedding import embed
from genius.query.subqueries import Subquery, subqueries
from genius.store.records import MODALITIES
from genius.types import Modality, Query

if TYPE_CHECKING:
    from genius.retrieval_model import RetrievalModel
    from genius.store.index import Index

CAPTIONS = "captions"  # the texts of pairs ask for their own items
BATCH = 64  # queries that are embedded together

LabelledPairs = Iterable[tuple[str | Path | Query, str]]  # a query and the id of an item that it should find


class EmbeddedPairs(NamedTuple):
    """Queries as embeddings, and the rows in the index of the items that each should find."""

    vectors: NDArray[np.float32]  # (queries, dim)
    rows: list[list[int]]


def read_pairs(source: str | Path, index: Index, report: Report) -> Iterator[tuple[Query, str]]:
    """The pairs in a file, or `captions`.

    A line is a JSON object of `id` and `query`, `image`, both of them or `vector`; a query is called by it.
    """
    if str(source) == CAPTIONS:
        yield from _captions(index)
        return
    file = Path(source)
    if not file.is_file():
        raise BadInput(
            f'no file of pairs at {printable(file)}: give JSONL with {{"query": …, "id": …}} on each line, '
            f"or `{CAPTIONS}` to learn from the texts of image-text pairs"
        )
    for number, line in numbered_lines(file):
        try:
            yield _pair(json_object(line), file.parent, f"{file}:{number}")
        except (ValueError, BadInput) as error:
            report.skip(f"{file}:{number}", error)


def embed_pairs(index: Index, model: RetrievalModel, pairs: LabelledPairs, report: Report) -> EmbeddedPairs:
    """The pairs whose item is in the index and whose query can be read, with their queries embedded."""
    vectors: list[NDArray[np.float32]] = []
    rows: list[list[int]] = []
    rest = iter(pairs)
    while batch := list(islice(rest, BATCH)):
        found: list[Subquery] = []
        for given, id in batch:
            query = Query.of(given)
            try:
                row, one = _read(index, query, id, model.dim)
            except BadInput as error:
                report.skip(query.id or id, error)
            else:
                found.append(one)
                rows.append([row])
        vectors += [one.phi for one in embed(model, found)]
    width = (0, model.dim)
    return EmbeddedPairs(np.stack(vectors) if vectors else np.zeros(width, np.float32), rows)


class StoredVectors:
    """The vectors of all items of an index as one array, read from the disk row by row when asked for."""

    def __init__(self, index: Index, rows: NDArray[np.int64]) -> None:
        self._index, self._rows = index, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: NDArray[Any]) -> NDArray[np.float16]:
        """The vectors at these places."""
        assert self._index.dim is not None
        return self._index.truth.vectors(self._rows[places], self._index.dim)


def _read(index: Index, query: Query, id: str, dim: int) -> tuple[int, Subquery]:
    """The row of an item, and the query that asks for it, ready to be embedded."""
    stored = index.truth.record(valid_id(id))
    if stored is None:
        raise BadInput(f"no item is called {id}")
    row, record = stored
    one = subqueries(query, [record.modality])[0]
    if one.vector is not None:
        unit_vector(one.vector, dim)
    return row, one


def _pair(fields: dict[str, Any], folder: Path, name: str) -> tuple[Query, str]:
    id, text, image, vector = (fields.get(part) for part in ("id", "query", "image", "vector"))
    if isinstance(id, int):
        id = str(id)
    if not isinstance(id, str) or not all(part is None or isinstance(part, str) for part in (text, image)):
        raise ValueError("`query`, `image` and `id` must be texts")
    if not text and not image and vector is None:
        raise ValueError("neither query, image nor vector")
    return Query(text=text or None, image=folder / image if image else None, vector=vector, id=name), id


def _captions(index: Index) -> Iterator[tuple[Query, str]]:
    """The text of each image-text pair with its id."""
    kind = MODALITIES.index(Modality.PAIR)
    for batch in index.truth.batches(index.levels, None):
        chosen: Sequence[int] = batch.rows[batch.modality == kind].tolist()
        for record in index.truth.records(chosen).values():
            if record.text:
                yield Query(text=record.text), record.id
