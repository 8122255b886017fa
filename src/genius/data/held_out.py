"""Train queries that stage 0 does not see: the later stages learn from embeddings that it has not fitted.

An encoder knows its training pairs by heart: a query lies far nearer to its positives than a new one would. A
fusion or a decoder that is trained on such pairs learns to rely on it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genius.data.training_set import Rows, TrainingSet, hash_of, keep_rows
from genius.errors import BadData

SHARED = 32  # an image or text that more queries have does not make a group of them


def held_out_queries(data: TrainingSet, share: float) -> NDArray[np.bool_]:
    """Which queries are held out, (queries,): about a `share` of them, in whole groups.

    Queries with a common image or text, their own or one of a positive, are in one group. What many queries
    have, such as the text on a species or a product of many rooms, new queries have, too: it joins none.
    """
    group = _groups(*_edges(data), len(data.query_ids))
    limit = int(share * 2**64)
    chosen = {first: hash_of(data.query_ids[first]) < limit for first in np.unique(group).tolist()}
    return np.array([chosen[first] for first in group.tolist()])


def split_queries(data: TrainingSet, share: float, *, held_out: bool) -> TrainingSet:
    """The held-out part of `data`, or the rest; both have all items."""
    held = held_out_queries(data, share)
    if held.all() or not held.any():
        raise BadData(
            f"held_out = {share} leaves {'nothing to train stage 0 on' if held.any() else 'nothing held out'}"
            f": {len(held)} queries are too few groups; set data.held_out = 0"
        )
    return keep_rows(data, np.ones(len(data.item_ids), dtype=bool), held if held_out else ~held)


def _edges(data: TrainingSet) -> tuple[Rows, Rows]:
    """Queries and what they have, an image (0 …) or a text (images …): one entry of both for each."""
    rows = np.arange(len(data.query_ids))
    owner = np.repeat(rows, np.diff(data.offsets))
    variants = data.query_texts.shape[1]
    texts = len(data.images)
    parts = [
        (rows, data.query_image, 0),
        (np.repeat(rows, variants), data.query_texts.ravel(), texts),
        (owner, data.item_image[data.positives], 0),
        (owner, data.item_text[data.positives], texts),
    ]
    query = np.concatenate([own[named >= 0] for own, named, _ in parts])
    part = np.concatenate([named[named >= 0] + first for _, named, first in parts])
    query, part = np.unique(np.stack([query, part]), axis=1)
    few = np.bincount(part)[part] <= SHARED
    return query[few], part[few]


def _groups(query: Rows, part: Rows, queries: int) -> Rows:
    """For each query the first one of its connected component."""
    group = np.arange(queries)
    while True:
        lowest = np.full(int(part.max(initial=-1)) + 1, queries)
        np.minimum.at(lowest, part, group[query])
        found = group.copy()
        np.minimum.at(found, query, lowest[part])
        found = found[found]
        if (found == group).all():
            return group
        group = found
