"""General photos as training rows beside a benchmark in M-BEIR's layout."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from PIL import Image

from genius.data.base import open_dataset
from genius.data.training_set import TrainingSet, read_training_set

ROOT = Path(__file__).resolve().parents[2]
BUILDER = runpy.run_path(str(ROOT / "benchmarks" / "data" / "general_photos.py"))
TINY = runpy.run_path(str(ROOT / "tests" / "pipeline" / "tiny.py"))


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(file)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("general")
    bench = Path(TINY["write_mbeir"](folder / "bench"))
    photos, coco = folder / "photos", folder / "train2017"
    lines = [
        "file\tsplit\tkind\ttext",
        "coco/000000000001.webp\ttrain\tcaption\ta dog runs",
        "coco/000000000001.webp\ttrain\tcaption\tone dog in the snow",
        "coco/000000000002.webp\tval\tcaption\ta cat",
        "coco/000000000009.webp\ttrain\tcaption\tkept aside",
        "forks/a.webp\ttrain\tlabel\tfork",
        "forks/b.webp\ttrain\tlabel\tfork",
        "owls/c.webp\tval\tlabel\towl",
    ]
    photos.mkdir()
    (photos / "captions.tsv").write_text("\n".join(lines) + "\n")
    (photos / "coco_captions.tsv").write_text("id\tcaption\n3\ta bus\n2\tof val\n9\tkept aside\n")
    (photos / "coco_excluded_ids.txt").write_text("9\n")
    for line in lines[1:]:
        picture(photos / line.split("\t")[0])
    for number in (1, 2, 3, 4, 5, 9):
        picture(coco / f"{number:012d}.jpg")
    (folder / "xtd.txt").write_text("COCO_train2014_000000000005.jpg\n")
    BUILDER["build"](bench, photos, coco, folder / "data", [folder / "xtd.txt"])
    return folder / "data"


def added(root: Path, split: str) -> tuple[TrainingSet, set[str]]:
    data = read_training_set(open_dataset("mbeir", root), split)
    return data, {str(file.relative_to(root / "mbeir_images")) for file in data.images}


def test_val_and_excluded_pictures_stay_out_of_train(built: Path) -> None:
    data, images = added(built, "train")
    coco = {name for name in images if name.startswith(("coco_train/", "photos/coco/"))}
    assert coco == {f"coco_train/{number:012d}.jpg" for number in (1, 3, 4)}  # 4 has no caption
    assert not any("kept aside" in text.lower() or "of val" in text.lower() for text in data.texts)


def test_names_ask_for_all_of_their_pictures(built: Path) -> None:
    data, _ = added(built, "train")
    sentences = {data.texts[row] for row in data.query_texts.flatten() if row >= 0}
    assert any(text.endswith("a photo of a fork.") for text in sentences)
    forks = [row for row, task in enumerate(data.query_task) if data.tasks[task] == "things 0"]
    assert len(forks) == len(BUILDER["SENTENCES"])
    assert {int(data.offsets[row + 1] - data.offsets[row]) for row in forks} == {2}


def test_every_row_has_instructions_and_the_benchmark_stays(built: Path) -> None:
    rows = {str(row) for row in open_dataset("mbeir", built).rows("train")}
    assert {"photos 0", "photos 1", "photos 2", "photos 3", "things 0", "things 3", "things 4"} <= rows
    assert len(rows) > 7  # those of the benchmark, too
    val, _ = added(built, "val")
    assert {"photos 0", "things 0", "things 3"} <= set(val.tasks)
