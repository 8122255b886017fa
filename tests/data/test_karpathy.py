"""Karpathy's JSON gives the same rows, queries, pools and qrels as M-BEIR's layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from genius.data.base import Dataset, LabelledQuery, Row, open_dataset
from genius.data.karpathy import Karpathy
from genius.errors import BadData, BadInput
from genius.types import Item, Modality

TO_PHOTO, TO_CAPTION = Row("coco", 0), Row("coco", 3)


def photo(imgid: int, split: str, *captions: str) -> dict[str, Any]:
    sentences = [
        {"raw": raw, "sentid": 10 * imgid + n, "imgid": imgid, "tokens": raw.split()}
        for n, raw in enumerate(captions)
    ]
    return {
        "filepath": "val2014",
        "filename": f"{imgid}.jpg",
        "imgid": imgid,
        "split": split,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "sentences": sentences,
    }


PHOTOS = [
    photo(1, "test", "a cat sits", "the cat\n"),
    photo(2, "train", "a dog"),
    photo(3, "restval", "a bird"),
    photo(4, "val", "a fish", " "),
    photo(5, "test", "a horse"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": PHOTOS}))
    return tmp_path


def test_it_is_a_dataset(root: Path) -> None:
    data = open_dataset("karpathy", root)
    assert isinstance(data, Dataset)
    assert data.splits() == ["train", "restval", "val", "test"]
    assert data.rows("test") == [TO_PHOTO, TO_CAPTION]


def test_captions_ask_for_photos_and_photos_for_captions(root: Path) -> None:
    data = Karpathy(root)
    image = root / "val2014" / "1.jpg"
    assert next(data.queries("test", TO_PHOTO)) == LabelledQuery(
        "coco:text:10", TO_PHOTO, Modality.TEXT, "a cat sits", None, ("coco:image:1",)
    )
    assert next(data.queries("test", TO_CAPTION)) == LabelledQuery(
        "coco:image:1", TO_CAPTION, Modality.IMAGE, None, image, ("coco:text:10", "coco:text:11")
    )
    assert len(list(data.queries("test"))) == 5


def test_pools(root: Path) -> None:
    data = Karpathy(root)
    assert list(data.pool("test", TO_PHOTO)) == [
        Item("coco:image:1", root / "val2014" / "1.jpg"),
        Item("coco:image:5", root / "val2014" / "5.jpg"),
    ]
    assert list(data.pool("test", TO_CAPTION)) == [
        Item("coco:text:10", None, "A cat sits."),
        Item("coco:text:11", None, "The cat."),
        Item("coco:text:50", None, "A horse."),
    ]
    assert len(list(data.pool("test"))) == 5


def test_every_positive_is_in_the_pool_and_of_the_wanted_modality(root: Path) -> None:
    data = Karpathy(root)
    for split in data.splits():
        pool = {item.id: item for item in data.pool(split)}
        qrels = data.qrels(split)
        for query in data.queries(split):
            assert qrels[query.id] == dict.fromkeys(query.positives, 1)
            assert all(pool[id_].modality is query.want for id_ in query.positives)
            assert len(data.instructions.of(query)) == 4


def test_train_is_train_and_restval(root: Path) -> None:
    data = Karpathy(root)
    assert [query.id for query in data.queries("train", TO_CAPTION)] == ["coco:image:2", "coco:image:3"]
    assert [query.id for query in data.queries("restval", TO_CAPTION)] == ["coco:image:3"]


def test_an_empty_caption_is_left_out_and_named(root: Path) -> None:
    data = Karpathy(root)
    assert [item.id for item in data.pool("val")] == ["coco:image:4", "coco:text:40"]
    assert data.report.names == [("coco:text:41", "empty caption")]


def test_photos_are_found_in_the_usual_folders(root: Path) -> None:
    folder = root / "images" / "val2014"
    folder.mkdir(parents=True)
    (folder / "1.jpg").touch()
    assert next(Karpathy(root).pool("test")).image == folder / "1.jpg"


def test_flickr_has_no_filepath_and_the_file_itself_can_be_named(tmp_path: Path) -> None:
    bare = {name: value for name, value in PHOTOS[0].items() if name != "filepath"}
    for name in ("dataset_flickr30k.json", "dataset_flickr8k.json"):
        (tmp_path / name).write_text(json.dumps({"images": [bare]}))
    with pytest.raises(BadData, match="several datasets"):
        Karpathy(tmp_path)
    data = Karpathy(tmp_path / "dataset_flickr30k.json")
    assert data.rows("test") == [Row("flickr30k", 0), Row("flickr30k", 3)]
    assert next(data.pool("test")) == Item("flickr30k:image:1", tmp_path / "1.jpg")


def test_errors_say_what_is_there(root: Path) -> None:
    with pytest.raises(BadData, match="no photos of split 'dev'; it has train, restval, val, test"):
        Karpathy(root).rows("dev")
    with pytest.raises(BadInput, match="no row coco 4"):
        list(Karpathy(root).pool("test", Row("coco", 4)))
    with pytest.raises(BadInput, match="no dataset 'mscoco'"):
        Karpathy(root, ["mscoco"]).rows("test")
    with pytest.raises(BadInput, match="unknown dataset format 'voc': choose one of beir, karpathy, mbeir"):
        open_dataset("voc", root)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected an object with a list under 'images'"),
        ('{"images": {}}', "expected an object with a list"),
        ('{"images": [{"imgid": 1}]}', "image 1: missing or wrong 'filename'"),
        (json.dumps({"images": [PHOTOS[0] | {"filename": "../x.jpg"}]}), "it leads out of the folder"),
        (json.dumps({"images": [PHOTOS[0], PHOTOS[1] | {"sentences": [{"sentid": 1}]}]}), "image 2: .*'raw'"),
        (json.dumps({"images": [7]}), "image 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "dataset_x.json").write_text(text)
    with pytest.raises(BadData, match=rf"dataset_x\.json: {reason}|{reason}"):
        list(Karpathy(tmp_path).queries("test"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"no dataset_\*\.json here"):
        Karpathy(tmp_path)
