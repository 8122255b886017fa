"""Distillation of CLIP's image tower into `mini`, which starts from published towers.

1. `align_text`: MiniLM and a linear map of the teacher's embeddings are trained by eq. 2.
2. `distil_images`: EfficientNet-Lite2 learns the teacher's embeddings on random views that both see.
3. `Aligned.fold_into`: the map becomes part of the image tower's last layer.
Stage 0 (encode/train.py) then trains both towers together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
from genius.training.loop import STARTED_FROM, TrainingResult, run
from genius.weights import fingerprint_tensors

Validate = Callable[[], Mapping[str, float]]
HEAD = ("text.hidden.", "text.out.")
SHARPNESS = 0.05  # temperature of the similarities that the student copies
LENGTH_WEIGHT = 0.05  # of the term that keeps the embeddings near unit length


def start(image_wheel: Path, text_wheel: Path, dropout: float, device: str) -> MiniEncoder:
    """An untrained `mini`: published towers, random heads, norms in place."""
    towers = Towers(norm=True, dropout=dropout)
    start_from_imagenet(towers.image, imagenet_weights(image_wheel))
    weights, tokenizer = minilm_weights(text_wheel)
    start_from_minilm(towers.text, weights)
    return MiniEncoder(towers, Tokenizer.from_str(tokenizer), "untrained", device)


class Aligned(nn.Module):
    """A text tower and the linear map that brings the teacher's embeddings to it.

    The map has no bias: it acts on directions, whatever the length of the image tower's embeddings.
    """

    def __init__(self, text: TextTower) -> None:
        super().__init__()
        self.text = text
        self.map = nn.Linear(DIM, DIM, bias=False)
        nn.init.eye_(self.map.weight)

    @torch.no_grad()
    def fold_into(self, tower: ImageTower) -> None:
        """Make the map part of the last layer of `tower`, which has learned the teacher's embeddings."""
        for parameter in (tower.out.weight, tower.out.bias):
            parameter.copy_(self.map.weight @ parameter)


class CentredTeacher:
    """The teacher's unit embeddings less their mean over the training images, scaled to unit length.

    Embeddings of CLIP share a large common component: two images chosen at random have a cosine of about 0.5.
    Without it the student's loss is about what tells images apart.
    """

    def __init__(self, teacher: Callable[[Tensor], Tensor], mean: Tensor | None = None) -> None:
        self.teacher, self.mean = teacher, mean

    def embed(self, pixels: Tensor) -> Tensor:
        """Unit embeddings (n, dim), not centred."""
        return F.normalize(self.teacher(pixels).float(), dim=1)

    def centred(self, embeddings: Tensor) -> Tensor:
        """Unit embeddings (n, dim) without the common component."""
        return F.normalize(embeddings - self.mean, dim=1) if self.mean is not None else embeddings

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Targets (n, dim) of a batch of pixels."""
        return self.centred(self.embed(pixels))


class TeacherTargets:
    """The teacher's embeddings of the views of the first steps, computed once and kept in half precision."""

    def __init__(self, steps: int, batch: int, device: torch.device) -> None:
        self._kept = torch.empty(steps, batch, DIM, dtype=torch.float16, device=device)
        self._known = [False] * steps

    def get(self, step: int, compute: Callable[[], Tensor]) -> Tensor:
        """Targets (batch, dim) of the views of `step`; those beyond the first steps are not kept."""
        if step >= len(self._known):
            return compute()
        if not self._known[step]:
            self._kept[step] = compute()
            self._known[step] = True
        return self._kept[step].float()


