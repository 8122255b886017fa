"""The image tower of `mini`: EfficientNet-Lite2, and a small head into the shared space.

It has convolutions, ReLU6 and additions only, so it is fast on a CPU. In training every convolution is
followed by a batch norm; `fold_norms` turns both into one biased convolution, which is what is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from genius.errors import ModelMismatch


@dataclass(frozen=True, slots=True)
class StageShape:
    """A run of inverted-residual blocks; only the first of them strides."""

    repeats: int
    kernel: int
    stride: int
    expand: int
    width: int


STEM = 32
STAGES = (
    StageShape(1, 3, 1, 1, 16),
    StageShape(3, 3, 2, 6, 24),
    StageShape(3, 5, 2, 6, 48),
    StageShape(4, 3, 2, 6, 88),
    StageShape(4, 5, 1, 6, 120),
    StageShape(5, 5, 2, 6, 208),
    StageShape(1, 3, 1, 6, 352),
)
HEAD = 1280
HIDDEN = 1024
CLASSIFIER = "_fc"  # in the published weights; not taken


class ConvUnit(nn.Module):
    """Convolution, batch norm (in training) and ReLU6 (unless it ends a block).

    Padding follows the rule the weights were trained with: stride two pads one more on the right and below.
    """

    def __init__(
        self,
        wide_in: int,
        wide_out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        *,
        norm: bool,
        act: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(wide_in, wide_out, kernel, stride, groups=groups, bias=not norm)
        self.norm = nn.BatchNorm2d(wide_out, eps=1e-3, momentum=0.01) if norm else None
        self.act = act
        total = kernel - stride
        self.pad = (total // 2, total - total // 2) if total > 0 else (0, 0)
        if self.pad[0] == self.pad[1]:
            self.conv.padding = (self.pad[0], self.pad[0])
            self.pad = (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        """(n, wide_in, h, w) to (n, wide_out, h / stride, w / stride)."""
        if self.pad[1]:
            x = F.pad(x, (*self.pad, *self.pad))
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return F.relu6(x, inplace=True) if self.act else x


class Block(nn.Module):
    """Inverted residual: expand, depthwise convolution, project; a skip connection where shapes allow."""

    def __init__(self, wide_in: int, stage: StageShape, stride: int, *, norm: bool) -> None:
        super().__init__()
        wide = wide_in * stage.expand
        self.expand = ConvUnit(wide_in, wide, 1, norm=norm) if stage.expand > 1 else None
        self.depthwise = ConvUnit(wide, wide, stage.kernel, stride, groups=wide, norm=norm)
        self.project = ConvUnit(wide, stage.width, 1, norm=norm, act=False)
        self.skip = stride == 1 and wide_in == stage.width

    def forward(self, x: Tensor) -> Tensor:
        """(n, wide_in, h, w) to (n, width, h / stride, w / stride)."""
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        out: Tensor = y + x if self.skip else y
        return out


class ImageTower(nn.Module):
    """Normalised pixels (n, 3, 224, 224) to raw vectors (n, dim); without `stages` those of Lite2."""

    def __init__(self, dim: int, *, norm: bool = False, stages: Sequence[StageShape] | None = None) -> None:
        super().__init__()
        self.stem = ConvUnit(3, STEM, 3, 2, norm=norm)
        blocks: list[nn.Module] = []
        wide = STEM
        for stage in STAGES if stages is None else stages:
            for repeat in range(stage.repeats):
                blocks.append(Block(wide, stage, stage.stride if repeat == 0 else 1, norm=norm))
                wide = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvUnit(wide, HEAD, 1, norm=norm)
        self.hidden = nn.Linear(HEAD, HIDDEN)
        self.out = nn.Linear(HIDDEN, dim)

    def features(self, pixels: Tensor) -> Tensor:
        """Scaled pixels to the spatial mean of the last convolution, (n, 1280)."""
        return self.head(self.blocks(self.stem(pixels))).mean(dim=(2, 3))  # type: ignore[no-any-return]

    def project(self, features: Tensor) -> Tensor:
        """Features to raw vectors (n, dim)."""
        return self.out(F.gelu(self.hidden(features)))  # type: ignore[no-any-return]

    def forward(self, pixels: Tensor) -> Tensor:
        """Scaled pixels to raw vectors (n, dim)."""
        return self.project(self.features(pixels))


AnyTower = TypeVar("AnyTower", bound=ImageTower)


def fold_norms(tower: AnyTower) -> AnyTower:
    """A copy of the tower, on the CPU in eval mode, with every batch norm folded into its convolution."""
    folded = deepcopy(tower).cpu().eval()
    for unit in folded.modules():
        if isinstance(unit, ConvUnit) and unit.norm is not None:
            unit.conv, unit.norm = fuse_conv_bn_eval(unit.conv, unit.norm), None
    return folded.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


def start_from_imagenet(tower: ImageTower, weights: Mapping[str, Tensor]) -> None:
    """Fill a training tower, all but its head, from the published ImageNet weights of an EfficientNet-Lite.

    Raises ModelMismatch if there are weights, other than the classifier's, that the tower has no place for.
    """
    units = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for row, block in enumerate(tower.blocks):
        assert isinstance(block, Block)
        names = iter(("_bn0", "_bn1", "_bn2"))
        if block.expand is not None:
            units[f"blocks.{row}.expand"] = (f"_blocks.{row}._expand_conv", f"_blocks.{row}.{next(names)}")
        else:
            next(names)
        units[f"blocks.{row}.depthwise"] = (f"_blocks.{row}._depthwise_conv", f"_blocks.{row}.{next(names)}")
        units[f"blocks.{row}.project"] = (f"_blocks.{row}._project_conv", f"_blocks.{row}.{next(names)}")
    parts = [part for unit in units.values() for part in unit]
    unused = sorted(name for name in weights if name.rpartition(".")[0] not in {*parts, CLASSIFIER})
    if unused:
        raise ModelMismatch(f"weights of another size of EfficientNet-Lite: no place for {unused[0]}")
    state: dict[str, Tensor] = {}
    for ours, (conv, norm) in units.items():
        state[f"{ours}.conv.weight"] = weights[f"{conv}.weight"]
        for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            state[f"{ours}.norm.{part}"] = weights[f"{norm}.{part}"]
    tower.load_state_dict({**tower.state_dict(), **state})


def scale_pixels(pixels: Tensor) -> Tensor:
    """uint8 pixels to the range the tower was trained on."""
    return (pixels.to(torch.float32) - 127.0) / 128.0
