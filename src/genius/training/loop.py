"""The training loop of every stage: steps, validations, checkpoints, early stopping, resuming.

A stage gives a module and a function `step(number) -> losses`. Everything random in that function must depend
on the number alone: use `generator_for(device, seed, name, number)`; torch's global generator (dropout) is
seeded by the loop. So a run that was killed and resumed gives the losses of one that was not.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genius.config import OptimiserConfig
from genius.errors import BadInput, TrainingStopped
from genius.seeding import seed_for
from genius.training import distributed
from genius.training.checkpoint import load_checkpoint, read_progress, save_checkpoint
from genius.training.log import TrainingLog
from genius.training.schedule import adamw, rate_at, trainable
from genius.weights import load_weights, save_weights

STARTED_FROM = "weights at the start"  # in the settings of a run, of the module before its first step
Validate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The outcome of a run; its module holds the best weights seen at a validation."""

    steps: int  # steps made; fewer than configured after an early stop
    best_step: int  # the step whose weights were kept
    metrics: Mapping[str, float]  # of the validation at that step
    losses: Mapping[str, float]  # means since the last log entry


@dataclass(slots=True)
class _Progress:
    """The state of a run; stored in every checkpoint."""

    done: int = 0  # steps
    best_step: int = 0
    best: float = -math.inf
    stale: int = 0  # validations since the best
    stopped: bool = False
    figures: dict[str, float] = dataclasses.field(default_factory=dict)  # metrics of the best validation
    losses: dict[str, float] = dataclasses.field(default_factory=dict)

    def update(self, metrics: dict[str, float], value: float, patience: int) -> bool:
        """Take in a validation; whether it is the best so far. Raises TrainingStopped on NaN."""
        if not math.isfinite(value):
            raise TrainingStopped(
                f"validation gave {metrics} at step {self.done}: the weights hold NaN or Inf"
            )
        if value > self.best:
            self.best, self.best_step, self.stale, self.figures = value, self.done, 0, metrics
            return True
        self.stale += 1
        self.stopped = 0 < patience <= self.stale
        return False


def run(
    name: str,
    module: nn.Module,
    step: distributed.Step,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    validate: Validate | None = None,
    metric: str = "hit@5",
    settings: Mapping[str, Any] | None = None,
    rate_factor: Callable[[str], float] = lambda name: 1.0,
    log_every: int = 50,
    show: bool = True,
) -> TrainingResult:
    """Train `module` and leave the best weights in it.

    `folder` gets `checkpoint.safetensors`, `best.safetensors` and `log.jsonl`; a checkpoint found there is
    resumed, or refused if it was made with another config, seed or `settings` (plain values: whatever else
    the losses depend on, weights and data by their digests). `validate` is called in eval mode every
    `config.check_every` steps; `metric` is the one to maximise. Raises TrainingStopped with step and value
    when a loss or the gradient is not finite.
    """
    distributed.rank_slice(config.batch)  # refuse a batch that cannot be split before any work
    optimiser = adamw(module, config, rate_factor)
    parameters = [p for _, p in trainable(module)]
    checkpoint, best = folder / "checkpoint.safetensors", folder / "best.safetensors"
    identity = _identity(config, seed, settings or {})
    progress = _resumed(checkpoint, identity, module, optimiser)
    step = distributed.data_parallel(module, step)
    distributed.barrier()

    main = distributed.is_main()
    device = parameters[0].device
    losses = _LossMeter(name)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")
    module.train()
    with TrainingLog(
        name, folder / "log.jsonl", steps=config.steps, done=progress.done, enabled=main, quiet=not show
    ) as log:
        while progress.done < config.steps and not progress.stopped:
            number, rate = progress.done, rate_at(config, progress.done)
            torch.manual_seed(seed_for(seed, name, number, distributed.rank()))
            for group in optimiser.param_groups:
                group["lr"] = rate * group["factor"]
            with autocast:
                values = dict(step(number))
            optimiser.zero_grad(set_to_none=True)
            values["loss"].backward()  # type: ignore[no-untyped-call]
            values["gradient"] = nn.utils.clip_grad_norm_(parameters, config.clip or math.inf)
            optimiser.step()
            losses.add(number, values)
            progress.done += 1

            check = progress.done % config.check_every == 0 or progress.done == config.steps
            if check or progress.done % log_every == 0:
                progress.losses = losses.means()
                speed = losses.steps_per_second * config.batch
                log.write(progress.done, {**progress.losses, "rate": rate, "samples_per_s": speed})
            if not check:
                continue
            if validate is not None:
                metrics = _validated(module, validate)
                log.write(progress.done, metrics)
                log.print(progress.done, {"loss": progress.losses["loss"], **metrics})
                if progress.update(metrics, metrics[metric], config.patience) and main:
                    save_weights(module.state_dict(), best)
            if main:
                state = {"state": dataclasses.asdict(progress), "marks": identity}
                save_checkpoint(checkpoint, module, optimiser, state)
            losses.restart()
    distributed.barrier()
    if progress.best_step not in (0, progress.done):
        load_weights(module, best)
    best_step = progress.best_step or progress.done
    return TrainingResult(progress.done, best_step, progress.figures, progress.losses)


