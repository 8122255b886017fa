"""Codes fitted to a collection: exact search before, near to it after; a fit is all or nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genius import Engine, Item, Query
from genius.errors import BadInput, IndexCorrupt, IndexMismatch
from genius.model_toml import read_model_toml

DIM = 24


def vectors(count: int, seed: int = 0) -> np.ndarray:
    """Unit vectors around forty centres: a collection with structure, as real ones have."""
    noise = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, DIM))
    points = centres[noise.integers(0, 40, count)] + 0.5 * noise.standard_normal((count, DIM))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def items(points: np.ndarray, first: int = 0) -> list[Item]:
    return [Item(f"item {first + n}", vector=point) for n, point in enumerate(points)]


def exact(points: np.ndarray, query: np.ndarray, k: int) -> list[str]:
    halves = points.astype(np.float16).astype(np.float32)
    return [f"item {n}" for n in np.argsort(-halves @ query, kind="stable")[:k]]


def recall(engine: Engine, points: np.ndarray, queries: np.ndarray, **options: str) -> float:
    """Share of the ten nearest items that are among the first ten."""
    found = engine.search_batch([Query(vector=query) for query in queries], k=10, **options)
    shares = [
        len({hit.id for hit in own} & set(exact(points, query, 10))) / 10
        for own, query in zip(found, queries, strict=True)
    ]
    return float(np.mean(shares))


def test_a_collection_without_codes_is_searched_exactly(tmp_path: Path) -> None:
    points, queries = vectors(300), vectors(5, seed=1)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(points))
        for query in queries:
            assert [hit.id for hit in engine.search(Query(vector=query))] == exact(points, query, 10)
        assert engine.stats()["search"]["method"] == "exact"
        engine.fit()
        search = engine.stats()["search"]
        assert (search["method"], search["beam"]) == ("lookup", 200)  # as wide as that of `mini`


def test_fitted_codes_find_what_exact_search_finds(tmp_path: Path) -> None:
    points, queries = vectors(1500), vectors(20, seed=1)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(points))
        result = engine.fit()
        assert result.items == 1500
        assert result.distortion < 0.05
        assert recall(engine, points, queries) == 1.0
        assert recall(engine, points, queries, rerank="codes") > 0.8
    with Engine.open(tmp_path / "index") as again:
        assert recall(again, points, queries) == 1.0


def test_adding_fits_once_there_are_enough_items_and_again_when_they_have_moved(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(vectors(400)))
        assert engine.stats()["fit"]["fits"] == 0
        assert engine.stats()["fit"]["encoder"] == "vectors"
        assert engine.stats()["fit"]["worth_fitting"] is None
        engine.add(items(vectors(700, seed=2), first=400))
        assert engine.stats()["fit"]["fits"] == 1
        assert engine.stats()["fit"]["items_then"] == 1100
        elsewhere = np.random.default_rng(5).standard_normal((800, DIM)).astype(np.float32)
        engine.add(items(elsewhere, first=2000), fit="never")
        facts = engine.stats()["fit"]
        assert facts["distortion_now"] > 1.25 * facts["distortion_then"]
        assert "has moved" in facts["worth_fitting"]
        engine.add([])
        assert engine.stats()["fit"]["fits"] == 2
        assert engine.stats()["fit"]["worth_fitting"] is None


def test_later_fits_take_as_many_bytes_as_the_one_before(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(vectors(300)))
        engine.fit(item_bytes=4)
        assert len(engine.fit().sizes) == 5
        assert engine.fit(item_bytes=3).sizes == engine.fit().sizes


def test_the_command_says_what_takes_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from genius.cli.fit import report_fit

    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(vectors(300)))
        report_fit(engine)
    assert "learning codes from items: 300" in capsys.readouterr().err


@pytest.mark.parametrize("fit", ["auto", "never"])
def test_indexing_fits_codes_once_there_are_enough_items_unless_told_otherwise(
    genius: Any, tmp_path: Path, fit: str
) -> None:
    np.save(tmp_path / "points.npy", vectors(1000))
    (tmp_path / "points.txt").write_text("\n".join(f"item {n}" for n in range(1000)))
    run = ("index", tmp_path / "points.npy", "--to", "idx", "--encoder", "vectors", "--fit", fit)
    done = genius(*run, "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["added"] == 1000
    assert "1000 items and no codes yet" in done.err
    assert ("`genius fit --in idx`" in done.err) == (fit == "never")
    found = json.loads(genius("stats", "--in", "idx", "--format", "json").out)
    assert found["fit"]["fits"] == (fit == "auto")
    assert found["search"]["method"] == ("lookup" if fit == "auto" else "exact")


def of_two_kinds(count: int, seed: int = 0) -> tuple[list[Item], np.ndarray]:
    """Pictures and texts, alternately, and their vectors: each kind differs in directions of its own."""
    noise = np.random.default_rng(seed)
    spread = np.full((2, DIM), 0.1)
    spread[0, :12], spread[1, 10:] = 1.0, 1.0
    points = noise.standard_normal((count, DIM)) * spread[np.arange(count) % 2]
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    dot = Image.new("RGB", (8, 8))
    return [
        Item(f"item {n}", image=dot if n % 2 else None, text=None if n % 2 else "a text", vector=point)
        for n, point in enumerate(points)
    ], points


def test_kinds_of_items_get_codebooks_of_their_own(tmp_path: Path) -> None:
    from genius.store.check import check
    from genius.store.exporting import export_lines
    from genius.store.importing import import_file

    every, points = of_two_kinds(4400)
    queries = [Query(vector=point, want="text") for point in of_two_kinds(24, seed=1)[1][::2]]
    texts = np.where(np.arange(4400)[:, None] % 2, 0, points)  # a picture is as far as can be
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(every, fit="never")
        result = engine.fit(item_bytes=4)
        table = read_model_toml(Path(engine.index.model_source))["quantizer"]
        assert table["codebooks"] == "modality"
        assert engine.stats()["fit"]["distortion_now"] == pytest.approx(result.distortion, rel=0.2)
        for query in queries:
            assert query.vector is not None
            assert [hit.id for hit in engine.search(query, k=5)] == exact(texts, query.vector, 5)
        before = engine.search_batch(queries, k=10, rerank="codes")
        (tmp_path / "file.jsonl").write_bytes(b"".join(export_lines(engine.index)))
        engine.add(of_two_kinds(4402)[0][-2:], fit="never")  # coded by what was fitted
    assert check(tmp_path / "index").clean
    assert import_file(tmp_path / "file.jsonl", tmp_path / "other") == 4400
    with Engine.open(tmp_path / "other") as other:
        assert [[hit.id for hit in own] for own in other.search_batch(queries, k=10, rerank="codes")] == [
            [hit.id for hit in own] for own in before
        ]


@pytest.mark.parametrize("form", ["jsonl", "tar"])
def test_an_export_brings_the_fitted_codes_along(tmp_path: Path, form: str) -> None:
    from genius.store.exporting import export_lines, export_tar
    from genius.store.importing import import_file

    points, queries = vectors(300), vectors(5, seed=1)
    with Engine.create(tmp_path / "one", encoder="vectors", dim=DIM) as one:
        one.add(items(points))
        one.fit()
        written = (export_lines if form == "jsonl" else export_tar)(one.index)
        file = tmp_path / f"all.{form}"
        file.write_bytes(b"".join(written))
        before = one.search_batch([Query(vector=query) for query in queries], rerank="codes")
    assert import_file(file, tmp_path / "two") == 300
    with Engine.open(tmp_path / "two") as two:
        assert two.search_batch([Query(vector=query) for query in queries], rerank="codes") == before
        assert two.stats()["fit"]["fits"] == 1
        two.fit()


@pytest.mark.parametrize("name", ["quantizer.safetensors", "model.toml"])
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_model_is_found_and_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    from genius.store.check import check

    points = vectors(300)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(points))
        engine.fit(item_bytes=4)
    file = tmp_path / "index" / "fit-000001" / name
    whole = file.read_bytes()
    file.unlink()
    if damage == "changed":
        file.write_bytes(whole[:-9] + bytes(byte ^ 255 for byte in whole[-9:]))
    assert "genius fit" in check(tmp_path / "index").model[0]
    with Engine.open(tmp_path / "index") as engine:
        assert engine.stats()["items"] == 300
        with pytest.raises(IndexCorrupt, match=r"damaged or gone.*`genius fit --in .*` makes new ones"):
            engine.search(Query(vector=points[3]))
        engine.fit()
        assert [hit.id for hit in engine.search(Query(vector=points[3]))] == exact(points, points[3], 10)
    assert check(tmp_path / "index").clean


def test_where_nothing_names_the_encoder_any_more_it_says_what_to_put_back(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(vectors(30)))
        (tmp_path / "index" / "fit-000000" / "model.toml").unlink()
        with pytest.raises(IndexCorrupt, match=r"model\.toml, which names the encoder.*backup"):
            engine.fit()
    with pytest.raises(IndexCorrupt, match="backup"):
        Engine.open_or_create(tmp_path / "index", encoder="vectors", dim=DIM)


def test_a_fit_of_a_trained_model_keeps_its_encoder(tmp_path: Path) -> None:
    words = ["a red car", "a blue car", "two dogs", "a cat on a sofa", "green apples", "a bowl of soup"]
    with Engine.create(tmp_path / "index") as engine:
        engine.add([Item(word, text=word) for word in words])
        before = engine.search("dogs", k=3, want="text")
        encoder = engine.model.encoder  # type: ignore[attr-defined]
        engine.fit(item_bytes=4)
        assert engine.stats()["fit"]["encoder"] == "mini"
        after = engine.search("dogs", k=3, want="text")
        assert engine.model.encoder is encoder  # type: ignore[attr-defined]
        assert [hit.id for hit in after] == [hit.id for hit in before]
        assert after[0].score == pytest.approx(before[0].score, abs=1e-6)
        assert after[0].confidence == pytest.approx(before[0].confidence, abs=0.02)
        assert len(after[0].codes) == 5  # the modality takes two bits, so a code of six fits beside it
        engine.add([Item("a loud dog", text="a loud dog")])
    with Engine.open(tmp_path / "index", model="mini") as again:  # it still is an index of mini
        assert {hit.id for hit in again.search("a dog", k=2, want="text")} == {"two dogs", "a loud dog"}
    with pytest.raises(IndexMismatch, match="--encoder"):
        Engine.open_or_create(tmp_path / "index", encoder="openai/clip-vit-base-patch32")


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        ([1.0, float("nan")], "NaN.*: embed it again"),
        ([1e39] * DIM, "infinite"),
        ([0.0] * DIM, "all zeros.*: embed it again"),
        ([1.0] * (DIM + 1), "where this index has"),
        ("text", "list of numbers"),
        ([[1.0] * DIM], "shape"),
    ],
)
def test_a_bad_vector_costs_only_its_item(tmp_path: Path, vector: object, reason: str) -> None:
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        result = engine.add([Item("bad", vector=vector), Item("good", vector=[1.0] * DIM)])  # type: ignore[arg-type]
        assert result.added == 1
        assert re.search(reason, result.skipped[0].reason)
        with pytest.raises(BadInput, match=reason):
            engine.search(Query(vector=vector))  # type: ignore[arg-type]


def test_texts_need_an_encoder(tmp_path: Path) -> None:
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add(items(vectors(3)))
        with pytest.raises(BadInput, match="made elsewhere"):
            engine.search("a dog")
        assert [hit.id for hit in engine.like("item 1", k=2)] != []
        assert "item 1" not in [hit.id for hit in engine.like("item 1")]
    with pytest.raises(BadInput, match="how wide"):
        Engine.create(tmp_path / "other", encoder="vectors")
    with pytest.raises(BadInput, match="not both"):
        Engine.create(tmp_path / "other", "mini", encoder="vectors", dim=3)
    with pytest.raises(BadInput, match="use --model mini"):
        Engine.create(tmp_path / "other", encoder="mini")


FIT = """
import sys
from genius import Engine
with Engine.open(sys.argv[1]) as engine:
    for seed in range(3):  # of earlier fits only the last is kept
        engine.fit(item_bytes=5, seed=seed)
