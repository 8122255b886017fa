"""The arrays of a generation, built from the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genius.search.trie import Trie
from genius.store.generations import AnyArray, Generation, Stream
from genius.store.records import RecordBatch, RowRuns, pack_modality
from genius.store.truth import Truth

LAYOUT = "trie-1"  # form of the arrays of a generation; changes when they do


class GenerationBuilder:
    """Builds generations of one index."""

    def __init__(self, truth: Truth, sizes: Sequence[int], dim: int | None) -> None:
        self.truth, self.sizes, self.dim = truth, sizes, dim
        self.levels = len(sizes)

    def items(self, through: int, *, vectors: bool) -> RecordBatch:
        """All items up to the row `through`, with their passages."""
        dim = self.dim if vectors else None
        empty = RecordBatch(
            np.zeros(0, np.int64),
            np.zeros(0, np.uint8),
            np.zeros((0, self.levels), np.uint16),
            None if dim is None else np.zeros((0, dim), np.float16),
        )
        return RecordBatch.join([empty, *self.truth.entries(self.levels, dim, through=through)])

    def arrays(self, items: RecordBatch) -> dict[str, AnyArray]:
        """Row numbers, modalities and the trie of the codes."""
        runs = RowRuns.of(items.rows)
        own: dict[str, AnyArray] = {
            "run_place": runs.place,
            "run_row": runs.row,
            "modality": pack_modality(items.modality),
        }
        return {**own, **Trie.build(items.codes, self.sizes).arrays()}

    def vectors(self, count: int, through: int) -> dict[str, Stream]:
        """The vectors of all `count` items up to `through`, piece by piece; nothing where none are kept."""
        if self.dim is None:
            return {}
        parts = self.truth.entries(self.levels, self.dim, through=through)
        pieces = (part.vectors for part in parts if part.vectors is not None)
        return {"vectors": Stream("<f2", (count, self.dim), pieces)}

    def in_memory(self, through: int) -> Generation:
        """A generation that is on no disk."""
        items = self.items(through, vectors=True)
        large = {} if items.vectors is None else {"vectors": items.vectors}
        return Generation(0, through, self.arrays(items), dict(large))
