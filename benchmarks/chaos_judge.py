"""What the items of an index may be at a moment, and whether an answer fits: the judge of chaos.py.

Every writer has ids of its own (a namespace) and changes them one operation at a time, so that at most two
states are possible at once: the one before the operation under way, and the one after it. An operation whose
outcome nobody has seen (its process was killed) leaves both possible until the index itself is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

Items = Mapping[str, int]  # id -> version, which is part of the item's text
Change = Callable[[dict[str, int]], dict[str, int]]
KEPT_S = 300.0  # states that ended longer ago match no answer that is still to come


@dataclass(slots=True)
class State:
    """What a namespace may hold, from the beginning of an operation to the end of the next one."""

    items: dict[str, int]
    since: float
    until: float = inf


@dataclass(slots=True)
class History:
    """The states of one namespace."""

    states: list[State] = field(default_factory=lambda: [State({}, -inf)])
    current: list[State] = field(default_factory=list)  # more than one: the last outcome is not known
    pending: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.current = list(self.states)

    def begin(self, change: Change, now: float) -> None:
        """An operation begins: what follows from any of the current states is possible from now on."""
        self.pending = [State(change(dict(state.items)), now) for state in self.current]
        self.states += self.pending

    def acknowledge(self, now: float) -> None:
        """The operation has succeeded: nothing older is right any more."""
        for state in self.current:
            state.until = now
        self.current, self.pending = self.pending, []
        self.states = [state for state in self.states if state.until > now - KEPT_S]

    def give_up(self) -> None:
        """The operation has failed, or its process is gone: it may have happened or not."""
        self.current, self.pending = self.current + self.pending, []

    def observe(self, items: Items, now: float) -> list[str]:
        """The index was read and nobody changes it: the ids that are not as any current state has them."""
        fitting = [state for state in self.current if state.items == items]
        for state in self.current:
            if state not in fitting:
                state.until = min(state.until, now)
        if fitting:
            self.current = fitting[-1:]
            return []
        best = min((_differences(state.items, items) for state in self.current), key=len)
        self.current = [State(dict(items), now)]
        self.states += self.current
        return best

    def allows(self, items: Items, asked: float, answered: float) -> bool:
        """Whether some state that was possible between the two moments is that one."""
        return any(
            state.items == items for state in self.states if state.since <= answered and state.until >= asked
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody found when asking for everything."""

    who: str
    asked: float
    answered: float
    found: dict[str, dict[str, int]]  # namespace -> items


class Judge:
    """All namespaces; threads share it. Answers are judged once every writer has had time to say its part."""

    def __init__(self, namespaces: tuple[str, ...], delay: float = 15.0) -> None:
        self.histories = {name: History() for name in namespaces}
        self.turn = threading.RLock()
        self.answers = 0
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self._delay = delay
        self._waiting: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Note an answer; it is judged later."""
        with self.turn:
            self.answers += 1
            self._waiting.append(answer)

    def observe(self, namespace: str, items: Items) -> None:
        """Hold what the index has of a namespace that nobody changes against what it must have."""
        with self.turn:
            missing = self.histories[namespace].observe(items, time.monotonic())
            self.lost += [f"{namespace}: {name}" for name in missing]

    def judge(self, everything: bool = False) -> None:
        """Judge the answers that are old enough."""
        with self.turn:
            due = time.monotonic() - (0.0 if everything else self._delay)
            ready = [answer for answer in self._waiting if answer.answered <= due]
            self._waiting = [answer for answer in self._waiting if answer.answered > due]
            for answer in ready:
                for name, history in self.histories.items():
                    items = answer.found.get(name, {})
                    if not history.allows(items, answer.asked, answer.answered):
                        last = history.current[-1].items
                        self.wrong.append(f"{answer.who}: {name} {_differences(last, items)[:5]}")


def _differences(expected: Items, found: Items) -> list[str]:
    """The ids that differ, with both versions (None: not there)."""
    ids = sorted({*expected, *found})
    return [
        f"{id} is {found.get(id)}, not {expected.get(id)}" for id in ids if found.get(id) != expected.get(id)
    ]
