"""`transformers`: any dual encoder that transformers has a class for.

CLIP, MetaCLIP, SigLIP, SigLIP 2, ALIGN, AltCLIP, Chinese-CLIP and every other model whose class has
`get_image_features` and `get_text_features` with one vector each. Preprocessing and tokenizer are those of
the model's own files.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genius.encode.hub import CONFIGS, WEIGHTS, find_folder, find_weights, pinned_name
from genius.encode.preprocess import FILES as PREPROCESS_FILES
from genius.encode.preprocess import Preprocess, read_preprocess
from genius.encode.pretrained import (
    context_length,
    fingerprint_folder,
    load_config,
    load_model,
    load_tokenizer,
    tokenizer_class,
)
from genius.encode.towers import TwoTowers
from genius.errors import ModelMismatch, ModelNotFound

EXAMPLE = "openai/clip-vit-base-patch32"
# their text towers pool the last position and were trained on texts padded to the full length
FIXED_LENGTH = frozenset({"siglip", "siglip2", "tipsv2"})
LOWER_CASE = frozenset({"siglip", "siglip2"})  # unless do_lower_case says otherwise
SQUEEZED = frozenset({"siglip", "siglip2", "align"})  # where the files leave it open: no crop, -1…1
ANY_SIDE = frozenset({"align"})  # convolutions: the config's image_size says nothing
HALF = (0.5, 0.5, 0.5)


class DualEncoder(TwoTowers):
    """Image and text vectors as the model's own `get_image_features` and `get_text_features` give them."""

    kind = "transformers"

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        preprocess: Preprocess,
        context: int,
        device: str,
        *,
        fingerprint: str,
        source: str,
    ) -> None:
        super().__init__(module, tokenizer, preprocess, context, device)
        self.source = source  # path, or hub name and commit
        self.fixed_length = self.module.config.model_type in FIXED_LENGTH
        self.masks = not self.fixed_length or "attention_mask" in tokenizer.model_input_names
        self._fingerprint = fingerprint
        self._dim = self._probe()

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._dim

    @property
    def fingerprint(self) -> str:
        """Hash of the files the model was loaded from; load again after training."""
        return self._fingerprint

    def prepare_texts(self, texts: Sequence[str]) -> Tensor:
        """Token ids plus one (n, length) on the CPU, cut at the context length; 0 is masked."""
        if not self.fixed_length or not texts:
            return super().prepare_texts(texts)
        full = self.tokenizer(
            self.readable(texts),
            padding="max_length",
            truncation=True,
            max_length=self.context,
            return_attention_mask=True,
        )
        token_ids = torch.tensor(full["input_ids"]) + 1
        return token_ids * torch.tensor(full["attention_mask"]) if self.masks else token_ids

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim), with gradients."""
        vectors = self._vectors(self.module.get_image_features(pixel_values=self.scaled(pixels)))
        if vectors.shape[1] != self.dim:
            raise ModelMismatch(
                f"{self.source} gives image vectors of width {vectors.shape[1]} and text vectors of width "
                f"{self.dim}: both must be the same; choose a dual encoder such as {EXAMPLE}"
            )
        return vectors

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim), with gradients."""
        ids, mask = self.ids_and_mask(token_ids)
        inputs = {"input_ids": ids, "attention_mask": mask.long()} if self.masks else {"input_ids": ids}
        return self._vectors(self.module.get_text_features(**inputs))

    def _vectors(self, output: Any) -> Tensor:
        """One vector a row: transformers 5 gives an output object where earlier versions gave a tensor."""
        vectors = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
        if not isinstance(vectors, Tensor) or vectors.ndim != 2:
            raise ModelMismatch(
                f"{self.source} does not give one vector for each image and text: choose a dual encoder such "
                f"as {EXAMPLE}"
            )
        return vectors

    @torch.inference_mode()
    def _probe(self) -> int:
        """The width of text vectors; two texts with one vector mean that the tokenizer is not the model's."""
        vectors = self.text_vectors(self.prepare_texts(["a", "one of two texts"]))
        if torch.equal(vectors[0], vectors[1]):
            raise ModelMismatch(
                f"{self.source} gives every text the same vector: use the model's own tokenizer, with its "
                "tokenizer_config.json"
            )
        return int(vectors.shape[1])


