"""Embeddings from files: each format gives the same items; what does not fit is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_brain_floats

from genius.data.report import Report
from genius.data.tables import read_items
from genius.errors import BadData
from genius.types import Modality

POINTS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
IDS = [f"name {n}" for n in range(5)]


def rows(**more: object) -> list[dict[str, object]]:
    return [{"id": id, "vector": point.tolist(), **more} for id, point in zip(IDS, POINTS, strict=True)]


def write(folder: Path, form: str) -> Path:
    file = folder / f"some.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    elif form == "csv":
        file.write_text("id,vector\n" + "".join(f'{r["id"]},"{json.dumps(r["vector"])}"\n' for r in rows()))
    elif form == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({"id": IDS, "vector": list(POINTS)}), file)
    else:
        np.save(file, POINTS) if form == "npy" else save_file({"vectors": POINTS, "other": POINTS[0]}, file)
        file.with_suffix(".txt").write_text("\n".join(IDS))
    return file


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "npy", "safetensors"])
def test_every_format_gives_the_same_items(tmp_path: Path, form: str) -> None:
    items = list(read_items(write(tmp_path, form)))
    assert [item.id for item in items] == IDS
    assert np.allclose([item.vector for item in items], POINTS)
    assert {item.modality for item in items} == {Modality.TEXT}


def test_lines_beside_an_array_say_more(tmp_path: Path) -> None:
    np.save(tmp_path / "some.npy", POINTS)
    lines = [{"id": id, "image": f"gone/{id}.jpg", "price": n} for n, id in enumerate(IDS)]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_items(tmp_path / "some.npy"))
    assert items[2].image == tmp_path / "gone/name 2.jpg"  # which need not exist
    assert items[2].meta == {"price": 2}
    assert items[2].modality is Modality.IMAGE
    (tmp_path / "some.jsonl").write_text("{}\n")
    with pytest.raises(BadData, match="1 lines for the 5 vectors"):
        list(read_items(tmp_path / "some.npy"))


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    np.save(tmp_path / "some.npy", POINTS.astype(np.float16))
    assert [item.id for item in read_items(tmp_path / "some.npy")] == ["0", "1", "2", "3", "4"]


def test_files_that_hold_no_vectors(tmp_path: Path) -> None:
    file = tmp_path / "some.npy"
    for content in (np.zeros(4), np.zeros((2, 2, 2)), np.array([["a", "b"]]), np.zeros((3, 0))):
        np.save(file, content)
        with pytest.raises(BadData, match="one vector a row"):
            list(read_items(file))
    file.write_bytes(b"no array")
    with pytest.raises(BadData, match="cannot be read as vectors"):
        list(read_items(file))
    (tmp_path / "damaged.safetensors").write_bytes(b"")
    with pytest.raises(BadData, match=r"cannot be read as vectors: [^;]*$"):
        list(read_items(tmp_path / "damaged.safetensors"))
    save_brain_floats({"vectors": torch.ones(2, 4, dtype=torch.bfloat16)}, tmp_path / "brain.safetensors")
    with pytest.raises(BadData, match="save it as float32 or float16"):
        list(read_items(tmp_path / "brain.safetensors"))
    save_file({"a": POINTS, "b": POINTS}, tmp_path / "two.safetensors")
    with pytest.raises(BadData, match="several tensors"):
        list(read_items(tmp_path / "two.safetensors"))


def test_a_bad_row_costs_only_itself(tmp_path: Path) -> None:
    report = Report()
    bad = [[1, "x"], [0, 0, 0, 0], [], [[1, 2, 3, 4]], 7, "no list"]
    lines = [*rows()[:2], *({"id": f"bad {n}", "vector": vector} for n, vector in enumerate(bad))]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [item.id for item in read_items(tmp_path / "some.jsonl", report=report)] == IDS[:2]
    assert [reason for _, reason in report.names] == [
        "the vector must be a list of numbers",
        "the vector is all zeros, which points nowhere: embed it again, or leave it out",
        "the vector has the shape (0,): give one list of numbers for each item or query",
        "the vector has the shape (1, 4): give one list of numbers for each item or query",
        "the vector must be a list of numbers",
        "the vector must be a list of numbers, as [0.1, 0.2]",
    ]


def test_columns_of_parquet(tmp_path: Path) -> None:
    """Lists of any kind are read; a column `vector` of other things costs its rows, not the run."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "some.parquet"
    cells = [point.astype(np.float16) for point in POINTS]
    for kind in (
        pa.list_(pa.float16()),
        pa.list_(pa.float64()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 4),
    ):
        values = cells if kind.value_type == pa.float16() else [cell.tolist() for cell in cells]
        parquet.write_table(pa.table({"id": IDS, "vector": pa.array(values, kind)}), file)
        assert np.array_equal([item.vector for item in read_items(file)], np.stack(cells)), kind
    for column in ([1.0] * 5, ["[1, 2]x"] * 5, [[[1.0]]] * 5):
        parquet.write_table(pa.table({"id": IDS, "vector": column}), file)
        report = Report()
        assert list(read_items(file, report=report)) == []
        assert report.skipped == 5
