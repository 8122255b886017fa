"""Images of strangers decoded in a process of their own, which may take only so much time and memory.

Whatever a decoder does with a hostile file, the process that asked goes on. The other side is this file, too:

    python -m genius.data.isolated < requests > responses

A message, in both directions, is a JSON object with its length before it, then `bytes` bytes.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from PIL import Image

from genius.data.images import MAX_PIXELS, open_image
from genius.data.report import printable
from genius.errors import BadImage

SECONDS = 5.0  # of processor time for an image
MEMORY = 1 << 30  # bytes of address space
FILE_MEMORY = 2 << 30  # the same for files of one's own, which are not scaled down and may be larger
SMALL = 1 << 20  # bytes of a file; within the other limits of `open_image` no such file takes 3 seconds
PROCESSES = 4  # that decode files of one's own
WALL = 6  # times the seconds of processor time: on a busy machine all takes longer
START_S = 60.0  # for the process to begin, which counts against no image
_LENGTH = struct.Struct(">I")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class ImageProcess:
    """A process that decodes one image after the other; started when first used, and again after a kill.

    One thread at a time may call `decode`; any other may call `kill`.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = self._closed = False
        self._lock = threading.Lock()

    def decode(
        self,
        source: bytes | Path,
        side: int,
        max_pixels: int = MAX_PIXELS,
        seconds: float | None = None,
        *,
        fit: bool = True,
    ) -> Image.Image:
        """The image, upright and RGB, scaled down until both sides are at most `side`.

        Without `fit`, the image that `open_image(source, max_pixels, at_least=side)` gives.

        Raises BadImage if it cannot be decoded, or not within `seconds` of processor time or the memory of
        the process.
        """
        data = source if isinstance(source, bytes) else b""
        path = None if isinstance(source, bytes) else os.fsencode(source).decode("latin-1")
        header = {"path": path, "side": side, "fit": fit, "max_pixels": max_pixels, "seconds": seconds}
        expired = threading.Event()
        try:
            process = self._started()
            with self._killed_after(None if seconds is None else WALL * seconds, expired):
                answer, pixels = _exchange(process, {**header, "bytes": len(data)}, data)
        except (OSError, EOFError, ValueError):
            in_time = self._reap() != -signal.SIGPROF and not expired.is_set()
            why = "its decoder has ended" if in_time else f"not decoded within {seconds:g} s"
            raise BadImage(f"{_name(source)}: {why}; save it again, or scale it down first") from None
        if "error" in answer:
            raise BadImage(answer["error"])
        return Image.frombytes("RGB", tuple(answer["size"]), pixels)

    def kill(self) -> None:
        """End the process, whatever it is doing; a `decode` under way raises BadImage."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._killed = True

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closed = True
        self.kill()
        self._reap()

    @contextmanager
    def _killed_after(self, seconds: float | None, expired: threading.Event) -> Iterator[None]:
        """The process is killed, and `expired` set, unless what is inside ends within `seconds`."""
        if seconds is None:
            yield
            return

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, alive as far as one can tell."""
        if self._process is not None and not self._killed and self._process.poll() is None:
            return self._process
        self._reap()
        command = [sys.executable, "-P", "-m", "genius.data.isolated", str(self.memory)]
        with self._lock:
            if self._closed:
                raise EOFError
            self._killed = False
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
            process = self._process
        with self._killed_after(START_S, threading.Event()):
            _message(process)  # it is there
        return process

    def _reap(self) -> int:
        """Let go of a process that has ended, or end it; its exit code."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return 0
        try:
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not written any more
                    continue
        return code


class _FileProcesses:
    """Processes for `open_in_time`, started when they are needed and kept until this process ends."""

    def __init__(self) -> None:
        self._all = [ImageProcess(FILE_MEMORY) for _ in range(PROCESSES)]
        self._idle: queue.LifoQueue[ImageProcess] = queue.LifoQueue()
        for process in self._all:
            self._idle.put(process)
        atexit.register(self._close)

    def decode(self, data: bytes, side: int, seconds: float) -> Image.Image:
        process = self._idle.get()
        try:
            return process.decode(data, side, seconds=seconds, fit=False)
        finally:
            self._idle.put(process)

    def _close(self) -> None:
        for process in self._all:
            process.close()


_files: _FileProcesses | None = None
_files_lock = threading.Lock()


def open_in_time(source: bytes, side: int, seconds: float = SECONDS) -> Image.Image:
    """What `open_image(source, at_least=side)` gives; raises BadImage where that takes longer than `seconds`.

    Only large files are decoded in a process of their own: that costs a start and a copy of the pixels.
    """
    global _files
    if len(source) <= SMALL:
        return open_image(source, at_least=side)
    with _files_lock:
        if _files is None:
            _files = _FileProcesses()
    return _files.decode(source, side, seconds)


def _name(source: bytes | Path) -> str:
    return "image" if isinstance(source, bytes) else printable(source)


def _exchange(
    process: subprocess.Popen[bytes], header: dict[str, Any], data: bytes
) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None
    _write(process.stdin, header, data)
    return _message(process)


def _message(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None
    message = _read(process.stdout)
    if message is None:
        raise EOFError
    return message


def _write(stream: IO[bytes], header: dict[str, Any], data: bytes) -> None:
    encoded = json.dumps(header).encode()
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end. Raises EOFError inside a message."""
    length = stream.read(_LENGTH.size)
    if not length:
        return None
    header = json.loads(stream.read(_LENGTH.unpack(length)[0]))
    data = stream.read(header["bytes"])
    if len(data) < header["bytes"]:
        raise EOFError
    return header, data


def _answer(header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    source = data if header["path"] is None else Path(os.fsdecode(header["path"].encode("latin-1")))
    signal.setitimer(signal.ITIMER_PROF, header["seconds"] or 0)  # at its end, SIGPROF ends the process
    try:
        # no side gets shorter than `side`, unless it was: a large JPEG is decoded small
        image = open_image(source, header["max_pixels"], at_least=header["side"])
        if header["fit"]:
            image.thumbnail((header["side"], header["side"]))
        pixels = image.tobytes()
    except BadImage as error:
        return {"error": str(error), "bytes": 0}, b""
    except MemoryError:
        return {"error": f"{_name(source)}: too large to decode; scale it down first", "bytes": 0}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"size": image.size, "bytes": len(pixels)}, pixels


def _main() -> None:
    """Answer requests until there are no more."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    memory = int(sys.argv[1])
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    _write(sys.stdout.buffer, {"bytes": 0}, b"")
    while (message := _read(sys.stdin.buffer)) is not None:
        _write(sys.stdout.buffer, *_answer(*message))


if __name__ == "__main__":
    _main()
