"""`clip-ff` and `blip-ff`: feature fusion as UniIR published it.

Every item is read as an image and a text: zeros stand for the normalised pixels of an absent image, the empty
text for an absent one, and neither is masked. CLIP-FF: the features of both towers at all positions, those
of the text first and not projected, go through a small T5 encoder; the mean of its output is the vector.
BLIP-FF: BLIP's text tower looks at the image by cross-attention; what its pooler makes of the first token,
[CLS], is the vector. docs/paper.md says where this is known from. A model is a folder: `fusion.json`,
`towers/` (as `clip` and `blip` read it) and `fusion/` (a T5 encoder as transformers reads it, or the pooler).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from genius.encode import blip, clip
from genius.encode.fusing import DESCRIPTION, TOWERS, FusingTowers, read_description
from genius.encode.hub import find_folder
from genius.encode.pretrained import load_model
from genius.errors import ModelMismatch, ModelNotFound
from genius.files import write_folder
from genius.weights import load_weights, save_weights

FUSION, WEIGHTS = "fusion", "model.safetensors"  # the folder of the T5 encoder or the pooler; its weights


class UniirFusion(FusingTowers):
    """What CLIP-FF and BLIP-FF have in common: an absent part is a blank one."""

    @property
    def dim(self) -> int:
        """Width of the vectors: that of the text tower."""
        return int(self.towers.module.config.text_config.hidden_size)

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """Normalised images (n, 3, side, side) to features (n, positions, width)."""

    @abstractmethod
    def fuse(self, image: Tensor, token_ids: Tensor) -> Tensor:
        """Features of images and the prepared texts beside them to vectors (n, dim)."""

    def item_vectors(
        self, pixels: Tensor, image_rows: Tensor, token_ids: Tensor, text_rows: Tensor
    ) -> Tensor:
        """Vectors (n, dim), with gradients, of items made of prepared images and texts.

        Item i has image `pixels[image_rows[i]]` and text `token_ids[text_rows[i]]`; -1 says that it has none.
        """
        images, device = self.towers.scaled(pixels), self.towers.device
        if bool((image_rows < 0).any()):  # the blank image is the last, so that row -1 finds it
            images = torch.cat([images, images.new_zeros(1, *images.shape[1:])])
        if bool((text_rows < 0).any()):
            empty = self.prepare_texts([""]).to(token_ids.device)
            length = max(token_ids.shape[1], empty.shape[1])
            token_ids = torch.cat([pad(part, (0, length - part.shape[1])) for part in (token_ids, empty)])
        features = self.image_features(images)[image_rows.to(device)]
        return self.fuse(features, token_ids.to(device)[text_rows.to(device)])

    def save(self, folder: Path) -> None:
        """Write everything that loading needs: all of it or nothing."""
        with write_folder(folder) as new:
            self.towers.save(new / TOWERS)
            self.save_fusion(new / FUSION)
            write_description(new, self.kind)

    @abstractmethod
    def save_fusion(self, folder: Path) -> None:
        """Write what is not in the towers."""


class ClipFF(UniirFusion):
    """CLIP's towers under a T5 encoder."""

    variant = "texts not projected"

    def image_features(self, pixels: Tensor) -> Tensor:
        """Projected features of the image tower, (n, 1 + patches, dim)."""
        module = self.towers.module
        last = module.vision_model(pixel_values=pixels).last_hidden_state
        features: Tensor = module.visual_projection(module.vision_model.post_layernorm(last))
        return features

    def fuse(self, image: Tensor, token_ids: Tensor) -> Tensor:
        """The mean of the T5 encoder's output over all positions; texts are padded to the full length."""
        ids, _ = self.towers.ids_and_mask(pad(token_ids, (0, self.towers.context - token_ids.shape[1])))
        text = self.towers.module.text_model(input_ids=ids).last_hidden_state
        both = torch.cat([text, image], dim=1)  # (n, context + 1 + patches, dim)
        vectors: Tensor = self.fusion(inputs_embeds=both).last_hidden_state.mean(dim=1)
        return vectors

    def save_fusion(self, folder: Path) -> None:
        """Write the T5 encoder as transformers reads it."""
        tensors = self.fusion.state_dict()
        del tensors["encoder.embed_tokens.weight"]  # the same as shared.weight
        save_t5(self.fusion.config, tensors, folder)


