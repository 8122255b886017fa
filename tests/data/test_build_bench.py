"""The benchmark's builder, on made-up sources; its checksums, on the benchmark's tables where they are."""

from __future__ import annotations

import gzip
import importlib
import json
import pickle
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genius.data.base import open_dataset
from genius.data.training_set import read_training_set
from genius.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT.parent / "shared" / "bench" / "tables.tar.xz"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "benchmarks" / "data"))
    builder = importlib.import_module("build_bench")
    checks, colours, cub, emoji, fashion, flickr8k, ikea, pictures, splits, tables = (
        importlib.import_module(f"bench.{name}")
        for name in "checks colours cub emoji fashion flickr8k ikea pictures splits tables".split()  # noqa: SIM905
    )
DATASETS = list(builder.BUILDERS)


@pytest.fixture(scope="module")
def sources(load_file, tmp_path_factory) -> Path:
    tiny = load_file(Path(__file__).with_name("tiny_sources.py"))
    return Path(tiny.write_sources(tmp_path_factory.mktemp("sources")))


@pytest.fixture(scope="module")
def built(sources: Path, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("built") / "bench"
    builder.build(sources, to, DATASETS, workers=1)
    return to


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def queries(root: Path, row: str, split: str) -> list[dict[str, Any]]:
    return lines(root / f"query/{split}/mbeir_{row}_{split}.jsonl")


def every_file(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file()}


# The split rule


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=12))
def test_groups_are_what_shared_values_connect(values: list[tuple[str, int]]) -> None:
    groups = splits.Groups()
    groups.join_equal((key, str(value)) for key, value in values)
    together = {key: {key} for key in "abcdef"}
    for _ in values:  # the closure, by brute force
        for first, one in values:
            for second, other in values:
                if one == other:
                    together[first] |= together[second]
                    for key in together[first]:
                        together[key] |= together[first]
    for key, members in together.items():
        assert groups.find(key) == min(members)


def test_splits_have_their_shares_and_part_no_group() -> None:
    group_of = {f"k{n}": f"g{n // 3}" for n in range(3000)} | {f"big{n}": "big" for n in range(100)}
    split_of = splits.split_by_group(group_of, "a test")
    share = Counter(split_of.values())
    for split, fraction in splits.FRACTIONS:
        assert fraction <= share[split] / len(group_of) < fraction + 0.001
    assert len({(group_of[key], split) for key, split in split_of.items()}) == len(set(group_of.values()))
    assert split_of["big7"] == "train"  # more than 1 % of the keys
    assert splits.split_by_group(dict(reversed(group_of.items())), "a test") == split_of
    assert splits.split_by_group(group_of, "another") != split_of


# The whole build


def test_a_build_is_sound_and_readable(built: Path) -> None:
    assert list(checks.problems(built)) == []
    data = read_training_set(open_dataset("mbeir", built), "train")
    assert len(data.images) > 100 and all(file.exists() for file in data.images)
    assert set(DATASETS) == {row["dataset"] for row in tables.rows()}
    assert len(lines(built / "query/union_train/mbeir_union_up_train.jsonl")) > 300


def test_a_build_depends_on_its_sources_alone(sources: Path, built: Path, tmp_path: Path) -> None:
    builder.build(sources, tmp_path / "again", DATASETS[::-1], workers=3)
    assert every_file(tmp_path / "again") == every_file(built)


def test_a_dataset_alone_has_the_same_tables(sources: Path, built: Path, tmp_path: Path) -> None:
    builder.build(sources, tmp_path / "part", ["emoji"], workers=1, pictures=False)
    part, whole = every_file(tmp_path / "part"), every_file(built)
    own = {path for path in part if "mbeir_emoji_" in path}
    assert len(own) == 24 and all(part[path] == whole[path] for path in own)
    assert not any(path.startswith("mbeir_images") for path in part)


def test_the_held_out_part_is_not_written(sources: Path, built: Path) -> None:
    everything = b"".join(content for path, content in every_file(built).items() if "images" not in path)
    everything += gzip.decompress((built / tables.SOURCES).read_bytes())
    for name, build in builder.BUILDERS.items():
        domain = build(sources, 1)
        for (_, split), asked in domain.queries.items():
            for query in asked:
                assert (f'"qid":"{query["qid"]}"'.encode() in everything) == (split != splits.HELD_OUT)
        secret = [path for path, each in domain.pictures.items() if each.split == splits.HELD_OUT]
        assert secret, name
        assert not any(path.encode() in everything or (built / path).exists() for path in secret)


