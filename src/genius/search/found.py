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


def rank(trie: Trie, leaves: Leaves, k: int) -> Found:
    """The `k` best of the leaves, best first; equal ones in the order of their codes, then rows."""
    best = leaves.best(k)
    order = np.argsort(-best.scores, kind="stable")  # positions rise, so equal scores stand as they should
    positions = best.positions[order]
    return Found(
        trie.rows(positions), best.scores[order], trie.codes(positions), leaves.beams, leaves.touched
    )


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
