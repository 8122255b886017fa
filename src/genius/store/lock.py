"""One writer per index: an flock that the kernel drops with the process, and a note saying who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from genius.errors import IndexLocked
from genius.files import storage_errors


class WriterLock:
    """The exclusive right to write to one index; re-entrant for its owner."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._handle: int | None = None
        self._depth = 0

    def acquire(self) -> None:
        """Take the lock at once, or raise IndexLocked saying who has it."""
        if self._handle is None:
            with storage_errors(self.file):
                handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(handle)
                os.close(handle)
                raise IndexLocked(
                    f"{self.file.parent} is being written by {holder}: wait for it to end, or stop it, "
                    "then run again; searching goes on meanwhile"
                ) from None
            self._handle = handle
            self._leave_note(handle)
        self._depth += 1

    def release(self) -> None:
        """Give the lock back once every `acquire` is matched."""
        if self._handle is None:
            return
        self._depth -= 1
        if self._depth == 0:
            os.close(self._handle)  # closing drops the flock
            self._handle = None

    def __enter__(self) -> WriterLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _leave_note(self, handle: int) -> None:
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        # The note helps people only; a full disk must not keep anybody from `remove` or `compact`.
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(note).encode(), 0)
        except OSError:
            pass


def _holder(handle: int) -> str:
    try:
        note = json.loads(os.pread(handle, 4096, 0))
        # json escapes control characters, so a strange command line cannot write to the terminal
        return (
            f"process {int(note['pid'])} on {json.dumps(note['host'])} since {json.dumps(note['since'])} "
            f"({json.dumps(note['command'])})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