def test_a_missing_source_and_a_used_folder_are_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    arguments = ["build_bench.py", "--sources", str(tmp_path), "--to", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", arguments)
    assert builder.main() == 1
    assert "captions.txt is missing: benchmarks/data/README.md says" in capsys.readouterr().err
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(BadInput, match="not empty"):
        builder.build(tmp_path, tmp_path / "new", ["emoji"], 1)


# Checksums and checks


def test_a_changed_or_missing_table_is_named(built: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    for path, content in every_file(built).items():
        if not path.startswith("mbeir_images"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    files = [file for file in sorted(tmp_path.rglob("*")) if file.is_file()]
    names = {file: str(file.relative_to(tmp_path)).removesuffix(".gz") for file in files}
    listed = "".join(f"{tables.checksum(file)}  {name}\n" for file, name in names.items())
    monkeypatch.setattr(tables, "CHECKSUMS", tmp_path / "checksums")
    tables.CHECKSUMS.write_text(listed)
    assert builder.report(tmp_path, DATASETS)
    assert "127 of 127 tables are equal" in capsys.readouterr().out

    first, second = "qrels/val/mbeir_emoji_task0_val_qrels.txt", "query/test/mbeir_cub_task6_test.jsonl"
    with (tmp_path / first).open("a") as file:
        file.write("\n")
    (tmp_path / second).unlink()
    assert tables.verify_tables(tmp_path) == {first: "differs", second: "is missing"}
    assert tables.verify_tables(tmp_path, ["emoji"]) == {first: "differs"}
    assert not builder.report(tmp_path, DATASETS)
    assert f"{second} is missing" in capsys.readouterr().out


def test_checks_find_what_is_unsound(built: Path, tmp_path: Path) -> None:
    for path, content in every_file(built).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    asked = tmp_path / "query/test/mbeir_fashion_task0_test.jsonl"
    train = queries(built, "fashion_task0", "train")[0]
    query = queries(built, "fashion_task0", "test")[0]
    query |= {"query_txt": train["query_txt"], "pos_cand_list": ["21:999999"]}
    asked.write_text(json.dumps(query) + "\n")
    found = "\n".join(checks.problems(tmp_path))
    assert "21:999999 is not in its pool" in found
    assert "qrels has other relevant items" in found
    assert f"train and test share text {train['query_txt'].lower()!r}" in found


@pytest.mark.skipif(not TABLES.exists(), reason="the shared benchmark is not beside the repository")
def test_the_committed_checksums_are_those_of_the_benchmark(tmp_path: Path) -> None:
    with tarfile.open(TABLES) as packed:
        packed.extractall(tmp_path, filter="data")
    for split, name in (("train", "mbeir_union_up_train"), ("val", "mbeir_union_val")):
        (tmp_path / f"query/union_{split}").mkdir()
        joined = b"".join(file.read_bytes() for file in sorted((tmp_path / "query" / split).iterdir()))
        (tmp_path / f"query/union_{split}/{name}.jsonl").write_bytes(joined)
    assert len(tables.expected_checksums()) == 127
    assert tables.verify_tables(tmp_path) == {}
    assert list(checks.problems(tmp_path)) == []


# The datasets


def test_flickr8k_asks_with_a_caption_that_is_no_item(built: Path, sources: Path) -> None:
    domain = flickr8k.build(sources, 1)
    groups = {path.split("/")[-1][:4]: picture.group for path, picture in domain.pictures.items()}
    assert groups["p000"] == groups["p001"] and groups["p002"] == groups["p003"]  # caption, look
    assert "p004" not in groups  # two captions
    texts = {item["txt"] for item in domain.items.values() if item["modality"] == "text"}
    assert "A dog runs over field 9 in May, once." in texts | {
        query["query_txt"] for query in domain.queries[1, "train"] + domain.queries[1, splits.HELD_OUT]
    }
    assert not any("dog 9" in text.lower() for text in texts)  # two words
    for split in ("train", "val", "test"):
        assert not texts & {query["query_txt"] for query in queries(built, "flickr8k_task1", split)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Nike Men Navy Blue Shorts", ("nike men * shorts", "navy blue")),
        ("Nike Men Grey Melange Polo Tee", ("nike men * polo tee", "grey melange")),
        ("Acme Men Light Gray & White Shirt", ("acme men * shirt", "light grey and white")),
        ("Black Coffee Men Shirt", None),  # a brand
        ("Speak Black Women Top", None),  # a brand, too
        ("Acme Red Bag with Blue Strap", None),  # two runs
        ("Acme Red Bag", None),  # too little else
    ],
)
def test_the_colour_of_a_product_is_found_in_its_name(name: str, expected: tuple[str, str] | None) -> None:
    assert colours.split_colour(name) == expected


def test_colours_and_articles_have_one_name() -> None:
    assert colours.colour_key("navy blue") == colours.colour_key("navy") == colours.colour_key("blue")
    assert colours.colour_key("white and red") == colours.colour_key("red white")
    articles = {"Tshirts": "t-shirt", "Casual Shoes": "casual shoes", "Belts": "belt", "Dress": "dress"}
    assert {kind: colours.article(kind) for kind in articles} == articles


def test_fashion_asks_for_other_colours_of_a_product(built: Path, sources: Path) -> None:
    domain = fashion.build(sources, 1)
    named = {Path(path).stem for path in domain.pictures}
    assert "70" not in named and "71" not in named  # a repeated photo, an article that is left out
    asked = queries(built, "fashion_task7", "train")
    assert len(asked) == 60  # two other colours for each of 30 shirts
    for query in asked:
        (positive,) = query["pos_cand_list"]
        paths = query["query_img_path"], domain.items[positive]["img_path"]
        shirt, target = (int(Path(path).stem) for path in paths)
        assert shirt // 3 == target // 3 and shirt != target
        assert ("red", "navy blue", "green")[target % 3] in query["query_txt"]


def test_ikea_merges_products_with_one_photo(built: Path) -> None:
    pool = lines(built / "cand_pool/local/mbeir_ikea_task8_cand_pool.jsonl")
    assert len(pool) == 39 and len({item["img_path"] for item in pool}) == 39
    assert {item["txt"] for item in pool} == {"MLA LED bulb, white/birch", "MLA table/lamp, white/birch"}
    texts = [query["query_txt"] for query in queries(built, "ikea_task2", "train")]
    assert all(text.endswith("stands well.") for text in texts)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil.p").write_bytes(pickle.dumps({"a": eval}))
    with pytest.raises(pickle.UnpicklingError, match=r"refused: builtins\.eval"):
        ikea._read_pickle(tmp_path / "evil.p")


def test_birds_that_ask_are_no_candidates(built: Path, sources: Path) -> None:
    pool = {item["did"]: item for item in lines(built / "cand_pool/local/mbeir_cub_task8_cand_pool.jsonl")}
    offered = {item["img_path"] for item in pool.values()}
    for split, asking in (("val", 2), ("test", 4)):
        asked = queries(built, "cub_task8", split)
        assert len(asked) == asking and not offered & {query["query_img_path"] for query in asked}
    per_species = Counter(query["pos_cand_list"][0] for query in queries(built, "cub_task6", "train"))
    assert list(per_species.values()) == [22, 22]
    texts = [item["txt"] for item in lines(built / "cand_pool/local/mbeir_cub_task6_cand_pool.jsonl")]
    assert texts[0] == "Black-footed Albatross, a kind of bird. How to tell it: a long beak; brown."
    assert cub.PHOTOS.keys() == {"train", "val", "test", splits.HELD_OUT}


def test_emoji_are_drawn_twice_and_once_each(built: Path, sources: Path) -> None:
    chosen = {each.code: each for each in emoji._choose(sources)}
    assert len(chosen) == 58 and "1F005" not in chosen and "1F006" not in chosen
    assert chosen["1F000"].tones == {"1F3FF": "1F000-1f3ff.png"}
    assert chosen["1F007"].label == "flag of Land 7"
    for query in queries(built, "emoji_task4", "train"):
        assert "/google/" in query["query_img_path"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1F468-200D-1F33E", "1F469-200D-1F33E"),  # man and woman farmer
        ("1F3C3", "1F3C3-200D-2640-FE0F-200D-27A1-FE0F"),  # runner, woman who runs to the right
    ],
)
def test_forms_of_an_emoji_are_a_family(one: str, other: str) -> None:
    assert emoji._family(one) == emoji._family(other) != emoji._family("1F600")


# Pictures


def test_pictures_shrink_and_transparency_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (400, 100), (0, 0, 0, 0)).save(tmp_path / "large.png")
    Image.new("RGB", (20, 10), "red").save(tmp_path / "small.png")
    size = pictures.Size(200, quality=60)
    wanted = {f"{n}.webp": pictures.Picture(f"{n}.png", size, "", "train") for n in ("large", "small")}
    pictures.write_pictures(wanted, tmp_path, tmp_path / "to", workers=2)
    with Image.open(tmp_path / "to/large.webp") as large, Image.open(tmp_path / "to/small.webp") as small:
        assert large.size == (200, 50) and np.asarray(large).min() > 250
        assert small.size == (20, 10) and small.format == "WEBP"


def test_pictures_that_look_the_same_have_one_hash(tmp_path: Path, sources: Path) -> None:
    files = {file.stem: file for file in (sources / "flickr8k/images").glob("*.jpg")}
    with Image.open(files["p009"]) as image:
        image.save(tmp_path / "other.png")
    files["other"] = tmp_path / "other.png"
    hashes = pictures.difference_hashes(files, workers=2)
    assert hashes["other"] == hashes["p009"] and hashes["p002"] == hashes["p003"]
    assert len(set(hashes.values())) == len(files) - 2
