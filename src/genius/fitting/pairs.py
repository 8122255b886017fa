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
from genius.errors import BadInput
from genius.query.embedding import embed
from genius.query.subqueries import subqueries
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
    """The pairs in a file, one JSON object of `query`, `image` (or both) and `id` a line; or `captions`."""
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
            yield _pair(json_object(line), file.parent)
        except (ValueError, BadInput) as error:
            report.skip(f"{file}:{number}", error)


def embed_pairs(index: Index, model: RetrievalModel, pairs: LabelledPairs, report: Report) -> EmbeddedPairs:
    """The pairs whose item is in the index, with their queries embedded."""
    vectors: list[NDArray[np.float32]] = []
    rows: list[list[int]] = []
    rest = iter(pairs)
    while batch := list(islice(rest, BATCH)):
        found = []
        for query, id in batch:
            stored = index.truth.record(id)
            if stored is None:
                report.skip(str(id), "no item has this id")
            else:
                found.append((Query.of(query), *stored))
        split = [subqueries(query, [record.modality])[0] for query, _, record in found]
        vectors += [one.phi for one in embed(model, split)]
        rows += [[row] for _, row, _ in found]
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


def _pair(fields: dict[str, Any], folder: Path) -> tuple[Query, str]:
    id, text, image = fields.get("id"), fields.get("query"), fields.get("image")
    if isinstance(id, int):
        id = str(id)
    if not isinstance(id, str) or not all(part is None or isinstance(part, str) for part in (text, image)):
        raise ValueError("`query`, `image` and `id` must be texts")
    if not text and not image:
        raise ValueError("neither query nor image")
    return Query(text=text or None, image=folder / image if image else None), id


def _captions(index: Index) -> Iterator[tuple[Query, str]]:
    """The text of each image-text pair with its id."""
    kind = MODALITIES.index(Modality.PAIR)
    for batch in index.truth.batches(index.levels, None):
        chosen: Sequence[int] = batch.rows[batch.modality == kind].tolist()
        for record in index.truth.records(chosen).values():
            if record.text:
                yield Query(text=record.text), record.id
