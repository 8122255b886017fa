"""Models in transformers' layout, read from a folder and written to one.

A folder has `config.json`, `model.safetensors`, a tokenizer and `preprocessor_config.json`. Every weight must
be there and fit: no layer is left randomly initialised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from genius.encode.preprocess import Preprocess, read_preprocess
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import PICKLES, check_readable, refuse_not_finite, save_weights

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")  # one of them makes a tokenizer


def save_folder(
    folder: Path, config: Any, tensors: Mapping[str, Tensor], tokenizer: Any, preprocess: Preprocess
) -> None:
    """Write a model as transformers reads it: all of it or nothing."""
    with write_folder(folder) as new:
        config.save_pretrained(new)
        save_weights(tensors, new / "model.safetensors", {"format": "pt"})
        tokenizer.save_pretrained(new)
        settings = json.dumps(preprocess.settings(), indent=2)
        (new / "preprocessor_config.json").write_text(settings, encoding="utf-8")


def pick_device(name: str) -> torch.device:
    """The device called `name`; `auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device {name!r}: torch sees no CUDA device here; use cpu")
    return torch.device(name)


def load_model(model_class: Any, folder: Path) -> Any:
    """A transformers model from the safetensors in `folder`, float32; every key must be there and fit."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"no config.json in {folder}: give the folder of a model saved by transformers")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        _refuse_pickles(folder)
        raise ModelNotFound(f"no model.safetensors in {folder}: fetch it, or save the model again")
    for file in files:
        check_readable(file)
    try:
        with _quiet():
            model, found = model_class.from_pretrained(
                folder,
                use_safetensors=True,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # named below, with all others
            )
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelMismatch(f"{folder} does not hold a {model_class.__name__} ({error})") from None
    _refuse_misfit(found, folder)
    refuse_not_finite(model.state_dict(), str(folder))
    return model


def load_tokenizer(folder: Path, vocabulary: int) -> Any:
    """The tokenizer in `folder`; its ids must be below `vocabulary`."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):  # transformers would make an empty one
        raise ModelNotFound(f"no tokenizer in {folder}: copy the model's tokenizer.json into it")
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged json, missing files and unknown classes raise different kinds
        reason = str(error).strip().split("\n")[0]
        raise ModelMismatch(f"no usable tokenizer in {folder} ({reason}): fetch its files again") from None
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= vocabulary:
        raise ModelMismatch(
            f"the tokenizer in {folder} has ids up to {highest}, the model knows {vocabulary}: use the "
            "model's own tokenizer"
        )
    return tokenizer


def load_preprocess(folder: Path, side: int, *, keep_ratio: bool) -> Preprocess:
    """The preprocessing of `folder`; it must give images of the `side` that the model wants."""
    preprocess = read_preprocess(folder, Preprocess(side, keep_ratio=keep_ratio))
    if preprocess.side != side:
        raise ModelMismatch(
            f"{folder}: preprocessing gives images of {preprocess.side} pixels, the model wants {side}: "
            "correct preprocessor_config.json"
        )
    return preprocess


def _refuse_pickles(folder: Path) -> None:
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickled:
        raise ModelMismatch(
            f"{folder} has its weights as pickle only ({', '.join(pickled)}), which can run code when read: "
            f"run `genius convert weights {folder / pickled[0]} --to {folder}`"
        )


def _refuse_misfit(found: Any, folder: Path) -> None:
    """Raise ModelMismatch for what transformers would only warn about."""
    extra = [name for name in found["unexpected_keys"] if not name.endswith("position_ids")]  # older files
    wrong = [f"missing {name}" for name in found["missing_keys"]] + [f"extra {name}" for name in extra]
    for name, *shapes in found["mismatched_keys"]:
        wrong.append(f"misshaped {name}: " + " instead of ".join(str(tuple(shape)) for shape in shapes))
    wrong += [str(message) for message in found.get("error_msgs", ())]
    if wrong:
        lines = "\n".join(f"  {line}" for line in sorted(wrong))
        raise ModelMismatch(
            f"the weights in {folder} do not fit its config.json, {len(wrong)} key(s)\n{lines}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers: what matters is raised."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
