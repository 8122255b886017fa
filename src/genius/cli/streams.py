"""Standard streams that may be closed, full or of another encoding: an error of ours, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

from genius.errors import StorageError

STDIN, STDOUT, STDERR = 0, 1, 2


class OutputLost(StorageError):
    """What was printed did not reach its reader."""

    def __init__(self, number: int | None, reason: str) -> None:
        super().__init__(
            f"cannot write the output ({reason}), so it is incomplete; what the command changed is committed"
        )
        self.reader_left = number == errno.EPIPE  # as `head` does: it has seen enough, nothing is wrong
        if self.reader_left:
            self.exit_code = 1


class _Output(io.FileIO):
    """A file descriptor whose refusals are OutputLost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLost(error.errno, error.strerror or str(error)) from None


class _Chatter(io.FileIO):
    """A file descriptor for progress and reports: work does not stop because nobody can read them."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _ClosedOutput(io.RawIOBase):
    """In the place of a stdout that was closed before we began."""

    def writable(self) -> bool:
        return True

    def write(self, _: Any) -> int | None:
        raise OutputLost(errno.EBADF, "stdout is closed")


def guard() -> None:
    """Make the standard streams safe to print to; streams that somebody has replaced are left as they are."""
    for number in (STDIN, STDOUT, STDERR):  # or the next file that is opened would get the number of a stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = _text(_Chatter(STDERR, "w", closefd=False), "utf-8", lines=True)
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text(_Chatter(STDERR, "w", closefd=False), sys.stderr.encoding, lines=True)
    if sys.stdout is None:
        sys.stdout = _text(_ClosedOutput(), "utf-8", lines=False)
    elif sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        raw = _Output(STDOUT, "w", closefd=False)
        sys.stdout = _text(raw, sys.stdout.encoding, lines=sys.stdout.isatty())


def _text(raw: io.RawIOBase, encoding: str, *, lines: bool) -> io.TextIOWrapper:
    # what the encoding lacks is escaped: a name in another script is no reason to fail
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=lines
    )


def flush() -> None:
    """Send what was printed on its way; raises OutputLost."""
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon() -> None:
    """Drop what cannot be printed, so that the end of the process does not fail on it once more."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, STDOUT)
        os.close(null)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123


def complain(message: str) -> None:
    """Print an error to stderr, control characters escaped."""
    from genius.data.report import printable

    print(
        "\n".join(printable(line) for line in f"genius: {message}".split("\n")), file=sys.stderr, flush=True
    )
