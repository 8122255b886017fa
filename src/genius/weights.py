"""Weights on disk: safetensors, read and written whole, every key checked.

A file that does not fit, is damaged or holds NaN is refused with the keys named; nothing in it is ever run.
Pickled files are read by `read_pickled_weights` alone, which is for converters.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from genius.errors import ModelMismatch, ModelNotFound
from genius.files import publish, storage_errors

PICKLES = frozenset({".pth", ".pt", ".pkl", ".pickle", ".bin", ".ckpt"})
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_CHUNK = 1 << 22
# what torch.load raises on a damaged file
_DAMAGE = (
    SafetensorError,
    OSError,
    RuntimeError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
)


def load_weights(module: nn.Module, file: Path) -> None:
    """Fill `module` from safetensors; raise ModelMismatch naming every missing, extra or misshaped key."""
    tensors, _ = read_tensors(file)
    check_fit(module.state_dict(), tensors, file)
    module.load_state_dict(tensors, strict=True)


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors (on the CPU, finite) and the metadata of a safetensors file."""
    refuse_pickle(file)
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names}
            metadata = opened.metadata() or {}
    except FileNotFoundError:
        raise ModelNotFound(f"no weights at {file}: check the path") from None
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(file, error) from None
    refuse_not_finite(tensors, str(file))
    return tensors, metadata


def check_readable(file: Path) -> None:
    """Raise ModelMismatch (or ModelNotFound) unless `file` is safetensors of the right length.

    Only its header is read.
    """
    refuse_pickle(file)
    try:
        with safe_open(file, framework="pt"):
            return
    except FileNotFoundError:
        raise ModelNotFound(f"no weights at {file}: check the path") from None
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(file, error) from None


