"""Which items of a generation have which modality, counted once per generation.

The generation keeps two bits per item. Counts per block of them find the n-th item of a modality without an
array of all items.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genius.search.trie import Ints
from genius.store.records import MODALITIES, unpack_modality

BLOCK = 4096  # items per count; a multiple of the four that share a byte


class ModalityCounts:
    """The modalities of the items of a generation; ordinals number the items from 0."""

    def __init__(self, packed: NDArray[np.uint8], items: int) -> None:
        self.items = items
        self._packed = packed  # four items to a byte

    @cached_property
    def _before(self) -> Ints:
        """How many items of each modality stand before each block, (modalities, blocks + 1)."""
        blocks = -(-self.items // BLOCK)
        before = np.zeros((len(MODALITIES), blocks + 1), dtype=np.int64)
        for block in range(blocks):
            counts = np.bincount(self._block(block), minlength=len(MODALITIES))
            before[:, block + 1] = before[:, block] + counts[: len(MODALITIES)]
        return before

    def total(self, modality: int) -> int:
        """How many items have the modality at this place of MODALITIES."""
        return int(self._before[modality, -1])

    def of(self, ordinals: Ints) -> NDArray[np.uint8]:
        """The modality of these items, as places in MODALITIES."""
        return np.asarray(
            (self._packed[ordinals // 4] >> (2 * (ordinals % 4)).astype(np.uint8)) & np.uint8(3)
        )

    def nth(self, modality: int, ranks: Ints) -> Ints:
        """Ordinals of the items that are at these ranks, from 0 and ascending, among those of a modality."""
        before = self._before[modality]
        blocks = np.searchsorted(before, ranks, "right") - 1
        ordinals = np.empty(len(ranks), dtype=np.int64)
        for block in np.unique(blocks):
            own = blocks == block
            among = np.flatnonzero(self._block(int(block)) == modality)
            ordinals[own] = block * BLOCK + among[ranks[own] - before[block]]
        return ordinals

    def ranks(self, modality: int, ordinals: Ints) -> Ints:
        """The ranks of these items of a modality among all of it: the inverse of `nth`."""
        blocks = ordinals // BLOCK
        ranks = np.empty(len(ordinals), dtype=np.int64)
        for block in np.unique(blocks):
            own = blocks == block
            among = np.flatnonzero(self._block(int(block)) == modality)
            found = np.searchsorted(among, ordinals[own] - block * BLOCK)
            ranks[own] = self._before[modality, block] + found
        return ranks

    def _block(self, number: int) -> NDArray[np.uint8]:
        start, end = number * BLOCK, min((number + 1) * BLOCK, self.items)
        return unpack_modality(self._packed[start // 4 : -(-end // 4)], end - start)
