"""`auto`: the encoder in a folder or under a hub name, whatever its kind.

A folder with `modules.json` is of sentence-transformers, `fusion.json` says which fusion a folder holds; else
`model_type` in config.json decides.
"""

from __future__ import annotations

from pathlib import Path

from genius.encode.base import Encoder, FusingEncoder, load_encoder
from genius.encode.dual import EXAMPLE, dual_encoder_class
from genius.encode.fusing import DESCRIPTION, read_description
from genius.encode.hub import CONFIGS, find_folder, pinned_name
from genius.encode.pretrained import load_config
from genius.encode.sentence import MODULES
from genius.errors import ModelNotFound

OPEN_CLIP = "open_clip_config.json"


def load(source: str | Path | None, device: str = "cpu") -> Encoder | FusingEncoder:
    """The encoder in a folder, or under a hub name such as `openai/clip-vit-base-patch32`."""
    kind, name = identify(source)
    return load_encoder(kind, name, device)


def identify(source: str | Path | None) -> tuple[str, str]:
    """Which encoder (a key of ENCODERS) reads `source`, and the name to remember: path, or hub name@commit.

    Only configs are read, and fetched; a model that no encoder reads is refused.
    """
    folder = find_folder(source, EXAMPLE, CONFIGS)
    return _kind(folder), pinned_name(str(source), folder)


def _kind(folder: Path) -> str:
    if (folder / MODULES).is_file():
        return "sentence-transformers"
    if (folder / DESCRIPTION).is_file():
        return str(read_description(folder)["kind"])
    if not (folder / "config.json").is_file() and (folder / OPEN_CLIP).is_file():
        raise ModelNotFound(
            f"{folder} is in open_clip's own layout: choose a repository that has config.json and "
            f"model.safetensors for transformers, such as {EXAMPLE}"
        )
    if load_config(folder).model_type == "blip":
        return "blip"
    dual_encoder_class(folder)
    return "transformers"
