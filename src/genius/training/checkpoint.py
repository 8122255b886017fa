"""Checkpoints of a training run: one safetensors file with weights, optimiser state and progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from genius.errors import ModelMismatch
from genius.weights import check_fit, read_tensors, save_weights

MODULE = "module."
OPTIMISER = "optimiser."


def save_checkpoint(
    file: Path, module: nn.Module, optimiser: torch.optim.Optimizer, progress: Mapping[str, Any]
) -> None:
    """Write weights, optimiser state and `progress` (plain values) to `file`: all of it or nothing."""
    tensors = {MODULE + name: tensor for name, tensor in module.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"{OPTIMISER}{index}.{key}"] = torch.as_tensor(value)
    save_weights(tensors, file, {"progress": json.dumps(dict(progress))})


def load_checkpoint(file: Path, module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Fill `module` and `optimiser` from `file`, strictly; returns the progress stored there."""
    progress = read_progress(file)
    tensors, _ = read_tensors(file)
    weights = {n.removeprefix(MODULE): t for n, t in tensors.items() if n.startswith(MODULE)}
    check_fit(module.state_dict(), weights, file)
    module.load_state_dict(weights, strict=True)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(OPTIMISER):
            index, key = name.removeprefix(OPTIMISER).split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return progress


def read_progress(file: Path) -> dict[str, Any]:
    """The progress stored in a checkpoint, without its tensors."""
    try:
        with safe_open(file, framework="pt") as opened:
            progress: dict[str, Any] = json.loads((opened.metadata() or {})["progress"])
            return progress
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ModelMismatch(
            f"{file} is not a checkpoint of genius ({error}): remove it to start over"
        ) from None