class _LossMeter:
    """Losses summed on the device since the last log entry: the loop waits for the device only in `means`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: list[str] = []
        self.steps_per_second = 0.0
        self.restart()

    def restart(self) -> None:
        self.count, self.started = 0, time.perf_counter()

    def add(self, step: int, losses: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.detach().float() for value in losses.values()])  # (losses,)
        bad = ~values.isfinite()
        if self.count == 0:
            self.names, self.sums = list(losses), torch.zeros_like(values)
            self.bad_step = torch.full_like(values, torch.inf, dtype=torch.float64)
            self.bad_value = torch.zeros_like(values)
        self.sums += values
        first = bad & self.bad_step.isinf()
        self.bad_step = torch.where(first, float(step + 1), self.bad_step)
        self.bad_value = torch.where(first, values, self.bad_value)
        self.count += 1

    def means(self) -> dict[str, float]:
        """Means over steps and processes, then start again; TrainingStopped if a value was not finite."""
        means = distributed.all_reduce_mean(self.sums / self.count).tolist()  # NaN on one: NaN on all
        if not all(map(math.isfinite, means)):
            raise TrainingStopped(f"{self.name}: {self._first_bad()}; lower the rate or look at the vectors")
        self.steps_per_second = self.count / max(time.perf_counter() - self.started, 1e-9)
        self.restart()
        return dict(zip(self.names, means, strict=True))

    def _first_bad(self) -> str:
        steps, values = self.bad_step.tolist(), self.bad_value.tolist()
        first = min(steps)
        if first == math.inf:
            return "a loss of another process is not finite"
        names = [f"{n} = {v}" for n, s, v in zip(self.names, steps, values, strict=True) if s == first]
        return f"{', '.join(names)} at step {first:.0f}"


def _validated(module: nn.Module, validate: Validate) -> dict[str, float]:
    """The metrics, computed by process 0; all processes hold the same weights."""
    module.eval()
    with torch.no_grad():
        found = validate() if distributed.is_main() else {}
        metrics = distributed.broadcast_values({name: float(value) for name, value in found.items()})
    module.train()
    return metrics


def _identity(config: OptimiserConfig, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values that must be the same for a run to be resumed, as JSON stores them."""
    values = {k: v for k, v in config.model_dump().items() if k not in ("compile", "check_every")}
    identity: dict[str, Any] = json.loads(json.dumps({**values, "seed": seed, **settings}))
    return identity


def _resumed(
    checkpoint: Path, identity: Mapping[str, Any], module: nn.Module, optimiser: torch.optim.Optimizer
) -> _Progress:
    """The progress in `checkpoint`, whose weights and optimiser state are loaded; a fresh one without it."""
    if not distributed.exists_on_all_ranks(checkpoint):
        return _Progress()
    stored = read_progress(checkpoint).get("marks", {})
    other = sorted(key for key in identity.keys() | stored.keys() if identity.get(key) != stored.get(key))
    if other:
        raise BadInput(
            f"{checkpoint} belongs to a run with another {', '.join(other)}: "
            "use the same recipe to resume it, or remove the file to start over"
        )
    return _Progress(**load_checkpoint(checkpoint, module, optimiser)["state"])
