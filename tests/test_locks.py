"""Locks are taken in one order; a debug run notices any other."""

from __future__ import annotations

import threading

import pytest

from genius.locks import DEBUG, ORDER, OrderedLock


def test_every_lock_may_be_taken_below_those_before_it():
    locks = [OrderedLock(name) for name in ORDER]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        lock.acquire()  # again by the same thread: re-entrant
    for lock in [*locks, *locks]:
        lock.release()


@pytest.mark.parametrize("place", range(1, len(ORDER)))
def test_the_other_order_is_noticed_though_nobody_waits(place):
    first, second = OrderedLock(ORDER[place]), OrderedLock(ORDER[place - 1])
    with first, pytest.raises(AssertionError, match=f"{ORDER[place - 1]!r} is taken while {ORDER[place]!r}"):
        second.acquire()
    with second, first:  # and it was not taken
        pass


def test_threads_hold_locks_of_their_own():
    first, second = OrderedLock("model"), OrderedLock("writer")
    taken = []
    with first:
        thread = threading.Thread(target=lambda: taken.append(second.acquire()))
        thread.start()
        thread.join()
    assert taken == [True]


def test_without_waiting_a_held_lock_is_refused():
    lock, refused = OrderedLock("writer"), []
    with lock:
        thread = threading.Thread(target=lambda: refused.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert refused == [False]


def test_only_debug_runs_pay_for_the_check(monkeypatch):
    monkeypatch.setenv(DEBUG, "0")
    with OrderedLock("model"), OrderedLock("writer"):
        pass
