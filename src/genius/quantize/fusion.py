"""Fusion: the image and the text embedding of an item or query become one unit vector z (paper 4.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.errors import BadInput

# name -> width of each projected part, width of the joint hidden layers
PRESETS: dict[str, tuple[int, int]] = {"released": (2560, 5120), "small": (512, 1024)}


class Fusion(nn.Module):
    """h = lambda * text + (1 - lambda) * image + MLP([text; image]), z = h / |h|.

    An absent part is a zero row, as in the released model, whose parameter names and sizes are those of the
    preset `released`. The MLP and the logit of lambda are initialised to zero, so that z is phi, the plain
    sum, before training. The preset `sum` has no parameters: z stays phi.
    """

    def __init__(self, dim: int, preset: str = "released", dropout: float = 0.0) -> None:
        super().__init__()
        if preset not in ("sum", *PRESETS):
            raise BadInput(f"unknown fusion {preset!r}: choose one of sum, {', '.join(PRESETS)}")
        self.dim, self.preset = dim, preset
        if preset == "sum":
            return
        part, joint = PRESETS[preset]
        self.text_projection_layer = nn.Linear(dim, part)
        self.image_projection_layer = nn.Linear(dim, part)
        self.combiner_layer = nn.Linear(2 * part, joint)
        self.output_layer = nn.Linear(joint, dim)
        self.dynamic_scalar = nn.Sequential(
            nn.Linear(2 * part, joint), nn.ReLU(), nn.Dropout(dropout), nn.Linear(joint, 1), nn.Sigmoid()
        )
        self.dropout = nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if name.startswith(("output_layer.", "dynamic_scalar.3.")):
                nn.init.zeros_(parameter)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """z of (n, dim) image and text vectors: (n, dim) float32, unit length."""
        if self.preset == "sum":
            return F.normalize(image.float() + text.float(), dim=-1)
        parts = torch.cat(
            [F.relu(self.text_projection_layer(text)), F.relu(self.image_projection_layer(image))], dim=-1
        )
        parts = self.dropout(parts)  # (n, 2 * part)
        balance = self.dynamic_scalar(parts).float()  # lambda, (n, 1)
        joint = self.output_layer(self.dropout(F.relu(self.combiner_layer(parts)))).float()
        h = balance * text.float() + (1 - balance) * image.float() + joint
        return F.normalize(h, dim=-1)
