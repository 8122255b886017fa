"""Pictures of requests to pixels: in a few processes, with a bounded queue in front of them."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from genius.data.images import MAX_PIXELS
from genius.data.isolated import ImageProcess
from genius.serve.batching import Busy

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 1024  # pixels: more than any encoder looks at, and few enough to keep many in memory


class ImageDecoder:
    """Decodes images outside this process; what nobody waits for any more is given up."""

    def __init__(self, *, processes: int, waiting: int, seconds: float) -> None:
        """`waiting` is how many images may wait or be decoded at a time, `seconds` the limit for each."""
        self._most, self._seconds = waiting, seconds
        self._waiting = 0
        self._threads = ThreadPoolExecutor(processes, "decode")
        self._idle: queue.LifoQueue[ImageProcess] = queue.LifoQueue()
        self._all = [ImageProcess() for _ in range(processes)]
        for process in self._all:
            self._idle.put(process)

    async def decode(self, source: bytes | Path, max_pixels: int = MAX_PIXELS, side: int = SIDE) -> Image:
        """The image, RGB, scaled down to `side`; raises BadImage, or Busy if too many wait already."""
        if self._waiting >= self._most:
            raise Busy(f"{self._most} pictures are waiting already: try again in a moment", 429)
        self._waiting += 1
        running: list[ImageProcess] = []
        lock = threading.Lock()  # no process is killed for what it did before

        def work() -> Image:
            process = self._idle.get()
            running.append(process)
            try:
                return process.decode(source, side, max_pixels, self._seconds)
            finally:
                with lock:
                    running.clear()
                self._idle.put(process)

        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await future
        except asyncio.CancelledError:
            with lock:
                for process in running:
                    process.kill()
            raise
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Give up what is under way and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.kill()
        self._threads.shutdown()
        for process in self._all:
            process.close()
