"""Named places where tests let the process die: `GENIUS_FAILPOINT=name`, or `name:3` for the third pass."""

from __future__ import annotations

import os
import signal

VARIABLE = "GENIUS_FAILPOINT"
_passes: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill this process (SIGKILL, no cleanup) when the environment names this place; else do nothing."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    place, _, count = wanted.partition(":")
    if place != name:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if _passes[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
