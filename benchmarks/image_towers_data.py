"""What image_towers.py trains on and measures with: the pictures of train and val, their texts and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from photos import Photos, article, read_photos
from PIL import Image
from torch import Tensor

from genius.data.base import Dataset, Row, open_dataset
from genius.data.instructions import clean
from genius.encode.images import decode
from genius.encode.preprocess import Preprocess
from genius.encode.views import cropped, random_crops
from genius.errors import BadData
from genius.seeding import generator_for

Shape = tuple[int, int]  # height, width
FLICKR = "flickr8k"
STORED = 288  # side of the squares that pictures are kept as
SMALLEST = 0.35  # share of a picture that a view shows
THREADS = 16


@dataclass(frozen=True, slots=True)
class Corpus:
    """Pictures, those to train on first; train texts with the rows of their pictures; the tasks of val."""

    files: Sequence[Path]
    trained: int  # the first of `files`
    texts: Sequence[str]
    shown: Sequence[int]  # row of the picture of each text
    tasks: Mapping[str, Photos]

    @property
    def rows(self) -> dict[Path, int]:
        """The row of each file."""
        return {file: row for row, file in enumerate(self.files)}


def read_corpus(data: Path, photos: Path, limit: int = 0) -> Corpus:
    """All pictures that are there, or up to `limit` of train and of each task of val."""
    dataset = open_dataset("mbeir", data)
    (seen, flickr), (held_back, flickr_val) = (read_split(dataset, split) for split in ("train", "val"))
    tasks = {
        "captions": read_photos(photos, "caption"),
        "names": read_photos(photos, "label"),
        "Flickr8k": flickr_val,
    }
    tasks = {name: first(own, limit) for name, own in tasks.items()}
    named, captioned = (read_photos(photos, kind, "train") for kind in ("label", "caption"))
    away = {known_as(file) for file in chain(held_back, *(own.files for own in tasks.values()))}
    train = {known_as(file): file for file in chain(seen, named.files, captioned.files)}
    files = [train[name] for name in sorted(train.keys() - away) if train[name].is_file()]
    files = files[:: max(1, len(files) // limit)][:limit] if limit else files
    place = {known_as(file): row for row, file in enumerate(files)}
    pairs = [
        (f"a photo of {article(text)} {text}" if own is named else text, place[known_as(file)])
        for own in (named, captioned, flickr)
        for file, texts in zip(own.files, own.texts, strict=True)
        if known_as(file) in place
        for text in sorted(texts)
    ]
    if not pairs:
        raise BadData(f"no train picture of {data} or {photos} that is there has a caption or a name")
    val = dict.fromkeys(chain.from_iterable(own.files for own in tasks.values()))
    return Corpus(
        files=[*files, *val],
        trained=len(files),
        texts=[text for text, _ in pairs],
        shown=[row for _, row in pairs],
        tasks={name: own for name, own in tasks.items() if own.files},
    )


def read_split(dataset: Dataset, split: str) -> tuple[set[Path], Photos]:
    """The pictures of all queries and items of a split, and Flickr8k's photos with all their captions."""
    items = {item.id: item for item in dataset.pool(split)}
    pictures = {item.image for item in items.values() if isinstance(item.image, Path)}
    captions: dict[Path, set[str]] = {}
    for query in dataset.queries(split):
        if query.image is not None:
            pictures.add(query.image)
        answers = [items[name] for name in query.positives if name in items]
        if query.row == Row(FLICKR, 0):  # a caption asks for its photo
            for item in answers:
                if isinstance(item.image, Path):
                    captions.setdefault(item.image, set()).add(clean(query.text))
        elif query.row == Row(FLICKR, 3) and query.image is not None:  # a photo asks for its captions
            captions.setdefault(query.image, set()).update(clean(item.text) for item in answers)
    return pictures, Photos(list(captions), list(captions.values()))


def known_as(file: Path) -> str:
    """A picture's name, with its folder: the same in DATA and in PHOTOS."""
    return "/".join(file.parts[-2:])


def first(photos: Photos, limit: int) -> Photos:
    """The photos that are there, or the first `limit` of them."""
    there = [row for row, file in enumerate(photos.files) if file.is_file()]
    rows = there[:limit] if limit else there
    return Photos([photos.files[row] for row in rows], [photos.texts[row] for row in rows])


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures squeezed into squares, on the device, and crops of those to train on."""

    pixels: Tensor  # (pictures, 3, STORED, STORED), uint8
    ratios: Tensor  # width / height before squeezing, on the CPU
    crops: Tensor  # (trained, each, 2, 3); the first is the whole picture
    unreadable: int

    @classmethod
    def read(cls, corpus: Corpus, each: int, device: str, say: Callable[[str], None]) -> Pictures:
        """Decode all files and draw the crops."""
        say(f"{corpus.trained} train pictures, {len(corpus.files) - corpus.trained} of val to decode")
        decoded = decode(corpus.files, Preprocess(STORED, keep_ratio=False))
        with ThreadPoolExecutor(THREADS) as threads:
            ratios = torch.tensor(list(threads.map(ratio_of, corpus.files)))
        generator = generator_for("cpu", 0, "crops")
        crops = random_crops(corpus.trained * each, generator, smallest=SMALLEST, flip=True)
        crops = crops.view(corpus.trained, each, 2, 3)
        crops[:, 0] = torch.eye(2, 3)
        say("all pictures are decoded")
        pixels = torch.from_numpy(decoded.pixels).to(device)
        return cls(pixels, ratios, crops.to(device), len(decoded.unreadable))

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def device(self) -> torch.device:
        """Where the pixels are."""
        return self.pixels.device

    @property
    def trained(self) -> int:
        """The number of pictures to train on, which come first."""
        return self.crops.shape[0]

    @property
    def each(self) -> int:
        """Views of a train picture."""
        return self.crops.shape[1]

    @property
    def view_count(self) -> int:
        """All views of train pictures."""
        return self.trained * self.each

    def views(self, ids: Tensor, shape: Shape) -> Tensor:
        """Views (n, 3, *shape) by number: view // each is its picture."""
        return cropped(self.pixels[ids // self.each], self.crops.flatten(0, 1)[ids], shape)

    def whole(self, rows: Tensor, shape: Shape) -> Tensor:
        """Whole pictures (n, 3, *shape)."""
        return cropped(self.pixels[rows], torch.eye(2, 3, device=self.device).repeat(len(rows), 1, 1), shape)

    def nearest(self, shapes: Sequence[Shape]) -> Tensor:
        """For each picture the place in `shapes` of the one with the nearest ratio, on the CPU."""
        known = torch.tensor([wide / high for high, wide in shapes])
        return (self.ratios.log()[:, None] - known.log()).abs().argmin(1)


def ratio_of(file: Path) -> float:
    """A picture's width / height, 1 if it cannot be read."""
    try:
        with Image.open(file) as opened:
            return opened.width / opened.height
    except OSError:
        return 1.0
