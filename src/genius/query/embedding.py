"""Sub-queries with their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.validate import unit_vector
from genius.encode.base import Parts
from genius.query.subqueries import Subquery
from genius.retrieval_model import RetrievalModel

Floats = NDArray[np.float32]


class EmbeddedSubquery(NamedTuple):
    """A sub-query with its embeddings."""

    subquery: Subquery
    z: Floats  # (d,)
    phi: Floats  # (d,)


def embed(model: RetrievalModel, subqueries: Sequence[Subquery]) -> list[EmbeddedSubquery]:
    """The sub-queries with their embeddings."""
    if not subqueries:
        return []
    parts = _parts(model, subqueries)
    return [EmbeddedSubquery(*one) for one in zip(subqueries, model.z(parts), model.phi(parts), strict=True)]


def _parts(model: RetrievalModel, subqueries: Sequence[Subquery]) -> Parts:
    """Image and text embeddings of sub-queries; one that is an embedding is not encoded."""
    shape = (len(subqueries), model.dim)
    parts = Parts(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    rest = [row for row, one in enumerate(subqueries) if one.vector is None]
    for row, one in enumerate(subqueries):
        if one.vector is not None:
            parts.text[row] = unit_vector(one.vector, model.dim)
    if rest:
        some = [subqueries[row] for row in rest]
        encoded = model.embed_queries(
            [one.image for one in some], [one.text for one in some], [one.instruction for one in some]
        )
        parts.image[rest], parts.text[rest] = encoded.image, encoded.text
    return parts
