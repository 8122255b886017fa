"""How soon `genius search` answers: from the start of the process to the first line of the answer.

    python benchmarks/startup.py                       # benchmarks/results/startup.json
    python benchmarks/startup.py --repeats 2 --out -   # a quick look

A small index is made with the shipped model. Then processes take turns: `python -c "import torch"`, which no
search with a network can do without, and searches by text, by image, with the decoder. Medians; `over_torch`
is the ratio to that import in the same run, and `parts` says where one search spends its time. Promised: the
first line within 2 s, once the files have been read before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness import run
from PIL import Image

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "brown", "orange")
TORCH = (sys.executable, "-c", "import torch; print(torch.__version__, flush=True)")
PARTS = """
import time
last = time.perf_counter()
parts = {}
def lap(name):
    global last
    now = time.perf_counter()
    parts[name] = round(1000 * (now - last))
    last = now
from genius.cli import app
import typer.main
typer.main.get_command(app)
lap("import the command line")
from genius.engine import Engine
from genius.engine.opening import load_model
lap("import the engine")
import torch
lap("import torch")
model = load_model("mini")
lap("load encoder and quantizer")
engine = Engine.open("idx", model=model)
engine.stats()
lap("open the index")
engine.search("something red", want="image")
lap("first search")
engine.search("something blue", want="image")
lap("next search")
import json
print(json.dumps(parts))
"""


def main(repeats: int = 7) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        make_index(folder)
        search = (sys.executable, "-m", "genius", "search", "--in", "idx", "--want", "image")
        commands = {
            "import torch": TORCH,
            "search by text": (*search, "something red"),
            "search by image": (*search, "--image", "photos/red.png"),
            "search with the decoder": (*search, "something red", "--search", "generate"),
        }
        return {
            "promised_seconds": 2,
            "processes": compare(folder, commands, repeats),
            "parts_ms": parts(folder, repeats),
        }


def make_index(folder: Path) -> None:
    (folder / "photos").mkdir()
    for colour in COLOURS:
        Image.new("RGB", (320, 240), colour).save(folder / "photos" / f"{colour}.png")
    command = [sys.executable, "-m", "genius", "index", "photos", "--to", "idx"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def compare(folder: Path, commands: Mapping[str, Sequence[str]], repeats: int) -> dict[str, Any]:
    """Medians of each command; they take turns, so a busy machine is busy for all of them."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(repeats + 1):
        for name, command in commands.items():
            seconds = first_line(folder, command)
            if number:  # the first round only brings the files into memory
                times[name].append(seconds)
    torch = statistics.median(first for first, _ in times["import torch"])
    table = {}
    for name, pairs in times.items():
        firsts, ends = zip(*pairs, strict=True)
        table[name] = {
            "first_line_s": round(statistics.median(firsts), 2),
            "slowest_first_line_s": round(max(firsts), 2),
            "end_s": round(statistics.median(ends), 2),
            "over_torch": round(statistics.median(firsts) / torch, 2),
        }
    return table


def first_line(folder: Path, command: Sequence[str]) -> tuple[float, float]:
    """Seconds until a process prints its first line, and until it has ended."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    first = time.perf_counter() - began
    _, errors = process.communicate()
    if process.returncode or not line:
        sys.exit(errors.decode())
    return first, time.perf_counter() - began


def parts(folder: Path, repeats: int) -> dict[str, int]:
    """Milliseconds of each part of one search, medians over processes."""
    command = [sys.executable, "-c", PARTS]
    runs = [
        json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)
        for _ in range(repeats)
    ]
    return {name: round(statistics.median(run[name] for run in runs)) for name in runs[0]}


if __name__ == "__main__":
    run(main)
