"""Karpathy's JSON of captioned photos (COCO, Flickr30K, Flickr8K): caption -> photo and photo -> captions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from genius.data.base import LabelledQuery, Qrels, Row, keep_named
from genius.data.instructions import Instruction, Instructions, clean
from genius.data.report import Report
from genius.data.texts import clean_text
from genius.errors import BadData, BadInput
from genius.types import Item, Modality

SPLITS = ("train", "restval", "val", "test")
CAPTION_TO_PHOTO, PHOTO_TO_CAPTION = 0, 3  # M-BEIR's task numbers
PHOTO_FOLDERS = (".", "images", "flickr30k-images", "Flicker8k_Dataset")
ASK_PHOTO = (
    "Find the photo that this caption was written about.",
    "Which photo shows the scene in this sentence?",
    "Retrieve the picture that matches the description.",
    "Show the image that goes with these words.",
)
ASK_CAPTION = (
    "Find a caption for this photo.",
    "Which sentence tells what the picture shows?",
    "Retrieve a description of the scene in the image.",
    "Show the text that was written about this photo.",
)


class _Photo(NamedTuple):
    id: str
    path: PurePosixPath
    split: str
    captions: tuple[tuple[str, str], ...]  # (id, text as written)


class Karpathy:
    """A folder with one such JSON file and the photos beside or below it, or the JSON file itself.

    As is the custom, `train` is train and restval together; `restval` alone can be asked for too.
    Ids are `coco:image:42` and `coco:text:7`. The table of captions is held in memory, photos never are.
    """

    def __init__(self, root: str | Path, datasets: Sequence[str] = ()) -> None:
        self.file = _json_file(Path(root))
        self.root = self.file.parent
        self.report = Report()
        self._datasets = tuple(datasets)

    @cached_property
    def instructions(self) -> Instructions:
        """Our own sentences for the two tasks: the format has none."""
        name = self._name
        sentences = {
            (name, Modality.TEXT, Modality.IMAGE): [
                Instruction(*one) for one in enumerate(ASK_PHOTO, start=1)
            ],
            (name, Modality.IMAGE, Modality.TEXT): [
                Instruction(*one) for one in enumerate(ASK_CAPTION, start=1)
            ],
        }
        return Instructions(sentences, {name: name}, str(self.file))

    def splits(self) -> list[str]:
        """The splits there are photos for."""
        return [split for split in SPLITS if any(True for _ in self._of(split, strict=False))]

    def rows(self, split: str) -> list[Row]:
        """Caption to photo, photo to caption."""
        next(self._of(split))
        rows = [Row(self._name, CAPTION_TO_PHOTO), Row(self._name, PHOTO_TO_CAPTION)]
        return keep_named(rows, self._datasets, self.root)

    def queries(self, split: str, row: Row | None = None) -> Iterator[LabelledQuery]:
        """Every caption asks for its photo, every photo for its captions."""
        for each in self._wanted(split, row):
            for photo in self._of(split):
                captions = tuple(caption for caption, _ in photo.captions)
                if each.task == CAPTION_TO_PHOTO:
                    for caption, text in photo.captions:
                        yield LabelledQuery(caption, each, Modality.TEXT, text, None, (photo.id,))
                elif captions:
                    path = self._folder / photo.path
                    yield LabelledQuery(photo.id, each, Modality.IMAGE, None, path, captions)

    def pool(self, split: str, row: Row | None = None) -> Iterator[Item]:
        """The photos of the split, its captions, or both."""
        for each in self._wanted(split, row):
            for photo in self._of(split):
                if each.task == CAPTION_TO_PHOTO:
                    yield Item(photo.id, self._folder / photo.path)
                else:
                    yield from (Item(caption, None, clean(text)) for caption, text in photo.captions)

    def qrels(self, split: str, row: Row | None = None) -> Qrels:
        """Each caption's photo and each photo's captions, all with relevance 1."""
        return {query.id: dict.fromkeys(query.positives, 1) for query in self.queries(split, row)}

    def _wanted(self, split: str, row: Row | None) -> list[Row]:
        rows = self.rows(split)
        if row is not None and row not in rows:
            raise BadInput(f"no row {row} in {self.file}: it has {', '.join(map(str, rows))}")
        return rows if row is None else [row]

    def _of(self, split: str, *, strict: bool = True) -> Iterator[_Photo]:
        """The photos of `split`; none at all is an error if `strict`."""
        names = ("train", "restval") if split == "train" else (split,)
        found = False
        for photo in self._photos:
            if photo.split in names:
                found = True
                yield photo
        if strict and not found:
            raise BadData(f"{self.file}: no photos of split {split!r}; it has {', '.join(self.splits())}")

    @cached_property
    def _table(self) -> dict[str, Any]:
        try:
            with self.file.open(encoding="utf-8") as stream:
                table = json.load(stream, object_hook=_without_tokens)
        except (OSError, ValueError, RecursionError) as error:
            raise BadData(f"{self.file}: not readable as JSON ({error})") from None
        if not isinstance(table, dict) or not isinstance(table.get("images"), list):
            raise BadData(f"{self.file}: expected an object with a list under 'images'")
        return table

    @cached_property
    def _name(self) -> str:
        name = self._table.get("dataset")
        return name if isinstance(name, str) and name else self.file.stem.removeprefix("dataset_")

    @cached_property
    def _photos(self) -> list[_Photo]:
        photos = []
        for number, entry in enumerate(self._table["images"], start=1):
            try:
                photos.append(self._photo(entry))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise BadData(f"{self.file}: image {number}: missing or wrong {error}") from None
        self._table["images"] = []  # the parsed form is all that is needed
        return photos

    def _photo(self, entry: dict[str, Any]) -> _Photo:
        path = PurePosixPath(entry.get("filepath") or "", entry["filename"])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"path {path}, it leads out of the folder")
        captions = []
        for sentence in entry["sentences"]:
            caption, text = f"{self._name}:text:{sentence['sentid']}", clean_text(sentence["raw"]).text
            if clean(text):
                captions.append((caption, text))
            else:
                self.report.skip(caption, "empty caption")
        return _Photo(f"{self._name}:image:{entry['imgid']}", path, str(entry["split"]), tuple(captions))

    @cached_property
    def _folder(self) -> Path:
        """Where the photos are: the first of the usual places that has the first photo."""
        first = self._photos[0].path if self._photos else PurePosixPath()
        places = [self.root / name for name in PHOTO_FOLDERS]
        return next((place for place in places if (place / first).is_file()), self.root)


def _json_file(root: Path) -> Path:
    """`root` itself or the one dataset*.json in it, else the one *.json."""
    if root.is_file():
        return root
    for pattern in ("dataset*.json", "*.json"):
        found = sorted(root.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise BadData(
                f"{root}: several datasets ({', '.join(file.name for file in found)}); name the file itself"
            )
    raise BadData(f"{root}: no dataset_*.json here")


def _without_tokens(entry: dict[str, Any]) -> dict[str, Any]:
    """Drops the split-up words while parsing: they are most of the file and not used."""
    entry.pop("tokens", None)
    return entry
