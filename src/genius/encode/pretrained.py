"""Image and text towers that transformers can load: what CLIP and BLIP have in common.

A model is a folder (`config.json`, `model.safetensors`, tokenizer, preprocessing) or a hub id, which is
fetched into a folder first. Every weight must be there and fit: no layer is left randomly initialised.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from genius.encode.base import Array
from genius.encode.preprocess import Preprocess, read_preprocess
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import (
    PICKLES,
    check_readable,
    fingerprint_tensors,
    refuse_not_finite,
    save_weights,
)

if TYPE_CHECKING:
    from PIL.Image import Image

HUB_FILES = ("*.json", "*.txt", "*.safetensors")  # never the pickled weights beside them
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")  # one of them makes a tokenizer
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class TwoTowers(ABC):
    """An encoder with an image and a text tower; subclasses call their transformers model."""

    kind: str

    def __init__(
        self, module: nn.Module, tokenizer: Any, preprocess: Preprocess, context: int, device: str
    ) -> None:
        self.device = pick_device(device)
        self.module: Any = module.to(self.device).eval()
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.context = context  # most tokens of a text; what is longer is cut
        self.batch = 128 if self.device.type == "cuda" else 16

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width of the vectors."""

    @abstractmethod
    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim), with gradients."""

    @abstractmethod
    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim), with gradients."""

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """The image tower's last layer at every position, (n, positions, image width)."""

    @abstractmethod
    def text_features(self, token_ids: Tensor) -> Tensor:
        """The text tower's last layer at every position, (n, length, text width)."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer and preprocessing as they were loaded; load again after training."""
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        tokenizer = {key: value for key, value in tokenizer.items() if key not in ("truncation", "padding")}
        notes = (tokenizer, self.preprocess.settings(), self.context, self.kind)
        return fingerprint_tensors(self.module.state_dict(), [json.dumps(note) for note in notes])

    def prepare_image(self, image: Image) -> Tensor:
        """uint8 pixels (3, side, side), on the CPU."""
        return torch.from_numpy(self.preprocess.pixels(image))

    def scaled(self, pixels: Tensor) -> Tensor:
        """Prepared images on the encoder's device as the floats that the model reads."""
        return self.preprocess.scale(pixels.to(self.device))

    def ids_and_mask(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared texts on the encoder's device as the model's own ids, and True where there is text."""
        token_ids = token_ids.to(self.device)
        return (token_ids - 1).clamp(min=0), token_ids > 0

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Token ids plus one (n, length) on the CPU, cut at the context length; 0 is padding."""
        if not texts:
            return torch.zeros(0, 0, dtype=torch.long)
        readable = [text.encode("utf-8", "replace").decode() for text in texts]  # lone surrogates become `?`
        rows = self.tokenizer(readable, truncation=True, max_length=self.context)["input_ids"]
        token_ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, ids in enumerate(rows):
            token_ids[row, : len(ids)] = torch.tensor(ids) + 1
        return token_ids

    @torch.inference_mode()
    def encode_images(self, images: Sequence[Image]) -> Array:
        """Raw vectors of RGB images, (n, dim)."""
        self.module.eval()
        vectors = np.empty((len(images), self.dim), dtype=np.float32)
        for start in range(0, len(images), self.batch):
            part = images[start : start + self.batch]
            pixels = torch.stack([self.prepare_image(image) for image in part])
            vectors[start : start + len(part)] = self.image_vectors(pixels).float().cpu().numpy()
        return vectors

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Raw vectors of texts, (n, dim); texts of like length share a batch, so padding costs little."""
        self.module.eval()
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            token_ids = self.prepare_texts([texts[row] for row in rows])
            vectors[rows] = self.text_vectors(token_ids).float().cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Write a folder that `load` and transformers read: all of it or nothing."""
        save_folder(folder, self.module.config, self.module.state_dict(), self.tokenizer, self.preprocess)


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


def find_folder(source: str | Path | None, example: str, files: Sequence[str] = HUB_FILES) -> Path:
    """The local folder of a model: `source` itself, or the `files` that the hub has under that id."""
    if not source:
        raise ModelNotFound(f"this encoder needs a source: a folder, or a hub id such as {example}")
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelNotFound(f"{folder} is a file: give the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(str(source)):
        raise ModelNotFound(f"no folder {source}: check the path, or give a hub id such as {example}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises many kinds; the cure is the same for all
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelNotFound(
            f"{source} is no folder here and could not be fetched from the hub ({reason}): check name "
            "and network, or copy the model's folder here and give its path"
        ) from None


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
