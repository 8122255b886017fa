"""The answers of systems, cached on disk under everything they depend on."""

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
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.protocol import DEPTH
from genius.evaluate.results import source_hash
from genius.evaluate.systems import System, TopK
from genius.files import storage_errors, write_file

# the source that can change an answer; a new figure or table costs no search
SEARCH_SOURCES = (
    *("data", "decode", "encode", "model.py", "quantize", "search", "training", "types.py"),
    *(f"evaluate/{name}" for name in ("baselines", "code_search.py", "embeddings.py", "inputs.py")),
)


class CachedSearch:
    """A system on a pool whose answers are cached; the pool is indexed once an answer is missing.

    The key holds all that an answer depends on: the system and its settings (the hash of a decoder among
    them), the model's fingerprint, the hashes of pool and queries and of the source of the search.
    """

    def __init__(self, system: System, pool: EncodedPool, cache: Path, fingerprint: str) -> None:
        self._system, self._pool, self._folder = system, pool, cache / "answers"
        settings = json.dumps(dict(system.settings), sort_keys=True, default=str)
        source = source_hash(*SEARCH_SOURCES)
        parts = (system.name, settings, fingerprint, pool.digest, source, str(DEPTH))
        self._key = [part.encode() for part in parts]
        self._indexed = False
        self.bytes_per_item = float("nan")  # known after a search

    def search(self, queries: EncodedQueries) -> tuple[TopK, float]:
        """The DEPTH best items of each query, and the seconds that the search took (now or then)."""
        file = self._folder / f"{key_of(*self._key, queries.digest.encode()).hex()}.safetensors"
        cached = _load_answers(file)
        if cached is not None:
            self.bytes_per_item = float(cached["size"][0])
            return TopK(cached["rows"], cached["scores"]), float(cached["seconds"][0])
        if not self._indexed:
            self._system.index(self._pool)
            self._indexed = True
            self.bytes_per_item = self._system.bytes_per_item()
        start = time.perf_counter()
        top = self._system.search(queries, DEPTH)
        seconds = time.perf_counter() - start
        top.rows[~queries.valid] = NO_ITEM
        tensors: dict[str, NDArray[Any]] = {
            "rows": top.rows,
            "scores": top.scores,
            "seconds": np.array([seconds]),
            "size": np.array([self.bytes_per_item]),
        }
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_file(file, [save(tensors)])
        return top, seconds


def _load_answers(file: Path) -> dict[str, NDArray[Any]] | None:
    """The answers in `file`, None where there are none or they are damaged."""
    try:
        cached = load_file(file)
    except (OSError, SafetensorError):
        return None
    return cached if {"rows", "scores", "seconds", "size"} <= cached.keys() else None
