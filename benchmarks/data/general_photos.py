"""A training root in M-BEIR's layout: the benchmark with general photos beside it.

    python benchmarks/data/general_photos.py --bench BENCH --photos PHOTOS --coco TRAIN2017 --to DATA

PHOTOS holds pictures and two tables: `captions.tsv` (file, split, kind, text; kind is caption or label)
and `coco_captions.tsv` (id, caption). TRAIN2017 is a folder of COCO's train pictures, named by id; all of
them are items, so the image tower learns from those without a caption, too. Ids in `coco_excluded_ids.txt`
and pictures of the val split stay out of train, and so does what `--leave-out FILE` names: an id or a file
name of COCO on each line, as in XTD10's list of test pictures. Two datasets are added:

- photos (25): caption to picture, to other captions and to captioned picture; picture to captions;
- things (26): a name in several sentences to pictures of it; picture to name; picture to pictures alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PHOTOS, THINGS = ("photos", 25), ("things", 26)
SENTENCES = (
    "{name}", "a photo of {one}", "a picture of {one}", "{one} in the picture", "a photo with {one} in it",
    "a close-up of {one}", "there is {one} here",
)  # fmt: skip
INSTRUCTIONS: tuple[tuple[str, str, tuple[str, int], tuple[str, ...]], ...] = (
    ("text", "image", PHOTOS, (
        "Find the photo that this sentence describes.", "Which picture shows this?",
        "Retrieve an image that matches the caption.", "Show me a photo of this.",
    )),
    ("text", "text", PHOTOS, (
        "Find another sentence about the same scene.", "Which caption says the same in other words?",
        "Retrieve a text that describes the same photo.", "Get a sentence with the same meaning.",
    )),
    ("text", "image,text", PHOTOS, (
        "Find the captioned photo of this scene.", "Which photo and caption belong to this sentence?",
        "Retrieve a picture with its description that fits this text.",
        "Show me a photo with its caption that matches.",
    )),
    ("image", "text", PHOTOS, (
        "Find a sentence that describes this photo.", "What is the caption of this picture?",
        "Retrieve the text that says what is shown.", "Describe this image with a matching sentence.",
    )),
    ("text", "image", THINGS, (
        "Find a photo of this thing.", "Which picture shows what is named here?",
        "Retrieve an image of it.", "Show me pictures of this.",
    )),
    ("image", "text", THINGS, (
        "What is this called?", "Find the name of the thing in this photo.",
        "Retrieve the text that names what is shown.", "Which name belongs to this picture?",
    )),
    ("image", "image", THINGS, (
        "Find another photo of the same kind of thing.", "Which picture shows the same kind?",
        "Retrieve an image of a similar thing.", "Show me more pictures like this.",
    )),
)  # fmt: skip


@dataclass(slots=True)
class Source:
    """What is known of the pictures of a split: path under mbeir_images/ to captions, and to names."""

    captions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unlabelled: list[str] = field(default_factory=list)


class SplitWriter:
    """Collects the queries and items of a split and writes them beside the benchmark's."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.queries: dict[tuple[str, int], list[str]] = defaultdict(list)

    def item(self, dataset: tuple[str, int], text: str | None, image: str | None) -> str:
        """The id of a new item."""
        number = f"{dataset[1]}:{len(self.items) + 1}"
        modality = ",".join(name for name, part in (("image", image), ("text", text)) if part)
        fields = {"did": number, "txt": text, "img_path": _path(image), "modality": modality}
        self.items.append(json.dumps(fields, ensure_ascii=False))
        return number

    def query(
        self, dataset: tuple[str, int], task: int, text: str | None, image: str | None, positives: list[str]
    ) -> None:
        """A new query with its positives."""
        rows = self.queries[dataset[0], task]
        number = f"{dataset[1]}:{task}{len(rows) + 1:07d}"
        rows.append(
            json.dumps(
                {
                    "qid": number, "query_txt": text, "query_img_path": _path(image),
                    "query_modality": "image" if image else "text", "pos_cand_list": positives,
                    "neg_cand_list": [], "task_id": task,
                },
                ensure_ascii=False,
            )
        )  # fmt: skip

    def write(self, root: Path, split: str) -> None:
        """Append the items to the split's pool, and write a file of queries per row."""
        with (root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl").open("a") as pool:
            pool.writelines(line + "\n" for line in self.items)
        for (name, task), lines in self.queries.items():
            file = root / f"query/{split}/mbeir_{name}_task{task}_{split}.jsonl"
            file.write_text("".join(line + "\n" for line in lines))


def _path(image: str | None) -> str | None:
    return None if image is None else f"mbeir_images/{image}"


def read_photos(photos: Path, coco: Path | None, leave_out: Sequence[Path] = ()) -> dict[str, Source]:
    """The pictures of train and val; a COCO picture is known by its id, wherever it lies."""
    lists = [photos / "coco_excluded_ids.txt", *leave_out]
    excluded = {int(Path(line).stem.split("_")[-1]) for file in lists for line in _lines(file) if line}
    train, val = Source(), Source()
    held_back = set(excluded)
    seen: dict[int, str] = {}
    rows = [line.split("\t") for line in _lines(photos / "captions.tsv")][1:]
    for file, split, _, _ in rows:
        if file.startswith("coco/") and split == "val":
            held_back.add(int(Path(file).stem))
    if coco is not None:
        for image in sorted(coco.iterdir()):
            if image.stem.isdigit() and int(image.stem) not in held_back:
                seen[int(image.stem)] = f"coco_train/{image.name}"
    for file, split, kind, text in rows:
        number = int(Path(file).stem) if file.startswith("coco/") else None
        if number in excluded:
            continue
        path = f"photos/{file}"
        if number is not None and split == "train":
            path = seen.setdefault(number, path)
        source = val if split == "val" else train
        texts = (source.captions if kind == "caption" else source.names)[path]
        if text not in texts:
            texts.append(text)
    for line in _lines(photos / "coco_captions.tsv")[1:]:
        name, text = line.split("\t")
        known = seen.get(int(name))
        if known is not None and text not in train.captions[known]:
            train.captions[known].append(text)
    train.unlabelled = [path for path in seen.values() if path not in train.captions]
    return {"train": train, "val": val}


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def add_captions(writer: SplitWriter, source: Source) -> None:
    """Rows of `photos`: every caption asks for its picture; one asks for the others, and for a pair."""
    for image, captions in source.captions.items():
        picture = writer.item(PHOTOS, None, image)
        for caption in captions:
            writer.query(PHOTOS, 0, caption, None, [picture])
        if len(captions) > 1:
            texts = [writer.item(PHOTOS, caption, None) for caption in captions[1:]]
            writer.query(PHOTOS, 3, None, image, texts)
            writer.query(PHOTOS, 1, captions[0], None, texts)
            writer.query(PHOTOS, 2, captions[0], None, [writer.item(PHOTOS, captions[-1], image)])
    for image in source.unlabelled:
        writer.item(PHOTOS, None, image)


def add_names(writer: SplitWriter, source: Source, sentences: Iterable[str]) -> None:
    """Rows of `things`: names in sentences, pictures of one name."""
    pictures: dict[str, list[str]] = defaultdict(list)
    items = {}
    for image, names in source.names.items():
        items[image] = writer.item(THINGS, None, image)
        for name in names:
            pictures[name].append(image)
    texts = {
        name: writer.item(THINGS, f"a photo of {_with_article(name)}", None) for name in sorted(pictures)
    }
    for name in sorted(pictures):
        for sentence in sentences:
            words = sentence.format(name=name, one=_with_article(name))
            writer.query(THINGS, 0, words, None, [items[image] for image in pictures[name]])
    for image, names in source.names.items():
        writer.query(THINGS, 3, None, image, [texts[name] for name in names])
        same = {items[other]: None for name in names for other in pictures[name] if other != image}
        if same:
            writer.query(THINGS, 4, None, image, list(same))


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def instruction_lines() -> Iterator[str]:
    """The new lines of M-BEIR's instruction table."""
    for have, want, (name, number), sentences in INSTRUCTIONS:
        yield "\t".join([have, want, name, str(number), *sentences])


def build(bench: Path, photos: Path, coco: Path | None, to: Path, leave_out: Sequence[Path] = ()) -> None:
    """Write the root `to` without the pictures of COCO that `leave_out` name; they are linked, not copied."""
    for folder in ("query/train", "query/val", "cand_pool/global", "instructions", "mbeir_images"):
        (to / folder).mkdir(parents=True)
    for images in (bench / "mbeir_images").iterdir():
        (to / "mbeir_images" / images.name).symlink_to(images.resolve())
    (to / "mbeir_images" / "photos").symlink_to(photos.resolve())
    if coco is not None:
        (to / "mbeir_images" / "coco_train").symlink_to(coco.resolve())
    table = _lines(bench / "instructions" / "query_instructions.tsv")
    lines = [*table, *instruction_lines()]
    (to / "instructions" / "query_instructions.tsv").write_text("\n".join(lines) + "\n")
    for split, source in read_photos(photos, coco, leave_out).items():
        for file in (bench / "query" / split).glob("*.jsonl"):
            shutil.copy(file, to / "query" / split / file.name)
        pool = f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl"
        shutil.copy(bench / pool, to / pool)
        writer = SplitWriter()
        add_captions(writer, source)
        add_names(writer, source, SENTENCES if split == "train" else SENTENCES[1:2])
        writer.write(to, split)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench", type=Path, required=True, help="the benchmark, in M-BEIR's layout")
    parser.add_argument("--photos", type=Path, required=True, help="pictures with captions.tsv beside them")
    parser.add_argument("--coco", type=Path, help="COCO's train pictures")
    parser.add_argument("--leave-out", type=Path, nargs="*", default=(), help="lists of COCO's pictures")
    parser.add_argument("--to", type=Path, required=True, help="the new root; must not be there yet")
    given = parser.parse_args()
    build(given.bench, given.photos, given.coco, given.to, given.leave_out)


if __name__ == "__main__":
    main()
