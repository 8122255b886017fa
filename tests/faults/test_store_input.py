"""Faults 15, 18, 19, 20, 21, 34 through the engine: odd input is taken, skipped with a reason, or refused."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius import Item, Modality, Query
from genius.cli.output import HitFormat, hit_lines
from genius.data.folder import read_folder
from genius.data.report import Report
from genius.engine import Engine
from genius.errors import BadInput

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR


@pytest.fixture
def engine(tmp_path, fake):
    with Engine.create(tmp_path / "index", fake.FakeModel()) as opened:
        yield opened


def png(colour="red", size=(16, 16), mode="RGB", **options) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, options.pop("format", "PNG"), **options)
    return buffer.getvalue()


# 15: images


def test_odd_images_are_decoded_or_skipped_and_the_run_goes_on(engine, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    animated = io.BytesIO()
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    good = {
        "cmyk.jpg": png((0, 255, 255, 0), mode="CMYK", format="JPEG"),
        "sixteen.png": png(40_000, mode="I;16"),
        "palette.png": png(3, mode="P"),
        "animated.gif": animated.getvalue(),
        "pixel.png": png(size=(1, 1)),
        "turned.jpg": png(size=(20, 10), format="JPEG", exif=turned),
        "mislabelled.jpg": png(),
        "plain.png": png("blue"),
    }
    bad = {
        "truncated.png": png(size=(64, 64))[:60],
        "empty.png": b"",
        "text.png": b"this is no picture",
        "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    }
    for name, data in (good | bad).items():
        (folder / name).write_bytes(data)
    report = Report()
    result = engine.add(read_folder(folder, report=report), report=report)
    assert result.added == len(good)
    assert sorted(name for name, _ in report.names) == sorted(bad)
    assert all(reason for _, reason in report.names)
    assert len(engine.search("red", want="image", k=50)) == len(good)
    assert engine.search("red", want="image")[0].id in good


# 18: names


def test_odd_names_are_stored_printed_escaped_and_opened_again(engine, tmp_path):
    folder = os.fsencode(tmp_path / "names")
    os.mkdir(folder)  # noqa: PTH102 (names as bytes)
    names = [
        b"line\nbreak.png",
        b"\x1b[31mred.png",
        b"bad\xff\xfeutf8.png",
        b"plain.png",
        "ünï ☃.png".encode(),
    ]
    for number, name in enumerate(names):
        with open(os.path.join(folder, name), "wb") as stream:  # noqa: PTH118, PTH123
            stream.write(png((number * 50, 0, 255)))
    (tmp_path / "names" / "loop").symlink_to(tmp_path / "names")
    assert engine.add(read_folder(tmp_path / "names")).added == len(names)
    assert engine.add(read_folder(tmp_path / "names")).added == 0
    hits = engine.search("blue", want="image", k=50)
    assert len(hits) == len(names)
    for hit in hits:
        assert Path(hit.path).exists()  # the true name survives in the store
        assert engine.thumbnail(hit.id) is not None
    for form in HitFormat:
        printed = list(hit_lines(hits, form))
        text = "\n".join(printed)
        assert "\x1b" not in text and text.encode()  # no escape code, valid UTF-8
        if form in (HitFormat.PATHS, HitFormat.JSONL):
            assert len(printed) == len(names) and all("\n" not in line for line in printed)
        if form is HitFormat.JSONL:
            assert {json.loads(line)["id"] for line in printed} == {hit.id for hit in hits}
        if form is HitFormat.TREC:
            assert all(len(line.split()) == 6 for line in printed)


# 19: texts


def test_odd_texts_are_skipped_cut_or_replaced_with_a_flag(engine):
    items = [
        Item("empty", text=""),
        Item("blank", text=" \n\t "),
        Item("long", text="red " * 250_000),
        Item("emoji", text="🎉🎉👩‍👩‍👧"),
        Item("nul", text="red\0hat"),
        Item("surrogate", text="red \ud83d hat"),
    ]
    result = engine.add(items)
    assert result.added == 4 and sorted(name for name, _ in result.report.names) == ["blank", "empty"]
    flags = {hit.id: hit.meta.get("text_flags") for hit in engine.search("red", want="text")}
    assert flags == {"long": ["cut"], "emoji": None, "nul": ["replaced"], "surrogate": ["replaced"]}
    assert all(hit.text.encode() for hit in engine.search("red", want="text"))


@pytest.mark.parametrize("text", ["", "  ", "red " * 250_000, "red\0", "red \ud83d"])
def test_odd_queries_are_refused(engine, text):
    engine.add([Item("a", text="red")])
    with pytest.raises(BadInput):
        engine.search(text)
    assert engine.search("🎉👩‍👩‍👧")  # emoji alone is a fine query
    assert engine.search("red", want="text")[0].id == "a"


# 20: ids


def test_equal_ids_last_wins_other_modalities_update_unknown_removals_count_nothing(engine):
    result = engine.add([Item("x", text="red"), Item("y", text="green"), Item("x", text="blue")])
    assert (result.added, result.repeated) == (2, 1)
    assert engine.search("blue", want="text", k=1)[0].text == "blue"
    assert engine.add([Item("x", image=png("blue"))]).updated == 1
    assert engine.stats()["modalities"] == {"image": 1, "text": 1, "pair": 0}
    assert (
        engine.add([Item("x", text="red"), Item("x", image=png("blue"))]).unchanged == 1
    )  # the last is the stored one
    assert engine.search("blue", want="image")[0].id == "x"
    assert engine.remove(["nobody"]) == 0
    assert engine.remove(["x", "x", "nobody"]) == 1
    assert engine.remove(["x"]) == 0


def test_equal_ids_in_later_batches(engine):
    many = [Item(f"n{n}", text="green") for n in range(64)]
    engine.add([Item("x", text="red"), *many, Item("x", text="blue")])
    assert engine.search("blue", want="text", k=1)[0].id == "x"


# 21: sizes


def test_an_empty_index_answers_with_nothing(engine):
    for want in ("image", "text", "pair", "any", None, "Find anything."):
        assert engine.search("red", want=want) == []
    assert engine.search_batch(["red", "blue"]) == [[], []]
    assert engine.stats()["items"] == 0 and engine.stats()["bytes_per_item"] == 0


def test_k_beyond_the_size_and_an_absent_modality(engine):
    engine.add([Item(f"t{n}", text=word) for n, word in enumerate(("red", "green", "blue"))])
    for rerank in ("none", "codes", "vectors"):
        hits = engine.search("red", want="text", k=1000, rerank=rerank)
        assert len(hits) == 3 and np.isfinite([hit.score for hit in hits]).all()
        assert engine.search("red", want="image", rerank=rerank) == []
    assert len(engine.search("red", want="any", k=1000)) == 3


def test_everything_removed(engine):
    engine.add([Item(f"t{n}", text="red") for n in range(5)])
    engine.compact()
    engine.remove([f"t{n}" for n in range(5)])
    for _ in range(2):
        assert engine.search("red") == [] and engine.search("red", want="text") == []
        engine.compact()
    engine.add([Item("new", text="red")])
    assert [hit.id for hit in engine.search("red")] == ["new"]


def test_identical_items_come_in_a_stable_order(engine, fake):
    engine.add([Item(f"same-{n:02d}", text="red") for n in range(30)])
    first = engine.search("red", want="text", k=30)
    assert [hit.id for hit in first] == [f"same-{n:02d}" for n in range(30)]  # in the order they came
    assert len({hit.score for hit in first}) == 1
    engine.compact()
    engine.add([Item("same-30", text="red")])
    again = [hit.id for hit in engine.search("red", want="text", k=31)]
    assert again == [f"same-{n:02d}" for n in range(31)]
    everything = engine.search("red", want="any", k=31)
    assert [hit.id for hit in everything] == again and np.isfinite([hit.score for hit in everything]).all()


# 34: times


def tell(engine, file) -> str:
    engine.add([Item("x", image=file)])
    return engine.search(Query(image=png("red")), want="image", rerank="vectors", k=1)[0].score > 0.99


def set_time(file, seconds):
    os.utime(file, (seconds, seconds))


@pytest.mark.parametrize(
    ("first", "then"),
    [(3600, 3600), (-3600, -7200), (-3600, -3600), (0, 0)],
    ids=["in-the-future", "going-back", "put-back", "just-now"],
)
def test_a_changed_file_is_noticed_whatever_its_time(engine, tmp_path, first, then):
    """Same name, same size, a time that says nothing: the hash decides."""
    file = tmp_path / "x.bmp"
    now = time.time()
    file.write_bytes(png("red", format="BMP"))
    set_time(file, now + first)
    assert tell(engine, file)
    size = file.stat().st_size
    file.write_bytes(png("blue", format="BMP"))
    set_time(file, now + then)
    assert file.stat().st_size == size
    assert not tell(engine, file)
    encoded = engine.model.encoded
    assert engine.add([Item("x", image=file)]).added == 0 and engine.model.encoded == encoded
