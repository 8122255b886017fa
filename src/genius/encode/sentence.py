"""`sentence-transformers`: text encoders in the layout of that package, without the package.

`modules.json` lists the steps: a transformer, pooling over its positions, then layers such as Dense and
Normalize, each configured in a folder of its own. Texts only: images are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from genius.encode.base import Array, Encoder
from genius.encode.dual import EXAMPLE as DUAL_EXAMPLE
from genius.encode.dual import load as load_dual
from genius.encode.hub import CONFIGS, WEIGHTS, find_folder, find_weights, pinned_name
from genius.encode.pretrained import (
    CONFIG,
    context_length,
    fingerprint_folder,
    load_config,
    load_model,
    load_tokenizer,
    refuse_pickles,
)
from genius.encode.towers import PretrainedTextTower
from genius.errors import BadInput, ModelMismatch, ModelNotFound
from genius.weights import load_weights

if TYPE_CHECKING:
    from PIL.Image import Image

EXAMPLE = "sentence-transformers/all-MiniLM-L6-v2"
MODULES = "modules.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}  # of models that also have a decoder
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
}


def _cls(states: Tensor, _mask: Tensor) -> Tensor:
    return states[:, 0]


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)


def _mean_sqrt_len(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9).sqrt()


def _weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask * torch.arange(1, states.shape[1] + 1, device=states.device)[None, :, None]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(mask == 0, -1e9).amax(dim=1)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    last = (mask[..., 0].sum(dim=1).long() - 1).clamp(min=0)
    return states[torch.arange(len(states), device=states.device), last]


Pool = Callable[[Tensor, Tensor], Tensor]  # states (n, length, width), mask (n, length, 1) to (n, width)
# the name in 1_Pooling/config.json -> its older name, and the function
POOLING: dict[str, tuple[str, Pool]] = {
    "cls": ("pooling_mode_cls_token", _cls),
    "max": ("pooling_mode_max_tokens", _max),
    "mean": ("pooling_mode_mean_tokens", _mean),
    "mean_sqrt_len_tokens": ("pooling_mode_mean_sqrt_len_tokens", _mean_sqrt_len),
    "weightedmean": ("pooling_mode_weightedmean_tokens", _weighted_mean),
    "lasttoken": ("pooling_mode_lasttoken", _last),
}


class DenseLayer(nn.Module):
    """One linear layer and its activation, named as sentence-transformers saves it."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, width in) to (n, width out)."""
        out: Tensor = self.activation(self.linear(vectors))
        return out


class NormalizeLayer(nn.Module):
    """L2 norm of every row."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, width) to unit vectors (n, width)."""
        return nn.functional.normalize(vectors, dim=1)


