"""A segment: a trie of some items of a pool, and which of them are visible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from genius.search.trie import Bools, Filter, Trie

if TYPE_CHECKING:
    from genius.search.tensors import TensorTrie


@dataclass(slots=True)
class Segment:
    """A part of a pool: settled items in one, fresh ones in another, removed ones filtered out of both."""

    trie: Trie
    allowed: Filter | None = None
    _plain: dict[str, TensorTrie] = field(default_factory=dict, repr=False)  # by device, without the filter
    _filtered: dict[str, TensorTrie] = field(default_factory=dict, init=False, repr=False)

    def tensors(self, device: str) -> TensorTrie:
        """The trie on a device, where it stays for the next search."""
        from genius.search.tensors import TensorTrie

        if device not in self._plain:
            self._plain[device] = TensorTrie(self.trie, device)
        if device not in self._filtered:
            self._filtered[device] = self._plain[device].allowing(self.allowed)
        return self._filtered[device]

    def restricted(self, mask: Bools) -> Segment:
        """The same segment with one more filter, by item row; what is on a device is shared."""
        allowed = self.trie.allow(mask)
        if self.allowed is not None:
            allowed = Filter.of(allowed.mask & self.allowed.mask)
        return Segment(self.trie, allowed, self._plain)