def save_weights(
    tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write safetensors: all of it or nothing, on the disk when this returns. NaN and Inf are refused."""
    refuse_not_finite(tensors, f"not written to {file}:")
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    with storage_errors(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial.touch()
            mode = partial.stat().st_mode  # the user's umask; safetensors would make the file private
            save_file(_unshared(tensors), partial, metadata=dict(metadata) if metadata else None)
            partial.chmod(mode)
            publish(partial, file)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


class _Unfilled(TorchFunctionMode):
    """Inside this mode, `torch.nn.init` does nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", None) == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules made inside have shapes and no values: `load_state_dict(assign=True)` fills them.

    Without the second mode, initialising on the meta device imports torch's compiler, which takes a second.
    """
    with torch.device("meta"), _Unfilled():
        yield


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], where: Path | str) -> None:
    """Raise ModelMismatch naming every key that is missing, extra, misshaped or of another kind of number."""
    wrong = [f"missing {name}" for name in expected.keys() - found.keys()]
    wrong += [f"extra {name}" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        want, got = expected[name], found[name]
        if want.shape != got.shape:
            wrong.append(f"misshaped {name}: {tuple(got.shape)} instead of {tuple(want.shape)}")
        elif want.is_floating_point() != got.is_floating_point():
            wrong.append(f"mistyped {name}: {got.dtype} instead of {want.dtype}")
    if wrong:
        lines = "\n".join(f"  {line}" for line in sorted(wrong))
        raise ModelMismatch(
            f"{where} does not fit the model, {len(wrong)} key(s); use the files it was saved as\n{lines}"
        )


def refuse_not_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise ModelMismatch naming every tensor that holds NaN or Inf."""
    bad = sorted(name for name, tensor in tensors.items() if not _is_finite(tensor))
    if bad:
        raise ModelMismatch(f"{where} NaN or Inf in {', '.join(bad)}: go back to earlier weights")


def _is_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or Inf; by NumPy where possible, which is faster for small tensors."""
    if not tensor.is_floating_point():
        return True
    if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
        return bool(np.isfinite(tensor.detach().numpy()).all())
    return bool(torch.isfinite(tensor).all())


def refuse_pickle(file: Path) -> None:
    """Raise ModelMismatch if `file` is a pickle, by its name or its first bytes; it is not opened as one."""
    try:
        with file.open("rb") as opened:
            start = opened.read(9)
    except OSError:
        start = b""  # the reader reports what is wrong with it
    header = start[8:] == b"{"  # of safetensors; before it stands its length, which may look like a pickle
    if file.suffix.lower() in PICKLES or (start.startswith(_PICKLE_STARTS) and not header):
        raise ModelMismatch(
            f"{file} is a pickle, which can run code when read: turn it into safetensors with "
            f"`genius convert KIND {file} --to DIR` (`genius convert --help` lists the kinds)"
        )


def fingerprint(*files: Path) -> str:
    """32 hex digits that depend on the names and the bytes of `files`, in this order."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def fingerprint_tensors(tensors: Mapping[str, Tensor], notes: Iterable[str] = ()) -> str:
    """32 hex digits that depend on the names, types and values of `tensors` and on `notes`."""
    digest = hashlib.blake2b(digest_size=16)
    for note in notes:
        digest.update(f"{len(note)}\0{note}\0".encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _damaged(file: Path, error: Exception) -> ModelMismatch:
    return ModelMismatch(f"{file} is damaged or no safetensors file ({error}): fetch or make it again")


def _empty_dict(*_args: object) -> dict[object, object]:
    """Stands for defaultdict, which the unpickler will not fill."""
    return {}


# what omegaconf's own objects are made of; none of these runs anything
_PLAIN: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    list,
    dict,
    tuple,
    int,
    float,
    str,
    bool,
    (_empty_dict, "collections.defaultdict"),
]


class _Inert:
    """Stands for an object whose class is not loaded: takes its arguments, keeps nothing, runs nothing."""

    def __new__(cls, *_args: object, **_named: object) -> _Inert:
        return super().__new__(cls)

    def __setstate__(self, _state: object) -> None:
        return


def read_pickled_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a `.pth` file by name, without the `_orig_mod.` and `module.` that wrappers leave there.

    For converters only; `{"model": state}` is opened. `weights_only=True`: a file that needs code to be read
    is refused. Published files keep omegaconf settings beside the weights: empty objects stand for those, no
    class is loaded.
    """
    needed = _needed_classes(file)
    inert = [(_Inert, name) for name in needed if name.startswith("omegaconf.") or name == "typing.Any"]
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([*inert, *_PLAIN] if inert else []):
            # a protocol it does not understand is refused below
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelNotFound(f"no weights at {file}: check the path") from None
    except pickle.UnpicklingError:
        which = ", ".join(sorted(needed)) or "it is no zip made by torch.save"
        raise ModelMismatch(
            f"{file} needs code to be read ({which}): refused. Ask its maker for the bare state dict"
        ) from None
    except _DAMAGE as error:
        reason = str(error).split(". ")[0]
        raise ModelMismatch(f"{file} is damaged or no torch file ({reason}): fetch it again") from None
    state = loaded.get("model", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(state, dict) or not state:
        raise ModelMismatch(
            f"{file} holds no dict of weights: a converter needs a state dict, or one under `model`"
        )
    strange = sorted(str(name) for name, value in state.items() if not isinstance(value, Tensor))
    if strange:
        raise ModelMismatch(f"{file} holds values that are not tensors: {', '.join(strange)}")
    tensors = {
        str(name).replace("_orig_mod.", "").removeprefix("module."): value.detach()
        for name, value in state.items()
    }
    if len(tensors) != len(state):
        raise ModelMismatch(
            f"{file} holds weights both with and without `_orig_mod.` or `module.` in their names"
        )
    refuse_not_finite(tensors, str(file))
    return tensors


def _needed_classes(file: Path) -> list[str]:
    """Names of the classes and functions `file` asks for beyond tensors, found without running anything."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError):
        return []  # no zip: loading it says what is wrong


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` on the CPU, each with memory of its own: tied weights are written twice."""
    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        own[name] = value.clone() if address in seen else value
        seen.add(address)
    return own
