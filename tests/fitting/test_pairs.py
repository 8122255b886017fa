"""A fit with labelled pairs: from a click log or from captions; held-out ones decide what is kept."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genius import Engine, Item, Query
from genius.data.report import Report
from genius.decode.init import fresh_decoder
from genius.decode.shape import DecoderShape
from genius.errors import BadInput
from genius.fitting import run
from genius.fitting.hints import HintReport, HintResult
from genius.fitting.pairs import embed_pairs, read_pairs

DIM, COUNT = 16, 200


def test_what_was_learned_becomes_the_model_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = np.random.default_rng(0).standard_normal((COUNT, DIM)).astype(np.float32)

    def learned(quantizer, items, modality, queries, positives, options, *, decoder, progress):  # type: ignore[no-untyped-def]
        """Stands for the learning, which tests/fitting/test_hints.py is about."""
        assert len(items) == len(modality) == COUNT - 50
        assert decoder
        for query, places in zip(queries, positives, strict=True):
            (vector,) = items[np.array(places)]
            assert vector @ query == pytest.approx(1, abs=1e-3)
        tuned = copy.deepcopy(quantizer)
        tuned.residual.vectors.fill_(1.0)  # codes that nobody would fit: they are seen in the index
        shape = DecoderShape.preset("mini", DIM, tuned.sizes, prefix=2)
        report = HintReport(120, 30, {"codes": {"hit@1": 0.5}}, True, True, ("tuned", "decoder"))
        return HintResult(tuned, fresh_decoder(shape, tuned.residual.codebooks(), 0).eval(), report)

    monkeypatch.setattr(run, "learn_from_pairs", learned)
    pairs = [(Query(vector=point), f"item {n}") for n, point in enumerate(points)]
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add([Item(f"item {n}", vector=point) for n, point in enumerate(points)])
        engine.remove([f"item {n}" for n in range(50)])  # rows and places differ
        report = Report()
        result = engine.fit(item_bytes=4, pairs=pairs, decoder=True, report=report)
        assert report.skipped == 50
        assert result.hints is not None and result.hints.queries == 120
        assert result.distortion > 0.6  # of codes that say nothing
        assert engine.stats()["search"]["method"] == "generate"
        assert len(engine.search(Query(vector=points[60]), k=5)) == 5  # by the decoder
        assert engine.search(Query(vector=points[60]), search="lookup")[0].id != ""
        engine.fit(item_bytes=4)
        assert not engine.index.settings["fit"]["from_pairs"]
        assert engine.stats()["search"]["method"] == "lookup"


def test_click_logs_and_captions(tmp_path: Path) -> None:
    log = tmp_path / "clicks.jsonl"
    lines = [
        {"query": "a red car", "id": "red"},
        {"query": "x", "id": "nowhere"},
        {"query": 7, "id": "red"},
        {"id": "red"},
        {"query": "that one", "image": "blue.png", "id": "blue"},
        {"image": "gone.png", "id": "blue"},
        {"vector": [1, 2], "id": "blue"},
        {"query": "half a letter", "id": "\ud800"},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "no JSON\n")
    Image.new("RGB", (32, 32), "blue").save(tmp_path / "blue.png")
    with Engine.create(tmp_path / "index") as engine:
        engine.add(
            [
                Item("red", text="red"),
                Item("blue", image=tmp_path / "blue.png", text="a blue picture"),
                Item("plain", image=tmp_path / "blue.png"),
            ]
        )
        report = Report()
        found = embed_pairs(engine.index, engine.model, read_pairs(log, engine.index, report), report)
        assert len(found.vectors) == 2
        assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-5)
        assert found.rows == [[1], [2]]
        assert {reason for _, reason in report.names} == {
            "no item is called nowhere",
            "`query`, `image` and `id` must be texts",
            "neither query, image nor vector",
            "not JSON: Expecting value at character 1",
            f"{tmp_path / 'gone.png'}: no such file",
            "the vector has 2 numbers where this index has 512: embed it with the model of the items",
            "the id must be 1 to 1000 printable characters",
        }
        assert {name for name, _ in report.names} == {f"{log}:{line}" for line in (2, 3, 4, 6, 7, 8, 9)}
        captions = list(read_pairs("captions", engine.index, report))
        assert [(query.text, id) for query, id in captions] == [("a blue picture", "blue")]
        told = []
        with pytest.raises(BadInput, match="too few"):
            engine.fit(pairs=log, progress=lambda what, _: told.append(what))
        assert told == []  # before codes are learned, which takes minutes
        with pytest.raises(BadInput, match="labelled pairs"):
            engine.fit(decoder=True)
        with pytest.raises(BadInput, match="no file of pairs"):
            engine.fit(pairs=tmp_path / "none.jsonl")
        assert engine.stats()["fit"]["fits"] == 0


def test_a_log_of_vectors(genius: Any, tmp_path: Path) -> None:
    """Where the index has no encoder, queries are embedded already; what is wrong is said."""
    points = np.eye(DIM, dtype=np.float32)
    with Engine.create(tmp_path / "index", encoder="vectors", dim=DIM) as engine:
        engine.add([Item(f"item {n}", vector=point) for n, point in enumerate(points)])
        log = tmp_path / "clicks.jsonl"
        lines = [{"vector": points[3].tolist(), "id": "item 3"}, {"vector": [1.0], "id": "item 4"}]
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = embed_pairs(engine.index, engine.model, read_pairs(log, engine.index, Report()), Report())
        assert np.array_equal(found.vectors, points[3:4]) and found.rows == [[4]]
    done = genius("fit", "--in", tmp_path / "index", "--pairs", log)
    assert done.code == 2
    assert f"{log}:2: the vector has 1 numbers where this index has {DIM}" in done.err
    assert "1 labelled pairs are too few" in done.err
    assert "learning codes" not in done.err  # it is said before that, which takes minutes
