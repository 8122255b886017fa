"""`clip`: any CLIP that transformers can load. Score fusion: phi sums both vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from genius.encode.clip_text import clean_clip_text
from genius.encode.hub import find_folder
from genius.encode.pretrained import load_model, load_preprocess, load_tokenizer
from genius.encode.towers import FeatureTowers
from genius.errors import ModelMismatch

EXAMPLE = "openai/clip-vit-large-patch14"
LEGACY_END = 2  # OpenAI's configs name this wrong id; transformers then takes the highest one in the text


class ClipEncoder(FeatureTowers):
    """Both towers of a CLIP with their projections."""

    kind = "clip"
    variant = "texts cleaned as by OpenAI"

    def readable(self, texts: Sequence[str]) -> list[str]:
        """The texts as the tokenizer gets them: cleaned as OpenAI's CLIP does."""
        return [clean_clip_text(text) for text in super().readable(texts)]

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.module.config.projection_dim)

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim), with gradients."""
        pooled = self.module.vision_model(pixel_values=self.scaled(pixels)).pooler_output
        vectors: Tensor = self.module.visual_projection(pooled)
        return vectors

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim), with gradients."""
        vectors: Tensor = self.module.text_projection(self._text(token_ids).pooler_output)
        return vectors

    def image_features(self, pixels: Tensor) -> Tensor:
        """The image tower's last layer, (n, 1 + patches, image width)."""
        features: Tensor = self.module.vision_model(pixel_values=self.scaled(pixels)).last_hidden_state
        return features

    def text_features(self, token_ids: Tensor) -> Tensor:
        """The text tower's last layer, (n, length, text width)."""
        features: Tensor = self._text(token_ids).last_hidden_state
        return features

    def _text(self, token_ids: Tensor) -> Any:
        ids, mask = self.ids_and_mask(token_ids)
        return self.module.text_model(input_ids=ids, attention_mask=mask)


def load(source: str | Path | None, device: str = "cpu") -> ClipEncoder:
    """The CLIP in a folder, or under a hub id such as `openai/clip-vit-large-patch14`."""
    from transformers import CLIPModel

    folder = find_folder(source, EXAMPLE)
    model = load_model(CLIPModel, folder)
    text, vision = model.config.text_config, model.config.vision_config
    tokenizer = load_tokenizer(folder, text.vocab_size)
    if text.eos_token_id not in (tokenizer.eos_token_id, LEGACY_END):  # all texts would get the same vector
        raise ModelMismatch(
            f"{folder}: the tokenizer ends texts with {tokenizer.eos_token_id}, the model looks for "
            f"{text.eos_token_id}: use the model's own tokenizer"
        )
    preprocess = load_preprocess(folder, vision.image_size, keep_ratio=True, round_crop=True)
    return ClipEncoder(model, tokenizer, preprocess, text.max_position_embeddings, device)
