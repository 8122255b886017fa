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

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: a query's products are small
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--phases", nargs="+", help="default: all; `rows` needs --data")
    parser.add_argument("--data", type=Path, help="the shared benchmark, for the phase `rows`")
    parser.add_argument("--scale", type=int, default=100_000_000, help="items of the phase `scale`")
    parser.add_argument("--cache", type=Path, help="folder that keeps what takes long to build")
    parser.add_argument("--budget", type=float, default=450, help="seconds after which no GPU phase begins")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--out", help="a file, or - for none")
    args = parser.parse_args()
    kind = "cpu" if args.device == "cpu" else "gpu"
    out = RESULTS / f"speed-{kind}.json" if args.out is None else Path(args.out)
    if not args.draw:
        measure(args, kind, out)
    if args.out is None or args.draw:
        try:
            draw = importlib.import_module("speed_draw")
            draw.draw(RESULTS, Path(__file__).parent.parent / "docs")
        except ImportError as error:
            print(f"no pictures here ({error}): run with --draw where matplotlib is", file=sys.stderr)


def measure(args: argparse.Namespace, kind: str, out: Path) -> None:
    """Run the phases one after the other; what is there of earlier runs is kept."""
    phases = importlib.import_module(f"speed_{kind}").PHASES
    result: dict[str, Any] = {}
    if str(out) != "-" and out.exists() and args.phases:
        result = json.loads(out.read_text())
    names = args.phases or [name for name in phases if name != "rows" or args.data]
    if kind == "cpu" and len(names) > 1:  # FAISS and torch bring their own thread pools: not in one process
        for name in names:
            rest = [sys.executable, __file__, "--phases", name, *_without(sys.argv[1:], "--phases")]
            subprocess.run(rest, check=False, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        return
    args.deadline = time.perf_counter() + (args.budget if kind == "gpu" else 1e9)
    for name in names:
        begin = time.perf_counter()
        if begin > args.deadline:
            result.setdefault(name, {"left out": "no time was left: ask for it by --phases"})
            continue
        print(f"--- {name}", file=sys.stderr, flush=True)
        args.save = partial(_save, result, name, out, begin)
        try:
            args.save(phases[name](args))
        except Exception as error:  # the other phases shall run
            traceback.print_exc()
            args.save({**result.get(name, {}), "error": f"{type(error).__name__}: {error}"[:500]})
        print(json.dumps({name: result[name]}, indent=1), flush=True)


def _without(arguments: list[str], *options: str) -> list[str]:
    """The arguments of the command but for these options and their values."""
    kept, skipping = [], False
    for argument in arguments:
        skipping = argument in options or (skipping and not argument.startswith("--"))
        if not skipping:
            kept.append(argument)
    return kept


def _typed() -> str:
    """The command, with BENCH in place of the data's folder."""
    words = ["python benchmarks/speed.py", *_without(sys.argv[1:], "--cache", "--out")]
    return " ".join(
        "BENCH" if before == "--data" else word for before, word in zip(["", *words], words, strict=False)
    )


def _save(result: dict[str, Any], name: str, out: Path, begin: float, figures: dict[str, Any]) -> None:
    """Keep what a phase has so far."""
    result[name] = {
        **figures,
        "phase_seconds": round(time.perf_counter() - begin, 1),
        "command": _typed(),
        "versions": importlib.import_module("pools").versions(),
    }
    if str(out) != "-":
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
