"""The learning-rate schedule and AdamW with its parameter groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Plan:
    """AdamW with warm-up and cosine decay; the fields are those of the recipe's `optimiser` tables."""

    steps: int
    batch: int  # rows of one step, over all processes together
    rate: float = 1e-4
    final_rate: float = 0.0
    warmup: int = 0
    weight_decay: float = 0.0
    clip: float = 1.0  # largest gradient norm; 0: no clipping
    precision: str = "float32"  # or "bfloat16": autocast around the step
    check_every: int = 500  # steps between validations and checkpoints
    patience: int = 0  # validations without gain before stopping; 0: never
    compile: bool = False  # torch.compile the parts that gain from it

    def rate_at(self, step: int) -> float:
        """Learning rate of `step` (from 0): linear warm-up to `rate`, then half a cosine to `final_rate`."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.final_rate + (self.rate - self.final_rate) * (1 + math.cos(math.pi * min(1.0, share))) / 2


def adamw(
    module: nn.Module, plan: Plan, rate_factor: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `module`; weight decay touches matrices only.

    `rate_factor` gives each parameter, by name, a factor on the rate. Fused on CUDA.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trainable(module):
        decay = plan.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((decay, rate_factor(name)), []).append(parameter)
    table: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "factor": factor}
        for (decay, factor), parameters in groups.items()
    ]
    fused = all(p.is_cuda for parameters in groups.values() for p in parameters)
    return torch.optim.AdamW(table, lr=plan.rate, fused=fused)


def trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters that get a gradient, each once."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)
