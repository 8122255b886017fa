"""Stage 0 of a recipe: an encoder folder, ready for the stages after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from genius.config import DistillationConfig, EncoderTrainingConfig
from genius.data.training_set import TrainingSet
from genius.encode.base import Array, Trainable
from genius.encode.images import ImageTable
from genius.encode.mini import distill
from genius.encode.mini.efficientnet import HEAD
from genius.encode.mini.encoder import MiniEncoder
from genius.encode.mini.heads import (
    Heads,
    Teacher,
    ViewOptions,
    image_features,
    text_features,
    train_heads,
)
from genius.encode.mini.minilm import WIDTH
from genius.encode.mini.teacher import ClipTeacher, clip_weights
from genius.encode.train import (
    AnyTrainable,
    TokenTable,
    Tower,
    embedder,
    fuse_towers,
    in_chunks,
    train_encoder,
)
from genius.errors import BadInput
from genius.pipeline.validation import hit_rates
from genius.pipeline.vectors import IMAGES_AT_ONCE, TEXTS_AT_ONCE, cached, content_name, file_state
from genius.training import distributed
from genius.training.loop import TrainingResult
from genius.weights import fingerprint_tensors


@dataclass(frozen=True, slots=True)
class Splits:
    """The training and the validation set of stage 0."""

    train: TrainingSet
    val: TrainingSet


@dataclass(frozen=True, slots=True)
class SplitImages:
    """The images of both splits, decoded once for everything that follows."""

    train: ImageTable
    val: ImageTable

    @classmethod
    def of(cls, encoder: Trainable, splits: Splits, device: torch.device, *, resident: bool) -> SplitImages:
        """Train images on the device if `resident`, else decoded when needed.

        Those of val stay decoded in the main process, which is the one that validates.
        """
        keep = device if resident else torch.device("cpu")
        return cls(
            ImageTable(splits.train.images, encoder, device, resident=resident),
            ImageTable(splits.val.images, encoder, keep, resident=distributed.is_main()),
        )


@dataclass(frozen=True, slots=True)
class SplitTexts:
    """The token ids of the texts of both splits, on the device."""

    train: TokenTable
    val: TokenTable

    @classmethod
    def of(cls, encoder: Trainable, splits: Splits, device: torch.device) -> SplitTexts:
        """Tokenize all texts."""
        return cls(*(TokenTable(split.texts, encoder, device) for split in (splits.train, splits.val)))


def validator(
    encoder: AnyTrainable, data: TrainingSet, device: torch.device, images: ImageTable | None = None
) -> Callable[[], Mapping[str, float]]:
    """A function that gives hit@5 of exact search over `data`; its images are decoded once."""
    table = images or ImageTable(data.images, encoder, torch.device("cpu"), resident=True)
    texts = TokenTable(data.texts, encoder, device)
    embed = embedder(encoder, lambda rows: table[rows].to(device), texts.__getitem__)
    return lambda: hit_rates(data, embed, device)


@dataclass(frozen=True, slots=True)
class DistillationResult:
    """What a distillation leaves beside the trained encoder."""

    teacher: Callable[[Tensor], Tensor]  # pixels to vectors in the shared space
    texts: SplitTexts


def distil_mini(
    encoder: MiniEncoder,
    table: DistillationConfig,
    splits: Splits,
    images: SplitImages,
    *,
    balance: float,
    folder: Path,
    seed: int,
    device: torch.device,
) -> DistillationResult:
    """Align the text tower to CLIP's image embeddings, then distil those into the image tower.

    `images` are those of `splits`, resident.
    """
    clip = ClipTeacher(clip_weights(Path(table.teacher))).to(device).eval()
    inputs = {"teacher": fingerprint_tensors(clip.state_dict())}
    if device.type == "cuda":
        clip.tower.bfloat16()
    readable = torch.ones(len(images.train), dtype=torch.bool, device=device)
    readable[images.train.unreadable] = False
    teacher = distill.CentredTeacher(clip)
    clip_train = in_chunks(lambda rows: teacher.embed(images.train[rows]), len(images.train), device)
    teacher.mean = clip_train[readable].mean(dim=0)
    clip_train = teacher.centred(clip_train)

    @cache  # val is looked at by the process that validates, and by no other
    def clip_val() -> Tensor:
        return in_chunks(lambda rows: teacher(images.val[rows]), len(images.val), device)

    aligned = distill.Aligned(encoder.module.text).to(device)
    texts = SplitTexts.of(encoder, splits, device)

    def embed_by_teacher(image_rows: Tensor, text_rows: Tensor) -> Tensor:
        return fuse_towers(
            image_rows,
            text_rows,
            lambda rows: aligned.map(clip_val()[rows]),
            lambda rows: encoder.text_vectors(texts.val[rows]),
        )

    distill.align_text(
        aligned, texts.train, clip_train, splits.train, table.alignment,
        folder=folder / "alignment", seed=seed, balance=balance, body_rate=table.body_rate, inputs=inputs,
        validate=lambda: hit_rates(splits.val, embed_by_teacher, device),
    )  # fmt: skip

    aligned.eval().requires_grad_(False)

    @cache
    def val_texts() -> Tensor:
        return in_chunks(lambda rows: encoder.text_vectors(texts.val[rows]), len(splits.val.texts), device)

    def embed_by_student(image_rows: Tensor, text_rows: Tensor) -> Tensor:
        return fuse_towers(
            image_rows,
            text_rows,
            lambda rows: aligned.map(encoder.image_vectors(images.val[rows]).float()),
            lambda rows: val_texts()[rows],
        )

    distill.distil_images(
        encoder.module.image, encoder, teacher, images.train,
        readable.nonzero().flatten(), table.images,
        folder=folder / "distillation", seed=seed,
        validate=lambda: hit_rates(splits.val, embed_by_student, device),
        smallest_view=table.smallest_view, colour=table.colour, mix=table.mix,
        distinct_steps=table.distinct_steps, small_side=table.small_side,
        small_steps=round(table.small_share * table.images.steps), inputs=inputs,
    )  # fmt: skip
    aligned.fold_into(encoder.module.image)
    encoder.module.requires_grad_(True)
    return DistillationResult(lambda pixels: aligned.map(teacher(pixels)), texts)


def train_stage(
    encoder: AnyTrainable,
    table: EncoderTrainingConfig,
    splits: Splits,
    images: SplitImages,
    *,
    folder: Path,
    seed: int,
    device: torch.device,
    teacher: Callable[[Tensor], Tensor] | None = None,
    texts: SplitTexts | None = None,
) -> TrainingResult:
    """Eq. 2 with the values of the recipe's `encoder_training`; the best weights on val are kept.

    `texts`, if they are tokenized already, are not tokenized again above a frozen image tower.
    """
    if table.frozen != "none":
        if table.learned_temperature or not table.symmetric:
            raise BadInput("frozen towers: heads know no learned_temperature and no symmetric = false")
        return _train_heads(encoder, table, splits, images, folder, seed, teacher, texts)
    return train_encoder(
        encoder, splits.train, images.train, table.optimiser, folder=folder / "encoder", seed=seed,
        device=device, temperature=table.temperature, learned_temperature=table.learned_temperature,
        symmetric=table.symmetric, mask_positives=table.mask_positives,
        balance=table.balance, image_rate=table.image_rate, smallest_view=table.smallest_view,
        colour=table.colour, teacher=teacher, teacher_weight=table.teacher_weight,
        validate=validator(encoder, splits.val, device, images.val),
    )  # fmt: skip


def _train_heads(
    encoder: AnyTrainable,
    table: EncoderTrainingConfig,
    splits: Splits,
    images: SplitImages,
    folder: Path,
    seed: int,
    teacher: Callable[[Tensor], Tensor] | None,
    texts: SplitTexts | None,
) -> TrainingResult:
    """Train above frozen towers: the heads, and with `frozen = "image"` all of the text tower."""
    if not isinstance(encoder, MiniEncoder):
        raise BadInput("frozen: only mini has heads that learn alone; use mini, or train the whole encoder")
    device, kept = encoder.device, folder / "features"
    options = ViewOptions(table.smallest_view, table.colour)
    features = torch.stack(
        [
            _image_features(encoder, images.train, kept, view, options, seed)
            for view in range(table.feature_views)
        ]
    )
    val_images = _image_features(encoder, images.val, kept, 0, options, seed)
    whole = table.frozen == "image"
    if whole:
        tokens = texts or SplitTexts.of(encoder, splits, device)
        train_texts, val_texts = (_text_tower(encoder, split) for split in (tokens.train, tokens.val))
    else:
        train_texts, val_texts = (
            _text_features(encoder, split.texts, kept) for split in (splits.train, splits.val)
        )
    near = None
    if teacher is not None and table.teacher_weight:
        wanted = in_chunks(lambda rows: teacher(images.train[rows].to(device)), len(images.train), device)
        near = Teacher(wanted, table.teacher_weight)

    def validate(heads: Heads) -> Mapping[str, float]:
        return hit_rates(splits.val, heads.embedder(val_images.__getitem__, val_texts), device)

    return train_heads(
        encoder, features, train_texts, splits.train, table.optimiser, folder=folder / "encoder", seed=seed,
        temperature=table.temperature, balance=table.balance, dropout=table.heads_dropout,
        image_rate=table.image_rate, text_tower=whole, body_rate=table.body_rate, teacher=near,
        inputs={"feature views": [table.smallest_view, table.colour]}, validate=validate,
    )  # fmt: skip


def _image_features(
    encoder: MiniEncoder, images: ImageTable, folder: Path, view: int, options: ViewOptions, seed: int
) -> Tensor:
    """Features of one view of all images, (n, 1280), cached in `folder`; several processes share the work."""
    how = f"{view} {options} {seed}" if view else "whole"
    tower = fingerprint_tensors(encoder.module.image.state_dict(), [how])
    name = content_name("images", tower, [file_state(file) for file in images.files.files])

    def compute(rows: range) -> Array:
        part = torch.arange(rows.start, rows.stop)
        found = image_features(encoder, images, part, view=view, options=options, seed=seed)
        return found.cpu().numpy()

    stored = cached(folder / name, range(len(images)), IMAGES_AT_ONCE, compute, HEAD)
    return torch.from_numpy(stored).float().to(encoder.device)


def _text_tower(encoder: MiniEncoder, tokens: TokenTable) -> Tower:
    """Text rows to features, by the tower each time."""
    return lambda rows: tokens.by_length(rows, encoder.module.text.features)


def _text_features(encoder: MiniEncoder, texts: Sequence[str], folder: Path) -> Tower:
    """Text rows to features, computed once and cached in `folder`."""
    tower = fingerprint_tensors(encoder.module.text.state_dict())
    stored = cached(
        folder / content_name("texts", tower, texts), texts, TEXTS_AT_ONCE,
        lambda part: text_features(encoder, part).cpu().numpy(), WIDTH,
    )  # fmt: skip
    return torch.from_numpy(stored).float().to(encoder.device).__getitem__
