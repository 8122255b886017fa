"""A training run on disk: one safetensors file, replaced as a whole, so a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from genius.errors import ModelMismatch, StorageError

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
    write_tensors(file, tensors, {"progress": json.dumps(dict(progress))})


def load_checkpoint(file: Path, module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Fill `module` and `optimiser` from `file`, strictly; returns the progress stored there."""
    tensors, metadata = read_tensors(file)
    fill(module, {n[len(MODULE) :]: t for n, t in tensors.items() if n.startswith(MODULE)}, file)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(OPTIMISER):
            index, key = name[len(OPTIMISER) :].split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    progress: dict[str, Any] = json.loads(metadata["progress"])
    return progress


def read_progress(file: Path) -> dict[str, Any]:
    """The progress stored in a checkpoint, without its tensors."""
    try:
        with safe_open(file, framework="pt") as opened:
            progress: dict[str, Any] = json.loads((opened.metadata() or {})["progress"])
            return progress
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelMismatch(f"{file} is no checkpoint of ours ({error}): remove it to start anew") from None


def save_weights(file: Path, module: nn.Module) -> None:
    """Write parameters and buffers of `module` to `file`: all of it or nothing."""
    write_tensors(file, module.state_dict(), {})


def load_weights(file: Path, module: nn.Module) -> None:
    """Fill `module` from `file`; raises ModelMismatch naming every missing, extra or misshapen tensor."""
    fill(module, read_tensors(file)[0], file)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy `tensors` into `module`, strictly: every name and shape must fit."""
    wanted = module.state_dict()
    wrong = [f"missing {name}" for name in wanted if name not in tensors]
    wrong += [f"unknown {name}" for name in tensors if name not in wanted]
    wrong += [
        f"{name} is {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if wrong:
        raise ModelMismatch(f"{source} does not fit the model: {'; '.join(sorted(wrong))}")
    module.load_state_dict(dict(tensors), strict=True)


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write safetensors under a temporary name, flush to disk, then rename over `file`."""
    temporary = file.with_name(file.name + ".part")
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(own, temporary, dict(metadata) or None)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {file}: {error}; free some room or choose another folder") from None


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (on the CPU) and metadata of a safetensors file."""
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelMismatch(f"no weights at {file}") from None
    except SafetensorError as error:
        raise ModelMismatch(f"{file} is not a safetensors file: {error}") from None
