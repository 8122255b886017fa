"""Answers of a system on a pool, kept on disk under everything they depend on.

The key holds the system and its settings (the weights of a decoder among them), the model's fingerprint, the
hashes of pool, queries and of the source that finds answers: nothing old is ever served for something new,
and a stopped evaluation searches only what is left.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from genius.evaluate.cache import key_of
from genius.evaluate.encoding import Pool, Questions
from genius.evaluate.metrics import NOTHING
from genius.evaluate.protocol import DEPTH
from genius.evaluate.results import source_hash
from genius.evaluate.systems import Found, System
from genius.files import storage_errors, write_file

# what can change an answer; a new picture or table costs no search
SOURCES = (
    *("data", "decode", "encode", "model.py", "quantize", "search", "training", "types.py"),
    *(
        f"evaluate/{name}"
        for name in ("baselines", "code_search.py", "contents.py", "encoding.py", "examples.py")
    ),
)


class Searcher:
    """A system on a pool; the pool is indexed once an answer is asked for that is not kept from before."""

    def __init__(self, system: System, pool: Pool, cache: Path, fingerprint: str) -> None:
        self._system, self._pool, self._folder = system, pool, cache / "answers"
        settings = json.dumps(dict(system.settings), sort_keys=True, default=str)
        parts = (system.name, settings, fingerprint, pool.digest, source_hash(*SOURCES), str(DEPTH))
        self._marks = [part.encode() for part in parts]
        self._indexed = False
        self._size = float("nan")

    def search(self, questions: Questions) -> tuple[Found, float]:
        """DEPTH answers for each query, and the seconds that finding them took (now or then)."""
        file = self._folder / f"{key_of(*self._marks, questions.digest.encode()).hex()}.safetensors"
        kept = _read(file)
        if kept is not None:
            self._size = float(kept["size"][0])
            return Found(kept["rows"], kept["scores"]), float(kept["seconds"][0])
        if not self._indexed:
            self._system.index(self._pool)
            self._indexed = True
            self._size = self._system.bytes_per_item()
        start = time.perf_counter()
        found = self._system.search(questions, DEPTH)
        seconds = time.perf_counter() - start
        found.rows[~questions.askable] = NOTHING
        tensors: dict[str, NDArray[Any]] = {
            "rows": found.rows,
            "scores": found.scores,
            "seconds": np.array([seconds]),
            "size": np.array([self._size]),
        }
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_file(file, [save(tensors)])
        return found, seconds

    def bytes_per_item(self) -> float:
        """What the index takes per item, known after a search."""
        return self._size


def _read(file: Path) -> dict[str, NDArray[Any]] | None:
    """The answers in `file`, None where there are none or they are damaged."""
    try:
        kept = load_file(file)
    except (OSError, SafetensorError):
        return None
    return kept if {"rows", "scores", "seconds", "size"} <= kept.keys() else None