def align_text(
    aligned: Aligned,
    texts: TokenTable,
    clip_vectors: Tensor,
    data: TrainingSet,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    balance: float,
    body_rate: float,
    temperature: float = 0.01,
    inputs: Mapping[str, Any] | None = None,
    validate: Validate | None = None,
) -> TrainingResult:
    """Train the text tower and the map on CLIP's vectors (images of `data`, dim) by eq. 2.

    `texts` are those of `data`; `body_rate` is the factor on the rate of the text tower below its head.
    `inputs` are plain values that say where the vectors come from: a checkpoint made with others is refused.
    """
    pairs = rows_of(data).to(clip_vectors.device).balanced(balance)

    def embed(image_rows: Tensor, text_rows: Tensor) -> Tensor:
        return fuse_towers(
            image_rows,
            text_rows,
            lambda rows: aligned.map(clip_vectors[rows]),
            lambda rows: texts.by_length(rows, aligned.text),
        )

    def step(number: int) -> dict[str, Tensor]:
        batch = pairs.sample(number, config.batch, seed)
        return {"loss": batch_loss(embed, pairs, batch, temperature)}

    def rate_factor(name: str) -> float:
        return body_rate if name.startswith("text.") and not name.startswith(HEAD) else 1.0

    return run(
        "alignment",
        aligned,
        step,
        config,
        folder=folder,
        seed=seed,
        validate=validate,
        settings={
            "temperature": temperature,
            "balance": balance,
            "body_rate": body_rate,
            "data": data.digest,
            **(inputs or {}),
            STARTED_FROM: fingerprint_tensors(aligned.state_dict()),
        },
        rate_factor=rate_factor,
    )


def teacher_loss(embeddings: Tensor, target: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """How far raw embeddings (n, dim) are from the teacher's unit embeddings `target` of the same views.

    Three terms: the angle to the teacher's embedding, the Kullback-Leibler divergence of the similarities to
    `targets`, the teacher's embeddings of all views of the batch, and a small one that keeps lengths near 1.
    """
    length = embeddings.norm(dim=1)
    embeddings = F.normalize(embeddings, dim=1)
    angle = 1 - (embeddings * target).sum(dim=1).mean()
    with torch.autocast(embeddings.device.type, enabled=False):
        learned, wanted = ((side @ targets.T / SHARPNESS).log_softmax(dim=1) for side in (embeddings, target))
    divergence = F.kl_div(learned, wanted, log_target=True, reduction="batchmean")
    loss = 2 * angle + divergence + LENGTH_WEIGHT * (length - 1).square().mean()
    return {"loss": loss, "angle": angle, "divergence": divergence}


def distil_images(
    tower: ImageTower,
    encoder: MiniEncoder,
    teacher: Callable[[Tensor], Tensor],
    images: ImageTable,
    rows: Tensor,
    config: OptimiserConfig,
    *,
    folder: Path,
    seed: int,
    smallest_view: float,
    colour: float,
    mix: float,
    distinct_steps: int = 0,
    small_side: int = 160,
    small_steps: int = 0,
    inputs: Mapping[str, Any] | None = None,
    validate: Validate | None = None,
) -> TrainingResult:
    """Train the image tower by `teacher_loss` on random views of the images in `rows`.

    From step `distinct_steps` on (0: never), the views of earlier steps come again, and with them the
    teacher's embeddings, which are kept. In the first `small_steps` steps the tower sees views of
    `small_side` pixels, the teacher always views of full size. `inputs` are plain values that say which
    teacher it is: a checkpoint made with another one is refused.
    """
    device = encoder.device
    embed, targets_of = encoder.image_vectors, teacher
    if config.compile:
        embed = torch.compile(embed, dynamic=False)
        targets_of = torch.compile(lambda pixels: teacher(pixels), dynamic=False)
    part = distributed.rank_slice(config.batch)

    kept = TeacherTargets(distinct_steps, len(range(config.batch)[part]), device)

    def step(number: int) -> dict[str, Tensor]:
        drawn = number % distinct_steps if distinct_steps else number
        generator = generator_for(device, seed, "distillation", drawn)
        chosen = rows[torch.randint(len(rows), (config.batch,), generator=generator, device=device)]
        view_generator = generator_for(device, seed, "views", drawn, distributed.rank())
        views = random_views(
            images[chosen[part]], view_generator, smallest=smallest_view, flip=True, colour=colour
        )
        views = mixed(views, view_generator, mix)
        target = kept.get(drawn, lambda: F.normalize(targets_of(views).float(), dim=1))
        if number < small_steps:
            views = F.interpolate(views, (small_side, small_side), mode="bilinear", antialias=True)
        return teacher_loss(embed(views).float(), target, distributed.all_gather_rows(target))

    settings = {
        "views": [smallest_view, colour, mix], "images": len(rows),
        "distinct_steps": distinct_steps, "small": [small_side, small_steps], **(inputs or {}),
        STARTED_FROM: fingerprint_tensors(tower.state_dict()),
    }  # fmt: skip
    return run(
        "distillation", tower, step, config, folder=folder, seed=seed, validate=validate, settings=settings
    )
