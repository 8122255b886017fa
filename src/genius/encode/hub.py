"""Models by name: a folder here, or a repository of the Hugging Face hub, pinned to one commit.

A hub name is `owner/model`, or `owner/model@revision` with a branch, tag or commit. The files are fetched by
the hub's own client into its cache; `pinned_name` says which commit they are of, so that the same files are
found again. Once they are in the cache, a pinned name needs no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from genius.errors import ModelNotFound

CONFIGS = ("*.json", "*.txt", "*.model")  # small: enough to tell what kind of model it is
WEIGHTS = ("model.safetensors", "model-*.safetensors")  # never the pickled weights beside them
INDEX = "model.safetensors.index.json"  # of weights in several files
HUB_FILES = ("*.json", "*.txt", "*.safetensors")
_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def find_folder(source: str | Path | None, example: str, files: Sequence[str] = HUB_FILES) -> Path:
    """The local folder of a model: `source` itself, or the `files` that the hub has under that name."""
    if not source:
        raise ModelNotFound(f"this encoder needs a source: a folder, or a hub name such as {example}")
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelNotFound(f"{folder} is a file: give the folder that holds config.json and the weights")
    hub = _HUB_NAME.fullmatch(str(source))
    if not hub:
        raise ModelNotFound(f"no folder {source}: check the path, or give a hub name such as {example}")
    return _fetch(hub["name"], hub["revision"], files)


def find_weights(name: str, example: str, files: Sequence[str]) -> Path:
    """As `find_folder`; a model that the hub has no safetensors of is refused."""
    folder = find_folder(name, example, files)
    if Path(name).is_dir() or any(folder.rglob("*.safetensors")):
        return folder
    repository = name.split("@")[0]
    to = repository.split("/")[-1]
    raise ModelNotFound(
        f"{name} has no safetensors on the hub, and pickled weights can run code when read: convert them "
        f"with `hf download {repository} --local-dir {to}` and `genius convert weights "
        f"{to}/pytorch_model.bin --to {to}`, then give the folder {to}"
    )


def pinned_name(source: str | Path, folder: Path) -> str:
    """What to remember of a model that was found in `folder`: its path, or hub name and commit."""
    hub = None if Path(source).exists() else _HUB_NAME.fullmatch(str(source))
    if hub and _COMMIT.fullmatch(folder.name):  # the hub's cache has a folder for each commit
        return f"{hub['name']}@{folder.name}"
    return str(folder.resolve())


def _fetch(name: str, revision: str | None, files: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    patterns = list(files)
    if revision and _COMMIT.fullmatch(revision):  # a commit never changes: look into the cache first
        with suppress(Exception):  # not in the cache, or not all of it: the hub is asked below
            folder = Path(
                snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True)
            )
            if _is_complete(folder, patterns):
                return folder
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises many kinds; the cure is the same for all
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        wanted = " ".join(f'--include "{pattern}"' for pattern in (*CONFIGS, *WEIGHTS, "*/model.safetensors"))
        pin = f" --revision {revision}" if revision else ""
        folder = Path(name.split("/")[1])
        raise ModelNotFound(
            f"{name} is no folder here and could not be fetched from the hub ({reason}): check name and "
            "network, or put config.json, model.safetensors, preprocessor_config.json, tokenizer.json and "
            f"tokenizer_config.json of that model into a folder {folder} and give its path. Where there is a "
            f"network, `hf download {name}{pin} --local-dir {folder} {wanted}` makes this folder"
        ) from None


def _is_complete(folder: Path, files: Sequence[str]) -> bool:
    """Whether the cache has the weights if they are wanted; older clients do not look."""
    if not any(pattern.endswith(".safetensors") for pattern in files):
        return True
    index = folder / INDEX
    if index.is_file():
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((folder / part).is_file() for part in parts)
    return any(folder.rglob("*.safetensors"))
