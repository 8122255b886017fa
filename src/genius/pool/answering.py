"""Questions to answers: one search for all, and a fair ranking where several modalities may answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.pool.asking import Ask
from genius.pool.fair import backgrounds, merged
from genius.pool.model import PoolModel
from genius.pool.view import View
from genius.search.found import Found
from genius.search.lookup import Tables
from genius.search.run import Options, Searcher
from genius.types import Modality

Floats = NDArray[np.float32]


class Asked(NamedTuple):
    """A question with its vectors."""

    ask: Ask
    z: Floats  # (d,)
    phi: Floats  # (d,)


class Answer(NamedTuple):
    """An item by its row in the truth, with its score and codes."""

    row: int
    score: float
    codes: tuple[int, ...]


class Ranked(NamedTuple):
    """The answers to one query, best first, and what the search for them touched."""

    answers: list[Answer]
    beams: int  # prefixes the search ended with
    leaves: int  # items under them


def embed(model: PoolModel, asks: Sequence[Ask]) -> list[Asked]:
    """The questions with their vectors."""
    if not asks:
        return []
    parts = model.embed_queries(
        [ask.image for ask in asks], [ask.text for ask in asks], [ask.instruction for ask in asks]
    )
    return [Asked(*one) for one in zip(asks, model.z(parts), model.phi(parts), strict=True)]


def answers(
    view: View, searcher: Searcher, model: PoolModel, queries: Sequence[Sequence[Asked]], options: Options
) -> list[Ranked]:
    """The best items for each query, which is one question or several that compete."""
    flat = [asked for several in queries for asked in several]
    found = iter(_find(view, searcher, model, flat, options))
    ranked = []
    for several in queries:
        own = [next(found) for _ in several]
        if len(own) > 1:
            best = _fair(view, searcher.tables, several, own, options.k)
        else:
            best = [answer for one in own for answer in _plain(view, one)]
        ranked.append(Ranked(best, sum(one.beams for one in own), sum(one.leaves for one in own)))
    return ranked


def _find(
    view: View, searcher: Searcher, model: PoolModel, flat: Sequence[Asked], options: Options
) -> list[Found]:
    """What each question finds among the items of its modality."""
    if not flat:
        return []
    codes = model.modality_codes
    if any(asked.ask.modality for asked in flat) and not view.level_zero_tells(codes):
        return [_find_masked(view, searcher, asked, options) for asked in flat]
    wanted = np.ones((len(flat), searcher.tables.sizes[0]), dtype=bool)
    for row, asked in enumerate(flat):
        if asked.ask.modality is not None:
            wanted[row] = np.arange(wanted.shape[1]) == codes[asked.ask.modality]
    return searcher.search(
        view.segments,
        np.stack([asked.z for asked in flat]),
        options,
        modalities=wanted,
        phi=np.stack([asked.phi for asked in flat]),
        fetch=view.vectors if view.has_vectors else None,
    )


def _find_masked(view: View, searcher: Searcher, asked: Asked, options: Options) -> Found:
    """The same for a model whose level 0 is not the modality: items are filtered one by one."""
    modality = asked.ask.modality
    (found,) = searcher.search(
        view.segments,
        asked.z[None],
        options,
        mask=None if modality is None else view.mask(modality),
        phi=asked.phi[None],
        fetch=view.vectors if view.has_vectors else None,
    )
    return found


def _plain(view: View, found: Found) -> list[Answer]:
    rows = view.rows(found.rows)
    return [
        Answer(int(row), float(score), tuple(codes.tolist()))
        for row, score, codes in zip(rows, found.scores, found.codes, strict=True)
    ]


def _fair(
    view: View, tables: Tables, several: Sequence[Asked], found: Sequence[Found], k: int
) -> list[Answer]:
    """One ranking by how far each answer stands out in its modality; that is the score, too."""
    samples = {modality: _similar(view, tables, asked, modality) for modality, asked in _by_modality(several)}
    ground = backgrounds(samples)
    scores = [
        ground[modality].stands_out(_similar_found(view, tables, asked, own))
        for (modality, asked), own in zip(_by_modality(several), found, strict=True)
    ]
    parts = [_plain(view, own) for own in found]
    return [
        parts[which][rank]._replace(score=float(scores[which][rank]))
        for which, rank in zip(*merged(scores, k), strict=True)
    ]


def _by_modality(several: Sequence[Asked]) -> list[tuple[Modality, Asked]]:
    """The questions that compete, each with the modality it asks for."""
    return [(asked.ask.modality, asked) for asked in several if asked.ask.modality is not None]


def _similar(view: View, tables: Tables, asked: Asked, modality: Modality) -> Floats:
    """How similar ordinary items of a modality are to the question: by vectors, or by codes without them."""
    some = view.ordinary(modality)
    if some.vectors is not None:
        return _cosines(some.vectors, asked.phi)
    return tables.cosine(asked.z, some.codes)


def _similar_found(view: View, tables: Tables, asked: Asked, found: Found) -> Floats:
    if view.has_vectors:
        return _cosines(view.vectors(found.rows), asked.phi)
    return tables.cosine(asked.z, found.codes)


def _cosines(vectors: NDArray[np.float16], phi: Floats) -> Floats:
    """Of unit vectors; equal rows get equal numbers, which a matrix product does not promise."""
    return np.asarray(np.einsum("nd,d->n", vectors.astype(np.float32), phi))
