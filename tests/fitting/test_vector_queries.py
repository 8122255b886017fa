"""Embeddings made elsewhere as queries of the command line: one in a file, many in another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

POINTS = np.eye(4, dtype=np.float32)


@pytest.fixture
def indexed(genius: Any, tmp_path: Path) -> Any:
    """Runs `genius search` in an index of four vectors, whose ids are row numbers."""
    np.save(tmp_path / "points.npy", POINTS)
    assert genius("index", "points.npy", "--to", "idx", "--encoder", "vectors").code == 0
    return lambda *words: genius("search", *words, "--in", "idx", "-k", "1", "--format", "json")


def test_a_query_is_a_file(indexed: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "query.npy", POINTS[2:3].astype(np.float16))
    (tmp_path / "query.json").write_text("[0, 0, 2, 0]")
    for name in ("query.npy", "query.json"):
        assert json.loads(indexed("--vector", name).out)[0]["id"] == "2"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (np.array(["a", "b"]), "holds no vector (<U1)"),
        (np.ones(4, complex), "holds no vector (complex128)"),
        (np.ones((2, 4)), "has the shape (2, 4): a query is one vector"),
        (np.ones(3), "3 numbers where this index has 4"),
        (np.full(4, np.nan), "NaN"),
        (np.zeros(4), "all zeros"),
    ],
)
def test_what_is_no_query_is_said_in_one_line(
    indexed: Any, tmp_path: Path, content: np.ndarray, reason: str
) -> None:
    np.save(tmp_path / "query.npy", content)
    done = indexed("--vector", "query.npy")
    assert done.code == 2
    assert reason in done.err and done.err.count("\n") == 1


def test_many_queries_are_lines(indexed: Any, tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    lines = [{"vector": POINTS[3].tolist()}, {"id": "first", "vector": POINTS[0].tolist(), "want": "text"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(indexed("--queries", file).out)
    assert [(one["query"], one["hits"][0]["id"]) for one in found] == [("1", "3"), ("first", "0")]
    for wrong, reason in (("[]", "shape (0,)"), ('"x"', "list of numbers"), ("[0, 0]", "all zeros")):
        file.write_text(f'{{"vector": {wrong}}}\n')
        done = indexed("--queries", file)
        assert done.code == 2 and "queries.jsonl:1: the vector" in done.err and reason in done.err
