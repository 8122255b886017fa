"""The training loop of every stage: steps, checks, checkpoints, early stop, resume.

A stage gives a module and a function `step(number) -> losses`. Everything random in that function must be a
function of the number: use `generator_for(device, seed, name, number)`; torch's global generator (dropout) is
seeded by the loop. So a killed run that is started again gives the losses of one left alone.
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
from genius.training.journal import Journal
from genius.training.schedule import adamw, rate_at, trainable
from genius.weights import load_weights, save_weights

Validate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a finished run did; its module holds the best weights seen at a validation."""

    steps: int  # steps made; fewer than planned after an early stop
    best_step: int  # the step whose weights were kept
    figures: Mapping[str, float]  # the validation figures at that step
    losses: Mapping[str, float]  # means since the last log line


@dataclass(slots=True)
class _Progress:
    """Where a run stands; stored in every checkpoint."""

    done: int = 0
    best_step: int = 0
    best: float = -math.inf
    stale: int = 0  # validations since the best
    stopped: bool = False
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    losses: dict[str, float] = dataclasses.field(default_factory=dict)


def run(
    name: str,
    module: nn.Module,
    step: distributed.Step,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    validate: Validate | None = None,
    figure: str = "hit@5",
    settings: Mapping[str, Any] | None = None,
    rate_factor: Callable[[str], float] = lambda name: 1.0,
    log_every: int = 50,
    show: bool = True,
) -> TrainingResult:
    """Train `module` and leave the best weights in it.

    `folder` gets `checkpoint.safetensors`, `best.safetensors` and `log.jsonl`; a checkpoint found there is
    resumed, or refused if it was made with another config, seed or `settings` (plain values). `validate` is
    called in eval mode every `config.check_every` steps; `figure` is the one of its figures to maximise.
    Raises TrainingStopped with step and figure when a loss or the gradient is not finite.
    """
    distributed.rank_slice(config.batch)  # refuse a batch that cannot be split before any work
    device = next(module.parameters()).device
    optimiser = adamw(module, config, rate_factor)
    parameters = [p for _, p in trainable(module)]
    checkpoint, best = folder / "checkpoint.safetensors", folder / "best.safetensors"
    marks = _marks(config, seed, settings or {})
    state = _Progress()
    if distributed.exists_on_all_ranks(checkpoint):
        _refuse_other(checkpoint, marks)
        stored = load_checkpoint(checkpoint, module, optimiser)
        state = _Progress(**stored["state"])
    parallel_step = distributed.data_parallel(module, step)
    distributed.barrier()

    window = _Window(name, device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")
    main = distributed.is_main()
    module.train()
    with Journal(
        name, folder / "log.jsonl", steps=config.steps, done=state.done, speaks=main, shows=show
    ) as log:
        while state.done < config.steps and not state.stopped:
            number = state.done
            torch.manual_seed(seed_for(seed, name, number, distributed.rank()))
            for group in optimiser.param_groups:
                group["lr"] = rate_at(config, number) * group["factor"]
            with autocast:
                losses = dict(parallel_step(number))
            optimiser.zero_grad(set_to_none=True)
            losses["loss"].backward()  # type: ignore[no-untyped-call]
            losses["gradient"] = nn.utils.clip_grad_norm_(parameters, config.clip or math.inf)
            optimiser.step()
            window.add(number, losses)
            state.done += 1

            check = state.done % config.check_every == 0 or state.done == config.steps
            if check or state.done % log_every == 0:
                state.losses = window.close()
                speed = window.steps_per_second * config.batch
                log.write(
                    state.done, {**state.losses, "rate": rate_at(config, number), "samples_per_s": speed}
                )
            if check:
                if validate is not None:
                    figures = _validated(module, validate)
                    log.write(state.done, figures)
                    log.say(state.done, {"loss": state.losses["loss"], **figures})
                    if _judge(state, figures, figures[figure], config.patience) and main:
                        save_weights(module.state_dict(), best)
                if main:
                    progress = {"state": dataclasses.asdict(state), "marks": marks}
                    save_checkpoint(checkpoint, module, optimiser, progress)
                window.restart()
    distributed.barrier()
    if state.best_step not in (0, state.done):
        load_weights(module, best)
    return TrainingResult(state.done, state.best_step or state.done, state.figures, state.losses)


class _Window:
    """Losses summed on the device since the last log line; the only place where the loop waits for it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.names: list[str] = []
        self.steps_per_second = 0.0
        self.restart()

    def restart(self) -> None:
        self.count, self.started = 0, time.perf_counter()

    def add(self, step: int, losses: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.detach().float() for value in losses.values()])  # (figures,)
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

    def close(self) -> dict[str, float]:
        """Means over the window and the processes; raises TrainingStopped if a value was not finite."""
        means = distributed.all_reduce_mean(self.sums / self.count).tolist()  # NaN on one: NaN on all
        if not all(map(math.isfinite, means)):
            raise TrainingStopped(f"{self.name}: {self._first_bad()}; lower the rate or look at the vectors")
        now = time.perf_counter()
        self.steps_per_second = self.count / max(now - self.started, 1e-9)
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
    module.eval()
    with torch.no_grad():
        figures = distributed.broadcast_values({name: float(value) for name, value in validate().items()})
    module.train()
    return figures


def _judge(state: _Progress, figures: dict[str, float], value: float, patience: int) -> bool:
    """Note the validation in `state`; whether it is the best so far. Raises TrainingStopped on NaN."""
    if not math.isfinite(value):
        raise TrainingStopped(f"validation gave {figures} at step {state.done}: the weights are spoilt")
    if value > state.best:
        state.best, state.best_step, state.stale, state.figures = value, state.done, 0, figures
        return True
    state.stale += 1
    state.stopped = 0 < patience <= state.stale
    return False


def _marks(config: OptimiserConfig, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a run to be resumed."""
    values = {k: v for k, v in config.model_dump().items() if k != "compile"}
    marks: dict[str, Any] = json.loads(json.dumps({**values, "seed": seed, **settings}))  # as stored
    return marks


def _refuse_other(checkpoint: Path, marks: Mapping[str, Any]) -> None:
    stored = read_progress(checkpoint).get("marks", {})
    other = sorted(key for key in marks.keys() | stored.keys() if marks.get(key) != stored.get(key))
    if other:
        raise BadInput(
            f"{checkpoint} belongs to a run with another {', '.join(other)}: "
            "use the same recipe to resume it, or remove the file to start anew"
        )
