"""What cached vectors, codes and answers depend on beside weights and inputs.

That is our source, the libraries, the device and, for answers, the number of threads, since FAISS's codebooks
differ by it.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# the source that can change a vector, a code, an answer; a new figure or table costs nothing
VECTOR_SOURCES = (
    *("encode", "weights.py", "data/images.py", "data/isolated.py", "data/instructions.py", "data/texts.py"),
    *("evaluate/cache.py", "evaluate/embeddings.py"),
)
CODE_SOURCES = (*VECTOR_SOURCES, "model.py", "quantize")
SEARCH_SOURCES = (
    *("data", "decode", "encode", "model.py", "quantize", "search", "training", "types.py"),
    *(f"evaluate/{name}" for name in ("baselines", "cache.py", "embeddings.py", "systems.py")),
)
LIBRARIES = ("torch", "numpy", "pillow", "transformers", "tokenizers", "faiss-cpu")


def environment(device: object, *sources: str) -> str:
    """Our source under `sources`, the libraries' versions and the name of the device, as part of a key."""
    libraries = (f"{name} {library_version(name)}" for name in LIBRARIES)
    return ", ".join([source_hash(*sources), *libraries, device_name(str(device))])


def threads() -> str:
    """With how many threads torch and FAISS compute."""
    import torch

    return f"{torch.get_num_threads()} threads"


def library_version(name: str) -> str:
    """The version of a library that is installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def device_name(device: str) -> str:
    """The GPU's name, or the processor's instruction set: sums are rounded differently on others."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def source_hash(*parts: str) -> str:
    """A hash of this package's own files, or of those under `parts` only (folders and files of it)."""
    folder = Path(__file__).resolve().parents[1]
    state = hashlib.blake2b(digest_size=8)
    for file in sorted(file for kind in ("py", "c", "h") for file in folder.rglob(f"*.{kind}")):
        name = file.relative_to(folder).as_posix()
        if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
            state.update(name.encode() + b"\0" + file.read_bytes())
    return state.hexdigest()
