"""`blip`: any BLIP retrieval model that transformers can load. Score fusion: phi sums both vectors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from genius.encode.hub import CONFIGS, WEIGHTS, find_weights
from genius.encode.pretrained import context_length, load_model, load_preprocess, load_tokenizer
from genius.encode.towers import FeatureTowers

EXAMPLE = "Salesforce/blip-itm-base-coco"
VISION_EPS = 1e-6  # of the published image tower's norms; configs for transformers say 1e-5


class BlipEncoder(FeatureTowers):
    """Both towers of a BLIP with the projections of its contrastive task; its matching head is not used."""

    kind = "blip"
    variant = f"vision eps {VISION_EPS}"

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.module.config.image_text_hidden_size)

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) to raw vectors (n, dim), with gradients."""
        vectors: Tensor = self.module.vision_proj(self.image_features(pixels)[:, 0])
        return vectors

    def text_vectors(self, token_ids: Tensor) -> Tensor:
        """Prepared texts (n, length) to raw vectors (n, dim), with gradients."""
        vectors: Tensor = self.module.text_proj(self.text_features(token_ids)[:, 0])
        return vectors

    def image_features(self, pixels: Tensor) -> Tensor:
        """The image tower's last layer, (n, 1 + patches, image width)."""
        features: Tensor = self.module.vision_model(pixel_values=self.scaled(pixels)).last_hidden_state
        return features

    def text_features(self, token_ids: Tensor) -> Tensor:
        """The text tower's last layer, (n, length, text width)."""
        ids, mask = self.ids_and_mask(token_ids)
        features: Tensor = self.module.text_encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return features


def load(source: str | Path | None, device: str = "cpu") -> BlipEncoder:
    """The BLIP in a folder, or under a hub id such as `Salesforce/blip-itm-base-coco`."""
    from transformers import BlipForImageTextRetrieval

    folder = find_weights(str(source or ""), EXAMPLE, (*CONFIGS, *WEIGHTS))
    model = load_model(BlipForImageTextRetrieval, folder)
    for part in model.vision_model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = VISION_EPS
    text, vision = model.config.text_config, model.config.vision_config
    vision.layer_norm_eps = VISION_EPS
    tokenizer = load_tokenizer(folder, text.vocab_size)
    preprocess = load_preprocess(folder, vision.image_size, keep_ratio=False)
    context = context_length(model, tokenizer, text.max_position_embeddings)  # UniIR's tokenizers: 100
    return BlipEncoder(model, tokenizer, preprocess, context, device)
