"""The locks of an index and its engine, and the one order in which a thread may take them.

writer    one thread changes the index; held for a whole `add`, so a search never waits for it
snapshot  one thread renews the index's snapshot of the committed state
truth     one thread at a time uses the SQLite connection
view      one thread makes a snapshot searchable
model     one thread loads the model or its searcher

A thread that holds a lock may take only locks that stand below it. With GENIUS_DEBUG_LOCKS=1 (as in the
tests) taking one out of order raises AssertionError, whether or not it would have blocked this time.
"""

from __future__ import annotations

import os
import threading

ORDER = ("writer", "snapshot", "truth", "view", "model")
DEBUG = "GENIUS_DEBUG_LOCKS"
_held = threading.local()


class OrderedLock:
    """A re-entrant lock with a place in ORDER."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rank = ORDER.index(name)
        self._lock = threading.RLock()
        self._checked = os.environ.get(DEBUG) == "1"

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; False if another thread has it and `blocking` is off."""
        if self._checked:
            self._check()
        taken = self._lock.acquire(blocking)
        if taken and self._checked:
            _stack().append(self)
        return taken

    def release(self) -> None:
        """Give the lock back."""
        if self._checked:
            stack = _stack()
            del stack[len(stack) - 1 - stack[::-1].index(self)]
        self._lock.release()

    def __enter__(self) -> OrderedLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _check(self) -> None:
        stack = _stack()
        later = [lock.name for lock in stack if lock._rank > self._rank]
        if later and self not in stack:
            raise AssertionError(f"lock {self.name!r} is taken while {later[-1]!r} is held: see genius.locks")


def _stack() -> list[OrderedLock]:
    """The locks that this thread holds, in the order they were taken."""
    if not hasattr(_held, "stack"):
        _held.stack = []
    stack: list[OrderedLock] = _held.stack
    return stack