"""


def by_codes(engine: Engine, query: np.ndarray) -> list[tuple[str, tuple[int, ...]]]:
    return [(hit.id, hit.codes) for hit in engine.search(Query(vector=query), k=5, rerank="codes")]


def test_an_engine_that_is_open_takes_over_the_fit_of_another_process(tmp_path: Path) -> None:
    points, (query, late) = vectors(300), vectors(2, seed=1)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as writer:
        writer.add(items(points))
        writer.fit(item_bytes=4)
        with Engine.open(tmp_path / "index") as reader:
            assert by_codes(reader, query) == by_codes(writer, query)
            idle = Engine.open(tmp_path / "index")  # its model is not loaded yet
            subprocess.run([sys.executable, "-c", FIT, str(tmp_path / "index")], check=True)
            with idle:
                assert by_codes(idle, query) == by_codes(writer, query)
            assert by_codes(reader, query) == by_codes(writer, query)
            assert reader.index.levels == 6
            writer.add([Item("late", vector=late)])  # coded by the new codebooks
            for engine in (reader, writer):
                assert by_codes(engine, late)[0][0] == "late"
                assert len(by_codes(engine, late)[0][1]) == 6


def test_the_width_of_a_new_index_is_that_of_most_vectors(genius: Any, tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "vector": [1.0] * (3 if n else 5)} for n in range(4)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = genius(
        "index", tmp_path / "mixed.jsonl", "--to", "idx", "--encoder", "vectors", "--format", "json"
    )
    assert json.loads(done.out)["added"] == 3
    assert "r0: cannot be encoded: the vector has 5 numbers where this index has 3" in done.err


def test_vectors_that_cannot_be_read_are_said_and_make_no_index(genius: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "one", "vector": "text"}\n')
    done = genius("index", tmp_path / "bad.jsonl", "--to", "idx", "--encoder", "vectors")
    assert done.code == 2
    assert "bad.jsonl:1: the vector must be a list of numbers" in done.err
    assert not (tmp_path / "idx").exists()
