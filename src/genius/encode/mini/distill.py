"""How `mini` is made from published towers: the text tower is aligned to CLIP, the image tower distilled.

1. `align_text`: MiniLM and a linear map of CLIP's image vectors are trained by eq. 2.
2. `distil_images`: EfficientNet-Lite2 learns the mapped vectors on random views of the images.
Stage 0 (encode/train.py) then trains both towers together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from genius.config import OptimiserConfig
from genius.data.pairs import rows_of
from genius.data.training_set import TrainingSet
from genius.encode.images import ImageTable
from genius.encode.mini.efficientnet import ImageTower, start_from_imagenet
from genius.encode.mini.encoder import DIM, MiniEncoder, Towers
from genius.encode.mini.minilm import TextTower, start_from_minilm
from genius.encode.mini.teacher import imagenet_weights, minilm_weights
from genius.encode.train import TokenTable, batch_loss, fuse_towers
from genius.encode.views import mixed, random_views
from genius.seeding import generator_for
from genius.training import distributed
from genius.training.loop import TrainingResult, run

Validate = Callable[[], Mapping[str, float]]
SHARPNESS = 0.05  # temperature of the similarities that the student copies


def start(image_wheel: Path, text_wheel: Path, dropout: float, device: str) -> MiniEncoder:
    """An untrained `mini`: published towers, random heads, norms in place."""
    towers = Towers(norm=True, dropout=dropout)
    start_from_imagenet(towers.image, imagenet_weights(image_wheel))
    weights, tokenizer = minilm_weights(text_wheel)
    start_from_minilm(towers.text, weights)
    return MiniEncoder(towers, Tokenizer.from_str(tokenizer), "untrained", device)


class Aligned(nn.Module):
    """A text tower and the linear map that brings CLIP's image vectors to it."""

    def __init__(self, text: TextTower) -> None:
        super().__init__()
        self.text = text
        self.map = nn.Linear(DIM, DIM)
        nn.init.eye_(self.map.weight)
        nn.init.zeros_(self.map.bias)


def align_text(
    aligned: Aligned,
    encoder: MiniEncoder,
    clip_vectors: Tensor,
    data: TrainingSet,
    plan: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    balance: float,
    temperature: float = 0.01,
    validate: Validate | None = None,
) -> TrainingResult:
    """Train the text tower and the map on CLIP's vectors (images of `data`, dim) by eq. 2."""
    device = encoder.device
    texts = TokenTable(data.texts, encoder, device)
    pairs = rows_of(data).to(device).balanced(balance)

    def embed(image_rows: Tensor, text_rows: Tensor) -> Tensor:
        return fuse_towers(
            image_rows,
            text_rows,
            lambda rows: aligned.map(clip_vectors[rows]),
            lambda rows: aligned.text(texts[rows]),
        )

    def step(number: int) -> dict[str, Tensor]:
        batch = pairs.sample(number, plan.batch, seed)
        return {"loss": batch_loss(embed, pairs, batch, temperature)}

    return run("alignment", aligned, step, plan, folder=folder, seed=seed, validate=validate)


def distil_images(
    tower: ImageTower,
    encoder: MiniEncoder,
    teacher: Callable[[Tensor], Tensor],
    images: ImageTable,
    rows: Tensor,
    plan: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    smallest_view: float,
    colour: float,
    mix: float,
    validate: Validate | None = None,
) -> TrainingResult:
    """Train the image tower on views of the images in `rows`: the teacher's directions and similarities.

    The second term copies, for each view, the teacher's similarities to all other views of the batch.
    """
    device = encoder.device
    part = distributed.rank_slice(plan.batch)

    def step(number: int) -> dict[str, Tensor]:
        generator = generator_for(device, seed, "distillation", number)
        chosen = rows[torch.randint(len(rows), (plan.batch,), generator=generator, device=device)]
        view_generator = generator_for(device, seed, "views", number, distributed.rank())
        views = random_views(
            images[chosen[part]], view_generator, smallest=smallest_view, flip=True, colour=colour
        )
        views = mixed(views, view_generator, mix)
        target = F.normalize(teacher(views).float(), dim=1)
        vectors = F.normalize(encoder.image_vectors(views).float(), dim=1)
        direction = 1 - (vectors * target).sum(dim=1).mean()
        all_targets = distributed.all_gather_rows(target)
        with torch.autocast(device.type, enabled=False):
            student, wanted = (side @ all_targets.T / SHARPNESS for side in (vectors, target))
        similar = F.kl_div(
            student.log_softmax(dim=1), wanted.log_softmax(dim=1), log_target=True, reduction="batchmean"
        )
        return {"loss": direction + similar, "direction": direction, "similar": similar}

    return run("distillation", tower, step, plan, folder=folder, seed=seed, validate=validate)
