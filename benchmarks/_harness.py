"""What all benchmarks share: options from a function's signature, timing, versions, and the JSON file.

    def main(items: int = 5_600_000) -> dict[str, Any]: ...

    if __name__ == "__main__":
        run(main)

makes `python benchmarks/trie.py --items 1000 --out -` work: the result is printed with the command, the
commit and the versions it depends on, and written to benchmarks/results/trie.json, or wherever `--out` says
(- for nowhere).
A `main` that yields is saved at each yield, so a run that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import shlex
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from genius.evaluate.provenance import commit

RESULTS = Path(__file__).resolve().parent / "results"
FOLDERS = {
    "--data": "BENCH",
    "--photos": "PHOTOS",
    "--features": "FEATURES",
    "--towers": "TOWERS",
    "--runs": "RUNS",
    "--before": "OLD",
}  # option: what stands for its value in a command
LIBRARIES = ("faiss", "onnxruntime", "transformers", "ray", "PIL")
Call = Callable[[int], Any]  # number of the repetition


def run(main: Callable[..., Any]) -> None:
    """Run `main` with the options of the command line."""
    script = Path(sys.argv[0])
    values = vars(options(main).parse_args())
    out = values.pop("out")
    file = None if out == "-" else Path(out) if out else RESULTS / f"{script.stem}.json"
    commit()  # now: the checkout may move on while this runs
    found = main(**values)
    result: dict[str, Any] = {}
    for figures in found if inspect.isgenerator(found) else [found]:
        assert not {"command", "commit"} & figures.keys(), "these say how the figures were made"
        result = {**provenance(), **figures}
        if file is not None:
            write(file, result)
    print(json.dumps(result, indent=2, ensure_ascii=False))


def options(main: Callable[..., Any]) -> argparse.ArgumentParser:
    """A parser with an option for each parameter of `main`: --items for `items: int = 1000`."""
    help_text = inspect.getmodule(main).__doc__
    parser = argparse.ArgumentParser(
        description=help_text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    hints = get_type_hints(main)
    for name, parameter in inspect.signature(main).parameters.items():
        kind, default = hints[name], parameter.default
        if get_origin(kind) is types.UnionType:  # X | None
            kind = get_args(kind)[0]
        several = get_origin(kind) is list
        settings: dict[str, Any] = {"type": get_args(kind)[0] if several else kind}
        settings |= {"nargs": "+"} if several else {}
        if kind is bool:
            settings = {"action": "store_true"}
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            parser.add_argument(name, **settings)
        else:
            required = default is inspect.Parameter.empty
            settings |= {"required": True} if required else {"default": default}
            parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    if "out" not in hints:
        parser.add_argument("--out", help="a file, or - for none")
    return parser


def write(file: Path, result: Mapping[str, Any]) -> None:
    """Write the result as JSON."""
    file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def provenance() -> dict[str, Any]:
    """What a result file begins with: command, commit and versions."""
    return {"command": command(), **commit(), "versions": versions()}


def command() -> str:
    """The command line without --cache and --out; BENCH and PHOTOS stand for the data's folders."""
    words = [f"python benchmarks/{Path(sys.argv[0]).name}"]
    words += map(shlex.quote, without(sys.argv[1:], "--cache", "--out"))
    pairs = zip(["", *words], words, strict=False)
    return " ".join(FOLDERS.get(before, word) for before, word in pairs)


def without(arguments: Sequence[str], *names: str) -> list[str]:
    """The arguments of a command but for these options and their values."""
    kept, skipping = [], False
    for argument in arguments:
        skipping = argument in names or (skipping and not argument.startswith("--"))
        if not skipping:
            kept.append(argument)
    return kept


def versions() -> dict[str, Any]:
    """What the figures depend on: the machine, and the versions of the libraries that are loaded."""
    import numpy
    import torch

    loaded = {name: sys.modules[name].__version__ for name in LIBRARIES if name in sys.modules}
    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        **loaded,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


class Timer:
    """Seconds by the clock and of the processor, measured with `with Timer() as timer: ...`."""

    seconds = processor = 0.0

    def __enter__(self) -> Timer:
        self._start = time.perf_counter(), time.process_time()
        return self

    def so_far(self) -> float:
        """Seconds until now."""
        return time.perf_counter() - self._start[0]

    def __exit__(self, *_: object) -> None:
        self.seconds = self.so_far()
        self.processor = time.process_time() - self._start[1]


def seconds(call: Callable[[], Any]) -> float:
    """Seconds of one call by the clock."""
    with Timer() as timer:
        call()
    return timer.seconds


def side_by_side(calls: Mapping[str, Call], repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each call, by the clock and of the processor, after one to warm up.

    The calls take turns, so a busy machine is busy for all of them.
    """
    timers: dict[str, list[Timer]] = {name: [] for name in calls}
    for number in range(-1, repeats):
        for name, call in calls.items():
            with Timer() as timer:
                call(max(number, 0))
            if number >= 0:
                timers[name].append(timer)
    return {
        name: (statistics.median(t.seconds for t in own), statistics.median(t.processor for t in own))
        for name, own in timers.items()
    }


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median and range of repeated measurements."""
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def batches(values: Any, size: int) -> Iterator[Any]:
    """Slices of `size` values."""
    return (values[start : start + size] for start in range(0, len(values), size))
