"""GRACE, IRGen and DSI with the network and as many samples as our own decoder, each with its best rate.

    python benchmarks/generative.py --data BENCH --device cuda --budget 1500

Network, batch and steps are those of the decoder in `--recipe`. Each baseline first memorizes the items of
val with every rate of RATES, and is watched on val's queries meanwhile: the rate that finds most at the end
is taken. With that rate it learns again from `--more` times as many samples, which shows whether the curve
has become flat. Then it memorizes the items of test, once for each seed, and test is searched once.
Trained decoders and their checkpoints are kept in `--cache`: a run that was stopped, or whose `--budget` of
seconds is spent, goes on where it was. Writes benchmarks/results/generative.json after each baseline; the
baselines are in no table until it says `complete`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from _harness import Timer, run

from genius.config import load_recipe
from genius.data.base import Dataset, open_dataset
from genius.evaluate.baselines.generative import KINDS, GenerativeBaseline, OutOfTime
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.frontier import machine
from genius.evaluate.options import EvalOptions, GenerativeConfig
from genius.evaluate.protocol import SETTINGS, row_metrics
from genius.evaluate.systems import System, SystemContext
from genius.model import Model

RATES = [3e-4, 1e-3, 3e-3]
K = 10  # answers of a query of val
Curve = Sequence[tuple[int, float]]


class Study:
    """The baselines on one dataset with the embeddings of one model."""

    def __init__(
        self, dataset: Dataset, model: Model, config: GenerativeConfig, cache: Path, device: str, until: float
    ) -> None:
        self.dataset, self.model, self.cache = dataset, model, cache
        self.config, self.device, self.until = config, device, until
        evaluator = Evaluator(dataset, model, EvalOptions(split="val"), cache)
        self.embedder = evaluator.embedder
        self._contexts = {split: self._context(split) for split in ("val", "test")}
        self._val_pool, self._val_rows = evaluator.universal_rows()

    def curve(self, name: str, config: GenerativeConfig) -> Curve:
        """hit@5 on val by training steps, where the baseline memorizes val's items."""
        system = self._baseline(name, "val", config, self._hit_on_val)
        system.index(self._val_pool)
        return system.curve

    def found_on_test(self, name: str, config: GenerativeConfig, seeds: int) -> dict[str, Any]:
        """The mean hit rate over the baseline's rows in both settings, and its spread over the seeds."""
        systems = [self._baseline(name, "test", replace(config, seed=seed)) for seed in range(seeds)]
        found = {}
        for setting in SETTINGS:
            evaluator = Evaluator(self.dataset, self.model, EvalOptions(setting), self.cache)
            results = evaluator.run(systems, names={"data": "", "model": ""}).as_json()
            rows = [{key: row[key] for key in ("dataset", "task", "hit@5")} for row in results["rows"]]
            mean = results["mean"][name]
            known = ("headline", "interval", "seeds", "seed_deviation", "bytes_per_item")
            found[setting] = {key: mean[key] for key in known if key in mean} | {"rows": rows}
        return found

    def _hit_on_val(self, system: System) -> float:
        hits = []
        for row, (queries, matched) in self._val_rows.items():
            if system.supports(row):
                lists = [system.search(queries, K).rows]
                metrics = row_metrics(row, "universal", system.name, matched, lists, len(self._val_pool))
                hits.append(metrics.mean("hit@5"))
        return fmean(hits)

    def _baseline(
        self,
        name: str,
        split: str,
        config: GenerativeConfig,
        watch: Callable[[System], float] | None = None,
    ) -> GenerativeBaseline:
        context = self._contexts[split]
        examples = context.examples(KINDS[name].task)
        return GenerativeBaseline(
            name, examples, config, self.device, context.folder, watch=watch, until=self.until
        )

    def _context(self, split: str) -> SystemContext:
        folder = self.cache / "decoders"
        return SystemContext(
            self.model, self.dataset, self.embedder, folder, self.device, self.config, split=split
        )


def measured(study: Study, name: str, rates: Sequence[float], more: int, seeds: int) -> dict[str, Any]:
    """One baseline: its curves on val with each rate, the best rate, and what it finds on test."""
    curves = {rate: study.curve(name, replace(study.config, rate=rate)) for rate in rates}
    rate = max(curves, key=lambda each: curves[each][-1][1])
    best = replace(study.config, rate=rate)
    found: dict[str, Any] = {
        "task": KINDS[name].task,
        "rates": [{"rate": each, "curve": curve} for each, curve in curves.items()],
        "rate": rate,
    }
    if more > 1:
        longer = study.curve(name, replace(best, steps=more * best.steps))
        found["more"] = {"times": more, "curve": longer}
    return found | {"test": study.found_on_test(name, best, seeds)}


def main(
    data: Path,
    recipe: str = "bench",
    model: str = "mini",
    device: str = "cpu",
    cache: Path = Path("runs/generative"),
    budget: float = math.inf,
    seeds: int = 3,
    more: int = 4,
    rates: list[float] = RATES,
    baselines: list[str] = [*KINDS],  # noqa: B006 (never changed)
    change: list[str] = [],  # noqa: B006 (never changed)
) -> Iterator[Mapping[str, Any]]:
    """Curves and hit rates of all baselines, after each of them; `change` sets values of the recipe."""
    until = time.monotonic() + budget
    config = GenerativeConfig.like_decoder(load_recipe(recipe, change))
    dataset, loaded = open_dataset("auto", data), Model.load(model, device)
    study = Study(dataset, loaded, config, cache, device, until)
    result: dict[str, Any] = {
        "complete": False,
        "recipe": recipe,
        "samples": config.steps * config.batch,
        "training": asdict(config),
        "data": data.resolve().name,
        "model": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "machine": machine(device),
        "seeds": seeds,
        "baselines": {},
    }
    for name in baselines:
        with Timer() as timer:
            try:
                found = measured(study, name, rates, more, seeds)
            except OutOfTime as error:
                yield result | {"stopped": str(error)}
                return
        result["baselines"][name] = found | {"seconds": timer.seconds}
        result["complete"] = set(result["baselines"]) == set(KINDS)
        yield result


if __name__ == "__main__":
    run(main)
