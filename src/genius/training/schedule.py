"""The learning-rate schedule and AdamW with its parameter groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from genius.config import OptimiserConfig


def rate_at(config: OptimiserConfig, step: int) -> float:
    """Learning rate of `step` (from 0): linear warm-up to `rate`, then half a cosine to `final_rate`."""
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    share = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    return config.final_rate + (config.rate - config.final_rate) * (1 + math.cos(math.pi * share)) / 2


def adamw(
    module: nn.Module, config: OptimiserConfig, rate_factor: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `module`; weight decay touches matrices only.

    `rate_factor` gives each parameter, by name, a factor on the rate. Fused on CUDA.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trainable(module):
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((decay, rate_factor(name)), []).append(parameter)
    table: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "factor": factor}
        for (decay, factor), parameters in groups.items()
    ]
    fused = all(p.is_cuda for parameters in groups.values() for p in parameters)
    return torch.optim.AdamW(table, lr=config.rate, betas=config.betas, eps=config.eps, fused=fused)


def trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters that get a gradient, each once."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)
