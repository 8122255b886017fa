"""Stage 0 of a recipe: an encoder folder, ready for the stages after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from genius.config import Distillation, EncoderTraining, Optimiser
from genius.data.training_set import TrainingSet
from genius.encode import distill
from genius.encode.base import TrainableEncoder
from genius.encode.mini import MiniEncoder
from genius.encode.teacher import ClipTeacher, clip_weights
from genius.encode.train import Pictures, train_encoder
from genius.pipeline.validation import in_chunks, sum_parts, task_hits
from genius.training.loop import Result
from genius.training.schedule import Plan


@dataclass(frozen=True, slots=True)
class Splits:
    """What stage 0 learns from and what it is judged by."""

    train: TrainingSet
    val: TrainingSet


def plan_of(optimiser: Optimiser) -> Plan:
    """The plan that a recipe's optimiser table describes."""
    return Plan(**optimiser.model_dump())


def validator(
    encoder: TrainableEncoder, data: TrainingSet, device: torch.device
) -> Callable[[], Mapping[str, float]]:
    """A function that gives hit@5 of exact search over `data`, pictures decoded once and kept on the CPU."""
    pictures = Pictures(data.images, encoder, torch.device("cpu"), resident=True)
    pieces = encoder.prepare_texts(data.texts)

    def validate() -> Mapping[str, float]:
        images = in_chunks(lambda rows: encoder.image_vectors(pictures[rows.cpu()]), len(data.images), device)
        texts = in_chunks(lambda rows: encoder.text_vectors(pieces[rows.cpu()]), len(data.texts), device)
        return task_hits(data, *sum_parts(data, images, texts))

    return validate


@dataclass(frozen=True, slots=True)
class Taught:
    """`mini` after its distillation, and the teacher that went before it."""

    encoder: MiniEncoder
    teacher: Callable[[Tensor], Tensor]  # pixels to vectors in the shared space
    reference: Result  # the teacher's image vectors with the text tower, on val


def teach_mini(
    table: Distillation,
    splits: Splits,
    *,
    balance: float,
    folder: Path,
    seed: int,
    device: torch.device,
) -> Taught:
    """Align the text tower to CLIP's image vectors, then teach the image tower those vectors."""
    encoder = distill.start(Path(table.image_start), Path(table.text_start), table.dropout, str(device))
    clip = ClipTeacher(clip_weights(Path(table.teacher))).to(device).eval()
    if device.type == "cuda":
        clip.tower.bfloat16()
    pictures = Pictures(splits.train.images, encoder, device, resident=True)
    val_pictures = Pictures(splits.val.images, encoder, device, resident=True)
    clip_train = in_chunks(lambda rows: clip(pictures[rows]), len(splits.train.images), device)
    clip_val = in_chunks(lambda rows: clip(val_pictures[rows]), len(splits.val.images), device)

    aligned = distill.Aligned(encoder.module.text).to(device)
    val_pieces = encoder.prepare_texts(splits.val.texts).to(device)

    def texts() -> Tensor:
        return in_chunks(lambda rows: encoder.text_vectors(val_pieces[rows]), len(val_pieces), device)

    def validate_reference() -> Mapping[str, float]:
        return task_hits(splits.val, *sum_parts(splits.val, aligned.map(clip_val), texts()))

    reference = distill.align_text(
        aligned, encoder, clip_train, splits.train, plan_of(table.alignment),
        folder=folder / "alignment", seed=seed, balance=balance, validate=validate_reference,
    )  # fmt: skip

    aligned.eval().requires_grad_(False)
    val_texts = texts()

    def validate_student() -> Mapping[str, float]:
        images = in_chunks(
            lambda rows: encoder.image_vectors(val_pictures[rows]), len(val_pictures.files), device
        )
        return task_hits(splits.val, *sum_parts(splits.val, images, val_texts))

    @torch.no_grad()
    def target(pixels: Tensor) -> Tensor:
        vectors: Tensor = aligned.map(clip(pixels).float())
        return vectors

    distill.distil_images(
        encoder.module.image, encoder, target, pictures,
        torch.arange(len(splits.train.images), device=device), plan_of(table.images),
        folder=folder / "distillation", seed=seed, validate=validate_student,
        smallest_view=table.smallest_view, colour=table.colour, mix=table.mix,
    )  # fmt: skip
    encoder.module.requires_grad_(True)
    return Taught(encoder, target, reference)


def train_stage(
    encoder: TrainableEncoder,
    table: EncoderTraining,
    splits: Splits,
    *,
    folder: Path,
    seed: int,
    device: torch.device,
    teacher: Callable[[Tensor], Tensor] | None = None,
) -> Result:
    """Eq. 2 on both towers as the recipe's `encoder_training` says; best weights by val kept."""
    return train_encoder(
        encoder, splits.train, plan_of(table.optimiser), folder=folder / "encoder", seed=seed, device=device,
        temperature=table.temperature, mask_positives=table.mask_positives, balance=table.balance,
        image_rate=table.image_rate, smallest_view=table.smallest_view, colour=table.colour,
        resident=table.resident, teacher=teacher, teacher_weight=table.teacher_weight,
        validate=validator(encoder, splits.val, device),
    )  # fmt: skip
