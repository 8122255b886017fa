"""Answers: ranked items of one or of several segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genius.search.leaves import Floats, Leaves
from genius.search.trie import Ints, Trie


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one query, best first."""

    rows: Ints  # (n,) item rows
    scores: Floats  # (n,)
    codes: NDArray[np.uint16]  # (n, levels)
    beams: int = 0  # prefixes the search ended with
    leaves: int = 0  # items under them

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def none(cls, levels: int) -> Found:
        """No answer."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, levels), np.uint16))


def rank(trie: Trie, found: Sequence[Leaves], k: int) -> list[Found]:
    """The `k` best leaves of each query, best first; equal ones in the order of their codes, then rows.

    Rows and codes are read for all queries at once.
    """
    best = [leaves.best(k) for leaves in found]
    orders = [np.argsort(-few.scores, kind="stable") for few in best]  # positions rise: equal scores stand
    turned = [few.positions[order] for few, order in zip(best, orders, strict=True)]
    positions = np.concatenate(turned) if len(turned) > 1 else turned[0]
    rows, codes = trie.rows(positions), trie.codes(positions)
    answers, start = [], 0
    for few, order in zip(best, orders, strict=True):
        own = slice(start, start + len(order))
        answers.append(Found(rows[own], few.scores[order], codes[own], few.beams, few.touched))
        start += len(order)
    return answers


def merge(parts: Sequence[Found], k: int) -> Found:
    """The `k` best of several answers to one query, by the same rule as within each of them."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    order = np.lexsort((rows, *codes.T[::-1], -scores))[:k]
    beams, leaves = max(part.beams for part in parts), sum(part.leaves for part in parts)
    return Found(rows[order], scores[order], codes[order], beams, leaves)
