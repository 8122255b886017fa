"""Figures on val of the training runs behind `mini`, read from what the runs themselves wrote.

    python benchmarks/mini_runs.py --runs RUNS             # benchmarks/results/mini_runs.json

RUNS has a folder for each run (`genius train … --to RUNS/NAME`): the logs of its stages, and for a quantizer
what `genius train` printed, as printed.log. Of each stage the validation with the best hit@5 is reported; "15
rows" is the mean over the benchmark's own rows, where a run was validated with those of general photos, too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from _harness import run

BENCH = ("cub", "emoji", "fashion", "flickr8k", "ikea")
PRINTED = re.compile(r"(hit@5\w*|least_z/phi|error) (\d[\d.]*)")


def best_validation(log: Path) -> dict[str, Any]:
    """The validation with the best hit@5, by the name of each figure."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    best = max((line for line in lines if "hit@5" in line), key=lambda line: line["hit@5"])
    rows = {name: value for name, value in best.items() if name.split()[0] in BENCH}
    if rows:
        best["15 rows"] = sum(rows.values()) / len(rows)
    speed = {line["step"]: round(line["samples_per_s"]) for line in lines if "samples_per_s" in line}
    return {
        **{name: value if name == "step" else round(value, 4) for name, value in best.items()},
        "samples a second, by step": {step: speed[step] for step in speed if step % 250 == 0},
    }


def printed(log: Path) -> dict[str, float]:
    """The figures of a quantizer on val."""
    text = log.read_text(errors="replace")
    return {name: float(value) for name, value in PRINTED.findall(text[text.index("quantizer on val") :])}


def main(runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for folder in sorted(folder for folder in runs.iterdir() if folder.is_dir()):
        own = {log.parent.name: best_validation(log) for log in sorted(folder.glob("*/log.jsonl"))}
        if (folder / "printed.log").exists():
            own["quantizer"] = printed(folder / "printed.log")
        found[folder.name] = own
    return {"runs": found}


if __name__ == "__main__":
    run(main)