def load(source: str | Path | None, device: str = "cpu") -> DualEncoder:
    """The dual encoder in a folder, or under a hub name such as `openai/clip-vit-base-patch32`."""
    folder = find_folder(source, EXAMPLE, CONFIGS)
    name = pinned_name(str(source), folder)
    model_class = dual_encoder_class(folder)  # before any weights are fetched
    folder = find_weights(name, EXAMPLE, (*CONFIGS, *WEIGHTS))
    if not any((folder / file).is_file() for file in PREPROCESS_FILES):
        raise ModelNotFound(
            f"no {PREPROCESS_FILES[0]} in {folder}: copy the model's own into it; without it nobody knows "
            "how images were prepared"
        )
    model = load_model(model_class, folder, extra=True)
    text = getattr(model.config, "text_config", model.config)
    tokenizer = load_tokenizer(folder, text.vocab_size)
    _normalize_as_trained(tokenizer, model.config.model_type, tokenizer_class(folder))
    return DualEncoder(
        model,
        tokenizer,
        _preprocess(folder, model.config),
        context_length(model, tokenizer, getattr(text, "max_position_embeddings", None)),
        device,
        fingerprint=fingerprint_folder(folder, DualEncoder.kind),
        source=name,
    )


def dual_encoder_class(folder: Path) -> Any:
    """transformers' class for the config.json in `folder`; ModelMismatch if it is no dual encoder."""
    from transformers import MODEL_MAPPING

    config = load_config(folder)
    found = MODEL_MAPPING.get(type(config), None)
    model_class = found[0] if isinstance(found, tuple | list) else found
    image, text = (getattr(model_class, f"get_{part}_features", None) for part in ("image", "text"))
    if image is None or text is None:
        raise ModelMismatch(
            f"{folder} holds a {config.model_type!r} model, which is no dual encoder: choose one with an "
            f"image and a text tower, such as {EXAMPLE}, or for texts alone a folder of sentence-transformers"
        )
    if "spatial_shapes" in signature(image).parameters:
        raise ModelMismatch(
            f"{folder} takes images of any shape (NaFlex), which is not supported: choose one of fixed "
            "resolution, such as google/siglip2-base-patch16-224"
        )
    return model_class


def _preprocess(folder: Path, config: Any) -> Preprocess:
    """The folder's preprocessing; it must give the square that the image tower has positions for."""
    side = getattr(getattr(config, "vision_config", None), "image_size", None)
    if isinstance(side, list | tuple) and len(set(side)) == 1:
        side = side[0]
    default = Preprocess(side if isinstance(side, int) else 224)
    if config.model_type in SQUEEZED:
        default = Preprocess(default.side, keep_ratio=False, mean=HALF, std=HALF)
    preprocess = read_preprocess(folder, default)
    if isinstance(side, int) and preprocess.side != side and config.model_type not in ANY_SIDE:
        raise ModelMismatch(
            f"{folder}: preprocessing gives images of {preprocess.side} pixels, the model wants {side}: "
            "correct preprocessor_config.json"
        )
    return preprocess


def _normalize_as_trained(tokenizer: Any, family: str, tokenizer_class: str) -> None:
    """Let the tokenizer clean texts as in training, where its own class or the config does not see to it.

    SigLIP 2 uses Gemma's tokenizer, which knows no lower case. SigLIP's own class, which needs the package
    sentencepiece, also removes punctuation; tokenizer.json may not.
    """
    from tokenizers import Regex, normalizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a class in Python, which does all of it
        return
    steps: list[Any] = []
    keeps_case = backend.normalizer is None or "A" in backend.normalizer.normalize_str("A")
    if keeps_case and tokenizer.init_kwargs.get("do_lower_case", family in LOWER_CASE):
        steps.append(normalizers.Lowercase())
    if tokenizer_class == "SiglipTokenizer":
        marks = normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")
        steps += [marks, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    if steps:
        own = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([*steps, *own])
