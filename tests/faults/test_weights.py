"""Faults 4, 22 and 23: weights that are pickled, damaged, ill-fitting or spoilt, and a disk that is full."""

import json
import os
import pickle
import struct
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from genius.errors import ModelMismatch, ModelNotFound, StorageError
from genius.weights import load_weights, read_pickled_weights, read_tensors, save_weights


class RunsCode:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".pkl", ".bin", ".ckpt", ".safetensors"])
def test_a_pickle_is_refused_naming_convert_and_no_code_runs(tmp_path: Path, suffix: str) -> None:
    file, mark = tmp_path / f"w{suffix}", tmp_path / "ran"
    torch.save({"weight": torch.ones(1), "evil": RunsCode(mark)}, file)
    with pytest.raises(ModelMismatch, match="genius convert"):
        load_weights(nn.Linear(1, 1), file)
    with pytest.raises(ModelMismatch, match=r"needs code.*mkdir|no torch file"):
        read_pickled_weights(file)
    assert not mark.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_runs_no_code_in_the_converter(tmp_path: Path, protocol: int) -> None:
    file, mark = tmp_path / "w.pkl", tmp_path / "ran"
    file.write_bytes(pickle.dumps(RunsCode(mark), protocol=protocol))
    with pytest.raises(ModelMismatch):
        read_pickled_weights(file)
    assert not mark.exists()


def test_settings_of_a_library_we_do_not_load_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released `.pth` files keep their omegaconf settings beside the weights."""
    module = types.ModuleType("omegaconf.dictconfig")
    ran: list[str] = []

    class DictConfig:
        def __setstate__(self, state: object) -> None:
            ran.append("setstate")

        def __getstate__(self) -> dict[str, object]:
            return {
                "kind": dict,
                "any": Any,
                "content": defaultdict(dict, {"rate": 1e-4}),
                "names": [int, list],
            }

    DictConfig.__module__, DictConfig.__qualname__ = module.__name__, "DictConfig"
    module.DictConfig = DictConfig  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    file = tmp_path / "w.pth"
    torch.save({"model": {"a": torch.ones(2)}, "config": DictConfig(), "epoch": 1}, file)
    assert torch.equal(read_pickled_weights(file)["a"], torch.ones(2))
    assert not ran

    mark = tmp_path / "ran"
    torch.save({"model": {"a": torch.ones(2)}, "config": DictConfig(), "evil": RunsCode(mark)}, file)
    with pytest.raises(ModelMismatch, match="mkdir"):
        read_pickled_weights(file)
    assert not mark.exists()


def test_every_wrong_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_weights({"weight": torch.ones(3, 2), "surplus": torch.ones(1), "odd": torch.ones(1)}, file)
    module = nn.Linear(2, 2)
    before = module.weight.clone()
    with pytest.raises(ModelMismatch) as caught:
        load_weights(module, file)
    message = str(caught.value)
    assert str(file) in message
    for part in ("missing bias", "extra surplus", "extra odd", "misshaped weight: (3, 2) instead of (2, 2)"):
        assert part in message
    assert torch.equal(module.weight, before)


def test_integers_do_not_silently_become_floats(tmp_path: Path) -> None:
    save_weights({"weight": torch.ones(2, 2, dtype=torch.int8), "bias": torch.ones(2)}, tmp_path / "w")
    with pytest.raises(ModelMismatch, match="mistyped weight"):
        load_weights(nn.Linear(2, 2), tmp_path / "w")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_are_refused_both_ways(tmp_path: Path, value: float) -> None:
    bad = {"fine": torch.ones(2), "spoilt": torch.tensor([1.0, value])}
    with pytest.raises(ModelMismatch, match=r"NaN or Inf in spoilt\b"):
        save_weights(bad, tmp_path / "w.safetensors")
    assert not list(tmp_path.iterdir())
    save_file(bad, tmp_path / "w.safetensors")
    with pytest.raises(ModelMismatch, match=r"NaN or Inf in spoilt\b"):
        read_tensors(tmp_path / "w.safetensors")
    torch.save(bad, tmp_path / "w.pth")
    with pytest.raises(ModelMismatch, match=r"NaN or Inf in spoilt\b"):
        read_pickled_weights(tmp_path / "w.pth")


def header(table: object, size: int | None = None) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "a few bytes": lambda whole: whole[:5],
    "half a header": lambda whole: whole[:40],
    "half the numbers": lambda whole: whole[:-8],
    "bytes behind the end": lambda whole: whole + b"\0" * 16,
    "header of 2^63 bytes": lambda _: header({}, 2**63 - 1),
    "header of 4 GB": lambda _: header({}, 2**32),
    "no json": lambda _: struct.pack("<Q", 8) + b"notjson!",
    "a list": lambda _: header([1, 2]),
    "offsets that overlap": lambda _: (
        header({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}) + b"\0" * 4
    ),
    "a shape of 10^18": lambda _: (
        header({"a": {"dtype": "F32", "shape": [10**18], "data_offsets": [0, 4]}}) + b"\0" * 4
    ),
    "negative offsets": lambda _: header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
    "an unknown type": lambda _: (
        header({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 4
    ),
    "nested json": lambda _: struct.pack("<Q", 200_000) + b"[" * 200_000,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused_with_its_path(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "w.safetensors"
    save_weights({"a": torch.arange(8.0)}, file)
    file.write_bytes(DAMAGED[damage](file.read_bytes()))
    with pytest.raises(ModelMismatch, match=r"w\.safetensors"):
        read_tensors(file)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_torch_file_is_refused_with_its_path(tmp_path: Path, share: float) -> None:
    file = tmp_path / "w.pth"
    torch.save({"a": torch.arange(800.0)}, file)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(ModelMismatch, match=r"w\.pth"):
        read_pickled_weights(file)


def test_files_without_a_state_dict_are_refused(tmp_path: Path) -> None:
    for content, message in (
        ([torch.ones(1)], "no dict of weights"),
        ({}, "no dict of weights"),
        ({"model": {"a": torch.ones(1), "step": 3}}, "not tensors: step"),
        ({"module.a": torch.ones(1), "a": torch.ones(1)}, "both with and without"),
    ):
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(ModelMismatch, match=message):
            read_pickled_weights(tmp_path / "w.pth")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.safetensors"):
        read_tensors(tmp_path / "none.safetensors")
    with pytest.raises(ModelNotFound, match=r"none\.pth"):
        read_pickled_weights(tmp_path / "none.pth")
    with pytest.raises(ModelMismatch):
        read_tensors(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="inside"):
        save_weights({"a": torch.ones(1)}, tmp_path / "file" / "inside")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from genius.weights import save_weights
from genius.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save_weights({"a": torch.ones(100_000)}, Path(sys.argv[1]))
except StorageError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_weights({"a": torch.zeros(3)}, file)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stdout
    assert str(file) in done.stdout
    assert torch.equal(read_tensors(file)[0]["a"], torch.zeros(3))
    assert list(tmp_path.iterdir()) == [file]