class BlipFF(UniirFusion):
    """BLIP's text tower that looks at the image, and its pooler."""

    variant = "[CLS] pooled"

    def image_features(self, pixels: Tensor) -> Tensor:
        """Features of the image tower, (n, 1 + patches, image width)."""
        features: Tensor = self.towers.module.vision_model(pixel_values=pixels).last_hidden_state
        return features

    def fuse(self, image: Tensor, token_ids: Tensor) -> Tensor:
        """The pooled output of the first token, the tokenizer's own [CLS]."""
        ids, mask = self.towers.ids_and_mask(token_ids)
        output = self.towers.module.text_encoder(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=image,
            encoder_attention_mask=torch.ones(image.shape[:2], dtype=torch.long, device=image.device),
        )
        vectors: Tensor = torch.tanh(self.fusion(output.last_hidden_state[:, 0]))
        return vectors

    def save_fusion(self, folder: Path) -> None:
        """Write the pooler."""
        save_weights(self.fusion.state_dict(), folder / WEIGHTS)


def load_clip(source: str | Path | None, device: str = "cpu") -> ClipFF:
    """The CLIP-FF in a folder made by `genius convert clip-ff`, or under a hub id."""
    from transformers import T5EncoderModel

    folder = _find("clip-ff", source)
    towers, fusion = clip.load(folder / TOWERS, device), load_model(T5EncoderModel, folder / FUSION)
    if fusion.config.d_model != towers.dim:
        raise ModelMismatch(
            f"{folder}: the towers' vectors have width {towers.dim}, the fusion reads "
            f"{fusion.config.d_model}: use its own towers"
        )
    projection = towers.module.text_projection.weight
    if not torch.equal(projection, torch.eye(len(projection)).to(projection)):
        raise ModelMismatch(f"{folder} has a text projection, which CLIP-FF has not: {_again('clip-ff')}")
    return ClipFF("clip-ff", towers, fusion)


def load_blip(source: str | Path | None, device: str = "cpu") -> BlipFF:
    """The BLIP-FF in a folder made by `genius convert blip-ff`, or under a hub id."""
    folder = _find("blip-ff", source)
    file = folder / FUSION / WEIGHTS
    if not file.is_file():
        raise ModelMismatch(f"{folder} has no pooler ({FUSION}/{WEIGHTS}): {_again('blip-ff')}")
    towers = blip.load(folder / TOWERS, device)
    width = towers.module.config.text_config.hidden_size
    pooler = nn.Linear(width, width)
    load_weights(pooler, file)
    return BlipFF("blip-ff", towers, pooler)


def write_description(folder: Path, kind: str) -> None:
    """Say in `fusion.json` which encoder `folder` holds."""
    (folder / DESCRIPTION).write_text(json.dumps({"kind": kind}, indent=2), encoding="utf-8")


def save_t5(config: Any, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write a T5 encoder as transformers reads it."""
    folder.mkdir()
    config.save_pretrained(folder)
    save_weights(tensors, folder / WEIGHTS, {"format": "pt"})


def _again(kind: str) -> str:
    return f"it is of an earlier version; convert the .pth again: `genius convert {kind} FILE.pth --to DIR`"


def _find(kind: str, source: str | Path | None) -> Path:
    folder = find_folder(source, f"me/my-{kind}")
    if not (folder / DESCRIPTION).is_file():
        raise ModelNotFound(
            f"no {DESCRIPTION} in {folder}: make the folder with `genius convert {kind} FILE.pth --to DIR`"
        )
    read_description(folder, kind)
    return folder
