"""The ablations of several runs as one file: training many models is work to share between processes.

    genius ablate recipes/bench.toml --data BENCH --variants beam --save a.json         one part
    genius ablate recipes/bench.toml --data BENCH --variants "no,hard" --save b.json    another
    python benchmarks/ablations.py a.json b.json               both, in benchmarks/results/ablations.json

The parts must have one recipe, and best one `--to`: then they share the base, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _harness import run

from genius.evaluate.ablations import merge
from genius.evaluate.report.ablations import ablation_table, agreement


def main(parts: list[Path], /, command: str | None = None) -> dict[str, Any]:
    outcome = merge([json.loads(part.read_text()) for part in parts])
    print(ablation_table(outcome).markdown(), *agreement(outcome), sep="\n")
    return {**outcome, "command": command or outcome["command"]}


if __name__ == "__main__":
    run(main)
