"""How fast every way to search is, beside what people use: one command for a CPU, one for a GPU.

    python benchmarks/speed.py                               # benchmarks/results/speed-cpu.json
    PYTHONPATH=src python benchmarks/speed.py --device cuda  # benchmarks/results/speed-gpu.json, 8 minutes
    python benchmarks/speed.py --tiny --out -                # every phase in seconds, to see that it works
    python benchmarks/speed.py --phases scale --scale 1000000000     # 1 B synthetic items, 128 GB of memory
    python benchmarks/speed.py --draw                        # pictures and tables again, from what is there

The figures are written after each phase, and a phase that fails leaves its error there instead. The GPU
command needs torch, numpy and (for its own phase) transformers, nothing else; FAISS is for the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import RESULTS, Timer, options, provenance, without, write

from genius.evaluate.provenance import commit

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: a query's products are small


MODULES = {"cpu": ("speed_cpu",), "gpu": ("speed_gpu", "speed_short", "speed_rule")}  # that have phases
LONG = ("command", "commit", "changed", "versions", "us, calls")  # left out of the table that is printed


@dataclass
class SpeedOptions:
    """The options of a run; phases get them."""

    device: str = "cpu"
    phases: list[str] | None = None  # all; `rows` needs data
    data: Path | None = None  # the shared benchmark, for the phase `rows`
    scale: int = 100_000_000  # items of the phase `scale`
    cache: Path | None = None  # folder that keeps what takes long to build
    budget: float = 450  # seconds after which no GPU phase begins
    tiny: bool = False
    gpu_phases: bool = False  # those of a GPU, whatever the device: to see that they work
    draw: bool = False
    out: str | None = None
    deadline: float = float("inf")


def main() -> None:
    args = options(SpeedOptions).parse_args(namespace=SpeedOptions())
    kind = "cpu" if args.device == "cpu" and not args.gpu_phases else "gpu"
    if not args.draw:
        measure(args, kind, RESULTS / f"speed-{kind}.json" if args.out is None else Path(args.out))
    if args.out is None or args.draw:
        try:
            draw = importlib.import_module("speed_draw")
            draw.draw(RESULTS, RESULTS.parents[1] / "docs")
        except ImportError as error:
            print(f"no pictures here ({error}): run with --draw where matplotlib is", file=sys.stderr)


def measure(args: SpeedOptions, kind: str, out: Path) -> None:
    """Run the phases one after the other; what is there of earlier runs is kept.

    A phase yields its figures whenever it has more of them.
    """
    phases: dict[str, Any] = {}
    for name in MODULES[kind]:
        phases |= importlib.import_module(name).PHASES
    result: dict[str, Any] = {}
    if str(out) != "-" and out.exists() and args.phases:
        result = json.loads(out.read_text())
    names = args.phases or [name for name in phases if name != "rows" or args.data]
    if kind == "cpu" and len(names) > 1:  # FAISS and torch bring their own thread pools: not in one process
        for name in names:
            rest = [sys.executable, __file__, "--phases", name, *without(sys.argv[1:], "--phases")]
            subprocess.run(rest, check=False, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        return
    if kind == "gpu":
        args.deadline = time.perf_counter() + args.budget
    commit()  # now: the checkout may move on while this runs
    for name in names:
        if time.perf_counter() > args.deadline:
            result.setdefault(name, {"left out": "no time was left: ask for it by --phases"})
            continue
        print(f"--- {name}", file=sys.stderr, flush=True)
        with Timer() as timer:
            for figures in guarded(phases[name], args):
                result[name] = {**figures, "phase_seconds": round(timer.so_far(), 1), **provenance()}
                if str(out) != "-":
                    write(out, result)
        print(json.dumps({name: result[name]}, indent=1), flush=True)
    print(table(result, names), flush=True)


def table(result: dict[str, Any], phases: list[str]) -> str:
    """The figures of these phases, one line each."""
    lines = []
    for phase in phases:
        for name, value in result.get(phase, {}).items():
            if name not in LONG:
                parts = value.items() if isinstance(value, dict) else [("", value)]
                shown = "  ".join(f"{key} {own}".strip() for key, own in parts if key not in LONG)
                lines.append(f"{phase:8} {name:60} {shown}")
    return "\n".join(lines)


def guarded(phase: Any, args: SpeedOptions) -> Any:
    """The figures of a phase; an error ends it and becomes one of them, for the other phases shall run."""
    figures: dict[str, Any] = {}
    try:
        for figures in phase(args):
            yield figures
    except Exception as error:
        traceback.print_exc()
        yield {**figures, "error": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    main()
