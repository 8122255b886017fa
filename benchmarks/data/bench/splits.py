"""The split rule: whole groups go to held-out, test, val or train, in an order drawn from a fixed seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

SEED = 20250
HELD_OUT = "held-out"  # kept for independent checks: given out its ids, never written
PUBLIC = ("train", "val", "test")
SHARED = "shared"  # items that the pools of all splits hold
FRACTIONS = ((HELD_OUT, 0.10), ("test", 0.10), ("val", 0.05))  # the rest is train


def random_for(label: str) -> random.Random:
    """A generator for one choice: it depends on the label alone, not on what was drawn before."""
    return random.Random(f"{SEED}:{label}")


class Groups:
    """Keys that must not be parted, by union-find. A group goes by the name of its least key."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, key: str) -> str:
        """The group of a key."""
        self._parent.setdefault(key, key)
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def join_equal(self, values: Iterable[tuple[str, str]]) -> None:
        """Put keys that share a value into one group; `values` are (key, value)."""
        first: dict[str, str] = {}
        for key, value in values:
            least, other = sorted((self.find(key), self.find(first.setdefault(value, key))))
            self._parent[other] = least


def split_by_group(group_of: Mapping[str, str], label: str) -> dict[str, str]:
    """The split of each key.

    Groups in random order fill held-out, then test, then val, each until it has its share of the keys.
    A group of more than 1 % of the keys is train.
    """
    size = Counter(group_of.values())
    total = len(group_of)
    order = sorted(size)
    random_for(f"split {label}").shuffle(order)
    waiting = iter([group for group in order if size[group] <= max(1, total // 100)])
    split_of: dict[str, str] = {}
    for split, fraction in FRACTIONS:
        filled = 0
        while filled < fraction * total and (group := next(waiting, None)) is not None:
            split_of[group] = split
            filled += size[group]
    return {key: split_of.get(group, "train") for key, group in group_of.items()}