class SentenceEncoder(PretrainedTextTower):
    """Text vectors as sentence-transformers' `encode` gives them; images are refused."""

    kind = "sentence-transformers"

    def __init__(
        self,
        module: nn.ModuleDict,
        pools: Sequence[Pool],
        tokenizer: Any,
        context: int,
        device: str,
        *,
        fingerprint: str,
        source: str,
    ) -> None:
        super().__init__(module, tokenizer, context, device)
        self.pools, self.prompt = tuple(pools), ""
        self.fingerprint, self.source = fingerprint, source
        with torch.inference_mode():
            self._dim = int(self.text_vectors(self.prepare_texts(["a"])).shape[1])

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._dim

    def readable(self, texts: Sequence[str]) -> list[str]:
        """The texts as the tokenizer gets them, after the model's default prompt if it has one."""
        return super().readable([self.prompt + text for text in texts])

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to vectors (n, dim), with gradients."""
        ids, mask = self.ids_and_mask(token_ids)
        states = self.module["transformer"](input_ids=ids, attention_mask=mask.long()).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        pooled = torch.cat([pool(states, weights) for pool in self.pools], dim=1)
        vectors: Tensor = self.module["layers"](pooled)
        return vectors

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Refused: this encoder reads texts only."""
        raise BadInput(
            f"{self.source} encodes texts only: index pictures with a dual encoder such as {DUAL_EXAMPLE}"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One row of modules.json."""

    kind: str  # the last part of its class's name: Transformer, Pooling, Dense, …
    folder: Path


def load(source: str | Path | None, device: str = "cpu") -> Encoder:
    """The text encoder in a folder of sentence-transformers, or under a hub name.

    A CLIP wrapped by sentence-transformers has images, too: it is loaded as the dual encoder it is.
    """
    folder = find_folder(source, EXAMPLE, CONFIGS)
    name = pinned_name(str(source), folder)
    first, *others = read_steps(folder)
    folder = find_weights(name, EXAMPLE, (*CONFIGS, *WEIGHTS, "[0-9]*_*/*.safetensors"))
    if first.kind == "CLIPModel" and not others:
        return load_dual(first.folder, device)
    if first.kind != "Transformer" or not others or others[0].kind != "Pooling":
        kinds = ", ".join(step.kind for step in (first, *others))
        raise ModelMismatch(f"{folder / MODULES} lists {kinds}: a Transformer, then a Pooling is wanted")
    config = load_config(first.folder)
    pools = _pools(others[0].folder / CONFIG)
    layers = nn.Sequential(*(_layer(step) for step in others[1:]))
    model = _transformer(first.folder, config.model_type)
    tokenizer = load_tokenizer(first.folder, config.vocab_size)
    settings = _settings(first.folder / SETTINGS)
    encoder = SentenceEncoder(
        nn.ModuleDict({"transformer": model, "layers": layers}),
        pools,
        tokenizer,
        settings.get("max_seq_length")
        or context_length(model, tokenizer, getattr(config, "max_position_embeddings", None)),
        device,
        fingerprint=fingerprint_folder(folder, SentenceEncoder.kind),
        source=name,
    )
    encoder.lower_case = bool(settings.get("do_lower_case"))
    prompts = _settings(folder / PROMPTS)
    encoder.prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
    return encoder


def read_steps(folder: Path) -> list[Step]:
    """The rows of modules.json, in order; ModelMismatch if it is not what sentence-transformers writes."""
    file = folder / MODULES
    if not file.is_file():
        raise ModelNotFound(
            f"no {MODULES} in {folder}: give a folder that sentence-transformers saved, such as {EXAMPLE}"
        )
    try:
        rows = sorted(json.loads(file.read_text(encoding="utf-8")), key=lambda row: int(row["idx"]))
        steps = [Step(str(row["type"]).split(".")[-1], folder / str(row["path"])) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelMismatch(f"{file} is no list of modules ({error!r}): fetch it again") from None
    inside = folder.resolve()
    if not steps or any(not (inside / step.folder).resolve().is_relative_to(inside) for step in steps):
        raise ModelMismatch(f"{file} lists no modules, or some outside of {folder}: fetch it again")
    return steps


def _transformer(folder: Path, model_type: str) -> Any:
    """The transformer, without a decoder; its pooling layer, if its class has one, is not used."""
    import transformers

    model_class = getattr(transformers, ENCODER_CLASSES.get(model_type, "AutoModel"))
    return load_model(model_class, folder, extra=True, unused="pooler")


def _pools(file: Path) -> list[Pool]:
    settings = _settings(file)
    named = settings.get("pooling_mode")
    names = [named] if isinstance(named, str) else named
    if names is None:
        names = [name for name, (older, _) in POOLING.items() if settings.get(older)]
    if not names or not all(name in POOLING for name in names):
        raise ModelMismatch(f"{file} asks for pooling {names}: one of {', '.join(POOLING)} is supported")
    return [POOLING[name][1] for name in names]


def _layer(step: Step) -> nn.Module:
    """One step after pooling."""
    if step.kind == "Normalize":
        return NormalizeLayer()
    if step.kind == "Dropout":
        return nn.Identity()
    if step.kind != "Dense":
        raise ModelMismatch(
            f"{step.folder}: modules of kind {step.kind} are not supported, only Dense, Normalize and "
            "Dropout after Pooling; choose another model"
        )
    settings = _settings(step.folder / CONFIG)
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).split(".")[-1]
    try:
        linear = nn.Linear(settings["in_features"], settings["out_features"], settings.get("bias", True))
        layer = DenseLayer(linear, ACTIVATIONS[activation]())
    except (KeyError, TypeError, RuntimeError) as error:
        raise ModelMismatch(f"{step.folder / CONFIG} describes no Dense layer ({error!r})") from None
    weights = step.folder / "model.safetensors"
    if not weights.is_file():
        refuse_pickles(step.folder)
    load_weights(layer, weights)
    return layer


def _settings(file: Path) -> dict[str, Any]:
    """A table of settings; a file that is not there has none."""
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelMismatch(f"{file} is no table of settings ({error}): fetch it again") from None
