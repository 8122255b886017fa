"""The ablations of several runs as one file: training many models is work to share between processes.

    genius ablate recipes/bench.toml --data BENCH --variants beam --save a.json         one part
    genius ablate recipes/bench.toml --data BENCH --variants "no,hard" --save b.json    another
    python benchmarks/ablations.py a.json b.json               both, in benchmarks/results/ablations.json

The parts must have one recipe, and best one `--to`: then they share the base, too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from genius.evaluate.ablations import merge
from genius.evaluate.report.ablations import ablation_table, agreement

RESULTS = Path(__file__).parent / "results" / "ablations.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--command", help="the one command that would do the same; default: the first part's")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    outcome = merge([json.loads(part.read_text()) for part in args.parts])
    outcome["command"] = args.command or outcome["command"]
    args.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print(ablation_table(outcome).markdown())
    print("\n".join(agreement(outcome)))


if __name__ == "__main__":
    main()
