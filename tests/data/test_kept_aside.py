"""Photos that are kept aside for measuring, as a folder with captions.tsv."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BUILDER = runpy.run_path(str(ROOT / "benchmarks" / "data" / "kept_aside.py"))


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(file)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    root = tmp_path / "sources"
    for number in (1, 2, 3, 4):
        picture(root / "train2017" / f"{number:012d}.jpg")
    val = [{"id": 1, "captions": ["a dog \n", "one\tdog"]}, {"id": 4, "captions": ["trained on"]}]
    test = [{"image": "val2014/COCO_val2014_000000000003.jpg", "caption": ["a cat"]}]
    (root / "coco_val.json").write_text(json.dumps(val))
    (root / "coco_test.json").write_text(json.dumps(test))
    labels = root / "coco128_yolo" / "object_detection" / "labels"
    for part, number, kinds in [("train2017", 1, "0 1"), ("train2017", 2, "0"), ("val2017", 7, "0 0")]:
        table = labels / part / f"{number:012d}.txt"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("".join(f"{kind} 0.5 0.5 0.1 0.1\n" for kind in kinds.split()))
    for part, number in [("train2017", 1), ("train2017", 2), ("val2017", 7), ("val2017", 8), ("val2017", 4)]:
        picture(root / "coco128_yolo" / "images" / part / f"{number:012d}.jpg")
    (labels.parent / "config.yaml").write_text("path: .\ntrain: a\nnames:\n  0: dog\n  1: wine glass\n")
    return root


def test_only_photos_of_the_list_with_their_texts(sources: Path, tmp_path: Path) -> None:
    to = tmp_path / "kept"
    assert BUILDER["build"](sources, {1, 2, 3, 7, 8}, to) == {"caption": 2, "label": 4}
    rows = [tuple(line.split("\t")) for line in (to / "captions.tsv").read_text().splitlines()]
    assert rows[0] == ("file", "split", "kind", "text")
    assert rows[1:] == [
        ("caption/000000000001.jpg", "test", "caption", "a dog"),
        ("caption/000000000001.jpg", "test", "caption", "one dog"),
        ("caption/000000000003.jpg", "test", "caption", "a cat"),
        ("label/000000000001.jpg", "test", "label", "dog"),  # one photo alone shows the glass
        ("label/000000000002.jpg", "test", "label", "dog"),
        ("label/000000000007.jpg", "test", "label", "dog"),
        ("label/000000000008.jpg", "test", "label", ""),  # a photo without any thing is ranked, too
    ]
    assert all((to / file).exists() for file, *_ in rows[1:])
