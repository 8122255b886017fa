"""Models in transformers' layout, read from a folder and written to one.

A folder has `config.json`, `model.safetensors`, a tokenizer and `preprocessor_config.json`. Every weight must
be there and fit: no layer is left randomly initialised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from genius.encode.preprocess import FILES as PREPROCESS_FILES
from genius.encode.preprocess import Preprocess, read_preprocess
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import PICKLES, check_readable, fingerprint, refuse_not_finite, save_weights

CONFIG = "config.json"
NO_LIMIT = 1_000_000  # a tokenizer that does not know the longest text names a larger number
# one of them makes a tokenizer
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
SENTENCEPIECE_CLASSES = ("SiglipTokenizer", "Tipsv2Tokenizer")
FILES_THAT_COUNT = (
    "config.json",
    "model.safetensors",
    "model-*.safetensors",
    *PREPROCESS_FILES,
    *TOKENIZER_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    # of sentence-transformers
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "[0-9]*_*/*.json",
    "[0-9]*_*/*.txt",
    "[0-9]*_*/*.model",
    "[0-9]*_*/*.safetensors",
)


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
    return known_device(name)


def known_device(name: str) -> torch.device:
    """The device called `name`; raises BadInput if there is none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device {name!r}: torch sees no CUDA device here; use cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}: use cpu, cuda, or cuda:1 and so on") from None


def load_config(folder: Path) -> Any:
    """transformers' config of the model in `folder`; no code of the folder is run."""
    from transformers import AutoConfig

    _refuse_no_config(folder)
    try:
        with quiet():  # SigLIP's published configs leave token ids open, and the defaults do not fit
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown types, damaged json and wrong values raise different kinds
        reason = str(error).strip().split("\n")[0]
        raise ModelMismatch(
            f"transformers cannot read {folder / CONFIG} ({reason}): choose a model that transformers has a "
            "class for; code in a model's folder is never run"
        ) from None


def load_model(model_class: Any, folder: Path, *, extra: bool = False, unused: str = "") -> Any:
    """A transformers model from the safetensors in `folder`, float32; every key must be there and fit.

    With `extra`, the file may hold more than the model needs; a module of the model named `unused` is never
    called, so its weights may be missing.
    """
    _refuse_no_config(folder)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        refuse_pickles(folder)
        raise ModelNotFound(f"no model.safetensors in {folder}: fetch it, or save the model again")
    for file in files:
        check_readable(file)
    try:
        with quiet():
            model, found = model_class.from_pretrained(
                folder,
                use_safetensors=True,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # named below, with all others
            )
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise ModelMismatch(f"{folder} does not hold a {model_class.__name__} ({error})") from None
    found["unexpected_keys"] = [] if extra else found["unexpected_keys"]
    if unused:
        found["missing_keys"] = [key for key in found["missing_keys"] if unused not in key.split(".")]
    _refuse_misfit(found, folder)
    refuse_not_finite(model.state_dict(), str(folder))
    return model


def load_tokenizer(folder: Path, vocabulary: int) -> Any:
    """The tokenizer in `folder`; its ids must be below `vocabulary`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):  # transformers would make an empty one
        raise ModelNotFound(f"no tokenizer in {folder}: copy the model's tokenizer.json into it")
    # these classes need the package sentencepiece; what tokenizer.json says is read without it
    whole = (folder / "tokenizer.json").is_file() and tokenizer_class(folder) in SENTENCEPIECE_CLASSES
    loader: Any = PreTrainedTokenizerFast if whole else AutoTokenizer
    try:
        with quiet():
            tokenizer = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError:
        raise ModelNotFound(
            f"the tokenizer in {folder} needs sentencepiece: copy the model's tokenizer.json into it, or run "
            "`pip install sentencepiece protobuf`"
        ) from None
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


def context_length(model: Any, tokenizer: Any, positions: int | None) -> int:
    """Most tokens of a text: what the tokenizer says, and no more than the model has positions for."""
    limits = [tokenizer.model_max_length] if tokenizer.model_max_length < NO_LIMIT else []
    if positions:
        offsets = [  # RoBERTa counts positions from behind the padding's
            module.padding_idx + 1
            for name, module in model.named_modules()
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        ]
        limits.append(positions - max(offsets, default=0))
    if not limits:
        raise ModelMismatch(
            "neither tokenizer nor config.json say how long a text may be: set model_max_length in "
            "tokenizer_config.json"
        )
    return int(min(limits))


def load_preprocess(folder: Path, side: int, *, keep_ratio: bool, round_crop: bool = False) -> Preprocess:
    """The preprocessing of `folder`; it must give images of the `side` that the model wants."""
    preprocess = read_preprocess(folder, Preprocess(side, keep_ratio=keep_ratio, round_crop=round_crop))
    if preprocess.side != side:
        raise ModelMismatch(
            f"{folder}: preprocessing gives images of {preprocess.side} pixels, the model wants {side}: "
            "correct preprocessor_config.json"
        )
    return preprocess


def fingerprint_folder(folder: Path, kind: str) -> str:
    """32 hex digits of `kind` and of every file of a model folder that can change its vectors."""
    files = sorted({file for pattern in FILES_THAT_COUNT for file in folder.glob(pattern) if file.is_file()})
    names = " ".join(str(file.relative_to(folder)) for file in files)
    return hashlib.blake2b(f"{kind}\0{names}\0{fingerprint(*files)}".encode(), digest_size=16).hexdigest()


def _refuse_no_config(folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise ModelNotFound(f"no {CONFIG} in {folder}: give the folder of a model saved by transformers")


def tokenizer_class(folder: Path) -> str:
    """The class that tokenizer_config.json names, or nothing."""
    file = folder / "tokenizer_config.json"
    with suppress(OSError, ValueError, AttributeError):  # a damaged file: loading the tokenizer says so
        return str(json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class") or "")
    return ""


def refuse_pickles(folder: Path) -> None:
    """Raise ModelMismatch, with the command that converts them, if `folder` has pickled weights."""
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
def quiet() -> Iterator[None]:
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
