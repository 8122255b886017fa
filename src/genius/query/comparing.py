"""Similarities of what sub-queries found, on scales that can be compared between modalities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.confidence import Calibration, sigmoid
from genius.query.embedding import EmbeddedSubquery
from genius.query.merging import backgrounds
from genius.query.subqueries import Subquery
from genius.query.view import PoolView
from genius.search.codebooks import Codebooks
from genius.search.options import SearchOptions
from genius.search.rank import RankedItems, products
from genius.search.trie import Ints
from genius.types import Modality

Floats = NDArray[np.float32]
MOST_SURE = 0.99  # confidence that words can give


class Similarities(NamedTuple):
    """Similarities of one sub-query: with the items it found, and with a sample of those it searched."""

    subquery: Subquery
    similar: Floats  # (found,), cosines in the order of the ranking
    sample: Floats  # (sampled,)
    with_words: Floats | None = None  # (found,), what the order follows from, if not `similar`
    sure: Floats | None = None  # (found,), what confidence follows from, if not `similar`

    @property
    def ordered_by(self) -> Floats:
        """What falls along the ranking: the similarity, with what words add to it."""
        return self.similar if self.with_words is None else self.with_words


def compare(
    view: PoolView,
    tables: Codebooks,
    query: EmbeddedSubquery,
    found: RankedItems,
    options: SearchOptions,
) -> Similarities:
    """Similarities by vectors, or by codes where the index keeps no vectors."""
    if options.by_similarity and options.rerank == "vectors":  # these are the scores
        similar = np.minimum(found.scores, 1.0)
    else:
        similar = similarities(view, tables, query, found.rows, found.codes)
    return Similarities(query.subquery, similar, sample_similarities(view, tables, query))


def similarities(
    view: PoolView,
    tables: Codebooks,
    query: EmbeddedSubquery,
    ordinals: Ints,
    codes: NDArray[np.uint16] | None = None,
) -> Floats:
    """Cosines of these items with a sub-query, (n,); their codes are read where they are needed."""
    if view.has_vectors:
        similar = products(view.vectors(ordinals), query.phi)
    else:
        similar = tables.cosine(query.z, view.codes(ordinals) if codes is None else codes)
    return np.minimum(similar, 1.0)  # rounding may take a cosine beyond it


def sample_similarities(view: PoolView, tables: Codebooks, query: EmbeddedSubquery) -> Floats:
    """Cosines with a sample of the items that a sub-query searches, (sampled,)."""
    modality = query.subquery.modality
    searched = view.present if modality is None else [modality]
    samples = [_sample_similarity(view, tables, query, one) for one in searched]
    return np.concatenate(samples) if samples else np.zeros(0, np.float32)


def confidence_logits(calibration: Calibration, one: Similarities) -> Floats:
    """Log-odds that the items of a ranking are right; they never rise along it."""
    logits = calibration.logits(one.subquery.have, one.subquery.modality, one.ordered_by, one.sample)
    return np.minimum.accumulate(logits)


def confidences(calibration: Calibration, one: Similarities) -> NDArray[np.float64]:
    """How often such answers are right, from 0 to 1."""
    if one.sure is None:
        return sigmoid(confidence_logits(calibration, one))
    logits = calibration.logits(one.subquery.have, one.subquery.modality, one.sure, one.sample)
    return np.minimum(sigmoid(logits), MOST_SURE)


def standardized(several: Sequence[Similarities]) -> list[Floats]:
    """The similarities of rankings that compete, standardized within their modalities."""
    samples = {one.subquery.modality: one.sample for one in several if one.subquery.modality is not None}
    ground = backgrounds(samples)
    return [
        ground[one.subquery.modality].standardize(one.ordered_by)
        for one in several
        if one.subquery.modality is not None
    ]


def _sample_similarity(
    view: PoolView, tables: Codebooks, query: EmbeddedSubquery, modality: Modality
) -> Floats:
    sample = view.sample(modality)
    if sample.vectors is not None:
        return products(sample.vectors, query.phi)
    assert sample.codes is not None
    return tables.cosine(query.z, sample.codes)
