"""One small Ray for all tests of the folder, the embedded model, and sources of every kind."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import socket
import sqlite3
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genius.engine import Engine
from genius.model import MODELS

COLOURS = ("red", "green", "blue", "yellow", "cyan", "magenta", "white", "black", "orange", "purple")
UNEQUAL = ("seen_ns", "content_sum")  # the moment of reading, and what sums it up: others in every run


@pytest.fixture(scope="session")
def s3_socket() -> Iterator[socket.socket]:
    """Where the S3 server listens once there is one; clients find it by the environment."""
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patch:
        port = listening.getsockname()[1]
        values = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "id",
                  "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                  "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
        for name, value in values.items():
            patch.setenv(name, value)
        yield listening


@pytest.fixture(scope="session")
def ray(s3_socket: socket.socket) -> Iterator[Any]:
    """Ray with two processors, shared by all tests; its workers have the environment of its start."""
    pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # as in genius.cluster.session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray as module

        module.init(
            address="local",  # never one that another program has started
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=200 * 2**20,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    yield module
    module.shutdown()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the embedded model."""
    folder = tmp_path_factory.mktemp("models") / "mini"
    shutil.copytree(MODELS / "mini", folder)
    return folder


def picture(number: int) -> bytes:
    """A small picture that no other number has."""
    noise = np.random.default_rng(number)
    buffer = io.BytesIO()
    Image.fromarray(noise.integers(0, 256, (40, 56, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def caption(number: int) -> str:
    """A text; lengths differ, so a batch is padded by its longest."""
    return f"number {number}: " + " and ".join(COLOURS[: 1 + number % len(COLOURS)])


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same kinds of items as a folder, as JSONL with bad lines, as Parquet and as a tar shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("sources")
    folder = root / "folder"
    (folder / "inner").mkdir(parents=True)
    for number in range(24):
        (folder / "inner" / f"{number:03}.png").write_bytes(picture(number))
        if number % 2:
            (folder / "inner" / f"{number:03}.txt").write_text(caption(number))
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    lines = []
    for number in range(150):
        fields: dict[str, Any] = {"id": f"l{number}", "text": caption(number), "number": number}
        if number % 10 == 0:
            fields["image"] = f"folder/inner/{number % 24:03}.png"
        lines.append("no JSON" if number in (3, 100) else json.dumps(fields))
    (root / "lines.jsonl").write_text("\n".join(lines) + "\n")
    rows = {
        "id": [f"q{n}" for n in range(90)],
        "text": [caption(n) for n in range(90)],
        "image": [picture(100 + n) if n % 9 == 0 else None for n in range(90)],
        "price": [float(n) for n in range(90)],
    }
    pq.write_table(pa.table(rows), root / "rows.parquet", row_group_size=30)
    with tarfile.open(root / "shard.tar", "w") as shard:
        for number in range(20):
            for name, data in (
                (f"w/{number:03}.jpg", picture(200 + number)),
                (f"w/{number:03}.json", json.dumps({"text": caption(number), "from": "web"}).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return {"folder": folder, "jsonl": root / "lines.jsonl", "parquet": root / "rows.parquet",
            "tar": root / "shard.tar"}  # fmt: skip


def processes_below(root: int) -> dict[int, bytes]:
    """The living processes that `root` and its children have started, with their command lines."""
    parents, words = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            words[int(process.name)] = (process / "cmdline").read_bytes()  # empty once it has ended
        except OSError:
            continue
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid: words[pid] for pid in below - {root} if words.get(pid)}


def rows_of(index: Path) -> list[dict[str, Any]]:
    """The rows of the truth in order, without what differs from run to run."""
    with sqlite3.connect(index / "index.sqlite") as truth:
        truth.row_factory = sqlite3.Row
        rows = [dict(row) for row in truth.execute("SELECT * FROM items ORDER BY row")]
        small = truth.execute("SELECT * FROM thumbnails ORDER BY row").fetchall()
    truth.close()
    kept = [{name: value for name, value in row.items() if name not in UNEQUAL} for row in rows]
    return [*kept, {"thumbnails": [tuple(row) for row in small]}]


def arrays_of(index: Path) -> dict[str, bytes]:
    """The arrays of the published generation, byte for byte."""
    (folder,) = sorted(index.glob("generation-*"))[-1:]
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.bin"))}


@pytest.fixture(scope="session")
def plain(model: Path, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of all sources that one process makes."""
    import torch

    from genius.data.tables import read_items

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("plain") / "index"
    with Engine.create(folder, model) as engine:
        for source in sources.values():
            engine.add(read_items(source), source=str(source))
        engine.compact()
    return folder


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """What this file has that is no fixture."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
