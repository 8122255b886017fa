"""A segment of a pool: a trie and which of its items may be found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools
from genius.search.trie import ItemFilter, Trie

if TYPE_CHECKING:
    from genius.search.trie.tensors import TensorTrie


@dataclass(slots=True)
class TrieSegment:
    """A part of a pool: one has the compacted items, another the new ones; removed items are filtered out."""

    trie: Trie
    allowed: ItemFilter | None = None
    _unfiltered: dict[str, TensorTrie] = field(default_factory=dict, repr=False)  # by device
    _filtered: dict[str, TensorTrie] = field(default_factory=dict, init=False, repr=False)

    def tensors(self, device: str) -> TensorTrie:
        """The trie on a device, where it stays for the next search."""
        from genius.search.trie.tensors import TensorTrie

        if device not in self._unfiltered:
            self._unfiltered[device] = TensorTrie(self.trie, device)
        if device not in self._filtered:
            self._filtered[device] = self._unfiltered[device].filtered(self.allowed)
        return self._filtered[device]

    @property
    def is_strict(self) -> bool:
        """Whether a small part of its items may be found."""
        return self.allowed is not None and self.allowed.positions is not None

    def restricted(self, mask: Bools) -> TrieSegment:
        """The same segment with one more filter, by item row; what is on a device is shared."""
        allowed = self.trie.allow(mask)
        if self.allowed is not None:
            allowed = ItemFilter.of(allowed.mask & self.allowed.mask)
        return TrieSegment(self.trie, allowed, self._unfiltered)

    def without(self, positions: NDArray[Any]) -> TrieSegment:
        """The same segment without the items at these positions of the trie."""
        mask = np.ones(self.trie.items, dtype=bool) if self.allowed is None else self.allowed.mask.copy()
        mask[positions] = False
        return TrieSegment(self.trie, ItemFilter.of(mask), self._unfiltered)
