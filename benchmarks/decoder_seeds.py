"""What the decoder of `mini` finds under other seeds of its training, beside exact search and lookup.

    python benchmarks/decoder_seeds.py --data BENCH --runs RUNS

RUNS/1, RUNS/2 … hold `model`, a copy of `mini` whose decoder was trained with that seed, by the command
of recipes/bench.toml with `--set seed=1`; the decoder that is shipped is seed 0. Encoder, quantizer and pools
are the same for all. For both settings and all searches by the decoder: mean hit@5 over the test rows, and
the paired difference to exact search or to lookup by the same codes, with its interval over photos.
Writes benchmarks/results/decoder_seeds.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _harness import run

from genius.data.base import open_dataset
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.options import EvalOptions
from genius.evaluate.protocol import SETTINGS
from genius.evaluate.systems import SYSTEMS, SystemContext
from genius.model import Model

SEARCHES = ["exact", "lookup+codes", "genius", "decoder+codes", "decoder+vectors"]


def main(
    data: Path,
    runs: Path,
    device: str = "cpu",
    limit: int = 0,
    split: str = "test",
    searches: list[str] = SEARCHES,
    cache: Path = Path("runs/decoder_seeds"),
) -> Iterator[dict[str, Any]]:
    """The figures after each seed; `limit` queries of each row, 0: all."""
    folders = sorted((run for run in runs.iterdir() if run.name.isdigit()), key=lambda run: int(run.name))
    models = {"0": "mini", **{folder.name: str(folder / "model") for folder in folders}}
    dataset = open_dataset("auto", data)
    found: dict[str, Any] = {setting: {} for setting in SETTINGS}
    for seed, name in models.items():
        model = Model.load(name, device)
        for setting in SETTINGS:
            evaluator = Evaluator(dataset, model, EvalOptions(setting, split, limit), cache)
            context = SystemContext(model, dataset, evaluator.embedder, cache, device)
            systems = [SYSTEMS[search](context) for search in searches]
            result = evaluator.run(systems, names={"data": "", "model": ""}).as_json()
            found[setting][seed] = {
                "hit@5": {search: round(result["mean"][search]["hit@5"], 4) for search in searches},
                "differences": {
                    f"{each['one']} - {each['other']}": rounded(each["mean"])
                    for each in result["comparisons"]
                },
            }
        yield {"split": split, **found}


def rounded(difference: dict[str, Any]) -> dict[str, Any]:
    """A mean difference with its interval."""
    return {
        "difference": round(difference["difference"], 4),
        "interval": [round(end, 4) for end in difference["interval"]],
    }


if __name__ == "__main__":
    run(main)
