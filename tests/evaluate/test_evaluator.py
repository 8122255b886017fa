"""A whole evaluator on a tiny M-BEIR root whose figures are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import torch

from genius.data.base import Row
from genius.data.mbeir import MBeir
from genius.errors import BadData, BadInput
from genius.evaluate import environment
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.environment import CODE_SOURCES, SEARCH_SOURCES, VECTOR_SOURCES, source_hash
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.options import EvalOptions

NAMES = {"data": "colours", "model": "tiny"}


class Counting(Exact):
    """Exact search that counts its work; made for text -> image only when `picky`."""

    def __init__(self, name="exact", picky=False):
        super().__init__(name=name)
        self.indexed = self.searched = 0
        self.picky = picky

    def supports(self, row):
        return not self.picky or row.task == 0

    def index(self, pool):
        self.indexed += 1
        super().index(pool)

    def search(self, queries, k):
        self.searched += 1
        return super().search(queries, k)


def evaluate(root, model, cache, setting="local", systems=None, **options):
    evaluator = Evaluator(MBeir(root.path), model, EvalOptions(setting, **options), cache)
    return evaluator.run(systems or [Exact()], names=NAMES)


@pytest.fixture
def by_hand(root):
    """Three colours in two rows. The tiny encoder puts a colour word exactly on its colour.

    Text -> image: two queries find their colour at once. The third asks for black but is judged to want
    white, which lies opposite and comes last: of 3 in its own pool, of 5 in the union.
    Image -> text: a red picture finds the red text.
    """
    pictures = [{"id": f"31:{n}", "img": root.picture(c, c)} for n, c in enumerate(("red", "white", "black"))]
    asked = [
        {"id": "31:0", "txt": "red", "positives": ["31:0"]},
        {"id": "31:1", "txt": "white", "positives": ["31:1"]},
        {"id": "31:2", "txt": "black", "positives": ["31:1"]},
    ]
    root.row("hand", 31, 0, asked, pictures)
    texts = [{"id": "31:10", "txt": "red"}, {"id": "31:11", "txt": "green and blue"}]
    shown = [{"id": "31:3", "img": root.picture("red", "shown"), "positives": ["31:10"]}]
    root.row("hand", 31, 3, shown, texts)
    return root


def test_hand_computed_recalls_in_both_settings(by_hand, tiny_model, tmp_path):
    # Instructions name no colour, so they do not move the vectors.
    local = evaluate(by_hand, tiny_model(), tmp_path).as_json()
    first, second = local["rows"]
    assert (first["dataset"], first["task"], first["setting"], first["system"]) == (
        "hand",
        0,
        "local",
        "exact",
    )
    assert (first["queries"], first["pool_items"]) == (3, 3)
    assert first["hit@1"] == pytest.approx(2 / 3)
    assert first["hit@5"] == 1.0
    assert first["mrr"] == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert (second["task"], second["hit@1"], second["pool_items"]) == (3, 1.0, 2)
    assert local["mean"]["exact"]["hit@1"] == pytest.approx((2 / 3 + 1) / 2)

    universal = evaluate(by_hand, tiny_model(), tmp_path, "universal").as_json()
    first, second = universal["rows"]
    assert first["pool_items"] == second["pool_items"] == 5
    assert first["hit@1"] == pytest.approx(2 / 3)  # a red picture and a red text tie; the picture comes first
    assert first["mrr"] == pytest.approx((1 + 1 + 1 / 5) / 3)
    assert second["hit@1"] == 0.0  # for the same reason the text is second here
    assert second["mrr"] == pytest.approx(1 / 2)


def test_the_json_is_plain_and_carries_its_origin(colours, tiny_model, tmp_path):
    results = json.loads(json.dumps(evaluate(colours, tiny_model(), tmp_path, "universal").as_json()))
    assert results["model"] == {"name": "tiny", "fingerprint": "model-1", "recipe": None}
    assert {"genius-search", "torch", "numpy", "python", "source"} <= results["versions"].keys()
    row = results["rows"][0]
    assert len(row["pool_hash"]) == len(row["queries_hash"]) == 32
    assert row["bytes_per_item"] == 8 * 4
    assert results["mean"]["exact"]["complete"]
    metrics = {f"{kind}@{k}" for kind in ("hit", "recall") for k in (1, 5, 10, 20, 50)} | {"mrr", "ndcg@10"}
    assert all(isinstance(row[metric], float) for metric in metrics)
    assert metrics <= results["mean"]["exact"].keys()


def test_a_second_run_searches_nothing_and_says_the_same(colours, tiny_model, tmp_path):
    first, second = Counting(), Counting()
    one = evaluate(colours, tiny_model(), tmp_path, "universal", [first]).as_json()
    two = evaluate(colours, tiny_model(), tmp_path, "universal", [second]).as_json()
    assert (first.indexed, first.searched) == (1, 2)
    assert (second.indexed, second.searched) == (0, 0)
    assert one == two


def test_another_model_or_picture_is_searched_anew(colours, tiny_model, tmp_path):
    evaluate(colours, tiny_model(), tmp_path, "universal", [Counting()])
    other = Counting()
    evaluate(colours, tiny_model(fingerprint="model-2"), tmp_path, "universal", [other])
    assert other.searched == 2
    colours.picture("black", "red")
    changed = Counting()
    evaluate(colours, tiny_model(), tmp_path, "universal", [changed])
    assert changed.searched == 2


def test_another_library_or_device_is_searched_anew(colours, tiny_model, tmp_path, monkeypatch):
    evaluate(colours, tiny_model(), tmp_path, "universal", [Counting()])
    for name, value in (("library_version", lambda name: "0.0"), ("device_name", lambda device: "a GPU")):
        monkeypatch.setattr(environment, name, value)
        other = Counting()
        evaluate(colours, tiny_model(), tmp_path, "universal", [other])
        assert other.searched == 2


def test_another_number_of_threads_is_searched_anew(colours, tiny_model, tmp_path):
    """FAISS's codebooks, and so its answers, differ by the number of threads that make them."""
    evaluate(colours, tiny_model(), tmp_path, "universal", [Counting()])
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        other = Counting()
        evaluate(colours, tiny_model(), tmp_path, "universal", [other])
        assert other.searched == 2
    finally:
        torch.set_num_threads(before)


def test_answers_are_found_anew_when_the_code_that_finds_them_changes():
    folder = Path(source_hash.__wrapped__.__code__.co_filename).parents[1]
    assert all((folder / part).exists() for part in (*VECTOR_SOURCES, *CODE_SOURCES, *SEARCH_SOURCES))
    assert source_hash("search") != source_hash("decode")
    assert source_hash() != source_hash(*SEARCH_SOURCES)
    assert source_hash("search/kernel/rank.c") != source_hash("search/kernel/kernel.h") != source_hash("none")


def test_runs_are_written_and_ir_measures_agrees(colours, tiny_model, tmp_path):
    evaluator = Evaluator(MBeir(colours.path), tiny_model(), EvalOptions(), tmp_path / "cache")
    results = evaluator.run([Exact()], names=NAMES, runs=tmp_path / "runs").as_json()
    file = tmp_path / "runs" / "colours_task0_test_universal.exact.trec"
    qrels = [
        ir_measures.Qrel(*line.split()[:1], line.split()[2], int(line.split()[3]))
        for line in (colours.path / "qrels/test/mbeir_colours_task0_test_qrels.txt").read_text().splitlines()
    ]
    lines = [line.split() for line in file.read_text().splitlines()]
    # by rank: among equal scores ir_measures would choose an order of its own
    run = [ir_measures.ScoredDoc(query, item, -float(rank)) for query, _, item, rank, *_ in lines]
    measures = [ir_measures.Success @ 5, ir_measures.nDCG @ 10]
    oracle = ir_measures.calc_aggregate(measures, qrels, run)
    assert results["rows"][0]["hit@5"] == pytest.approx(oracle[measures[0]])
    assert results["rows"][0]["ndcg@10"] == pytest.approx(oracle[measures[1]])


def test_a_system_is_not_run_where_it_is_not_made_for(colours, tiny_model, tmp_path):
    systems = [Exact(), Counting("only-images", picky=True)]
    results = evaluate(colours, tiny_model(), tmp_path, "universal", systems).as_json()
    assert [(row["system"], row["task"]) for row in results["rows"]] == [
        ("exact", 0),
        ("exact", 3),
        ("only-images", 0),
    ]
    left = {"system": "only-images", "dataset": "colours", "task": 3, "reason": "not made for this task"}
    assert results["not_run"] == [left]
    assert not results["mean"]["only-images"]["complete"]


def test_a_limit_takes_the_same_queries_every_time(colours, tiny_model, tmp_path):
    one = evaluate(colours, tiny_model(), tmp_path, limit=3).as_json()
    two = evaluate(colours, tiny_model(), tmp_path / "fresh", limit=3).as_json()
    assert [row["queries"] for row in one["rows"]] == [3, 3]
    assert [row["queries_hash"] for row in one["rows"]] == [row["queries_hash"] for row in two["rows"]]
    assert one["limit"] == 3


def test_all_instructions_are_averaged(colours, tiny_model, tmp_path):
    table = colours.path / "instructions" / "query_instructions.tsv"
    table.write_text(table.read_text().replace("Show me the match.", "Never mind, show me the black one."))
    ways = evaluate(colours, tiny_model(), tmp_path, all_instructions=True).as_json()
    chosen = evaluate(colours, tiny_model(), tmp_path).as_json()
    assert ways["instructions"] == "all"
    assert ways["rows"][0]["queries"] == 8
    assert ways["rows"][0]["hit@1"] != chosen["rows"][0]["hit@1"]


def test_bad_images_are_counted_and_cost_their_queries(colours, tiny_model, tmp_path):
    (colours.path / "mbeir_images" / "red.png").write_bytes(b"broken")
    (colours.path / "mbeir_images" / "query-blue.png").unlink()
    first, second = evaluate(colours, tiny_model(), tmp_path).as_json()["rows"]
    assert first["faults"] == {"unreadable_items": 1, "absent_positives": 1, "unanswerable": 1}
    assert (first["queries"], first["hit@50"]) == (8, 7 / 8)
    assert second["faults"] == {"unreadable_queries": 1}
    assert (second["queries"], second["hit@50"]) == (8, 7 / 8)


def test_an_empty_query_is_a_miss_and_reported(root, tiny_model, tmp_path):
    queries = [
        {"id": "30:0", "txt": "red", "positives": ["30:0"]},
        {"id": "30:1", "txt": "  ", "positives": ["30:0"]},
    ]
    root.row("colours", 30, 0, queries, [{"id": "30:0", "img": root.picture("red", "red")}])
    (row,) = evaluate(root, tiny_model(), tmp_path).as_json()["rows"]
    assert (row["queries"], row["hit@50"]) == (2, 0.5)
    assert row["faults"] == {"unreadable_queries": 1}


def test_qrels_of_another_dataset_are_refused(root, tiny_model, tmp_path):
    queries = [{"id": "30:0", "txt": "red"}]
    pool = [{"id": "30:0", "img": root.picture("red", "red")}]
    root.row("colours", 30, 0, queries, pool, qrels=["30:0 0 9:77 1 0"])
    with pytest.raises(BadData, match="holds none of the 1 relevant ones"):
        evaluate(root, tiny_model(), tmp_path)


def test_unknown_split_and_setting(colours, tiny_model, tmp_path):
    with pytest.raises(BadInput, match="no split 'val': the data has test"):
        evaluate(colours, tiny_model(), tmp_path, split="val")
    with pytest.raises(BadInput, match="local or universal"):
        evaluate(colours, tiny_model(), tmp_path, "global")


def test_queries_about_one_photo_are_one_group_in_all_rows(colours, tiny_model, tmp_path):
    """A text asks for a picture, and the same picture, under another name, asks for a text."""
    metrics = evaluate(colours, tiny_model(), tmp_path).metrics_of("exact")
    texts, pictures = (metrics[Row("colours", task)].groups.tolist() for task in (0, 3))
    assert texts == pictures
    assert len(set(texts)) == 8


def test_what_is_to_be_encoded_is_known_before(colours, tiny_model, tmp_path):
    model = tiny_model()
    evaluator = Evaluator(MBeir(colours.path), model, EvalOptions(), tmp_path)
    assert evaluator.describe() == "16 items, 16 queries; 8 images and 18 texts to encode"
    assert evaluator.rows == [Row("colours", 0), Row("colours", 3)]
    assert model.encoder.images == 0
    evaluator.run([Exact()], names=NAMES)
    after = Evaluator(MBeir(colours.path), model, EvalOptions(), tmp_path).describe()
    assert after.endswith("all embeddings are cached")


def test_damaged_answers_are_found_again(colours, tiny_model, tmp_path):
    one = evaluate(colours, tiny_model(), tmp_path, "universal").as_json()
    for file in (tmp_path / "answers").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    two = evaluate(colours, tiny_model(), tmp_path, "universal").as_json()
    for row in one["rows"] + two["rows"] + [one["mean"]["exact"], two["mean"]["exact"]]:
        row.pop("seconds")
    assert one == two
    assert np.isfinite(one["mean"]["exact"]["mrr"])


def test_an_item_that_a_pool_lists_twice_is_reported(colours, tiny_model, tmp_path):
    file = colours.path / "cand_pool/local/mbeir_colours_task0_cand_pool.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    results = evaluate(colours, tiny_model(), tmp_path).as_json()
    assert results["rows"][0]["pool_items"] == 8
    assert any("item 30:0 is listed twice" in line for line in results["reading"])


def test_several_seeds_are_one_system_with_a_spread(by_hand, tiny_model, tmp_path):
    class Seeded(Exact):
        """Finds nothing under its second seed."""

        def __init__(self, seed):
            super().__init__(name="seeded")
            self._settings = {"seed": seed}

        def search(self, queries, k):
            found = super().search(queries, k)
            if self.settings["seed"]:
                found.rows[:] = NO_ITEM
            return found

    systems = [Exact(), Seeded(0), Seeded(1)]
    results = evaluate(by_hand, tiny_model(), tmp_path, systems=systems).as_json()
    assert [(row["system"], row.get("seeds")) for row in results["rows"]] == [
        ("exact", None),
        ("exact", None),
        ("seeded", [1.0, 0.0]),
        ("seeded", [1.0, 0.0]),
    ]
    mean = results["mean"]["seeded"]
    assert mean["headline"] == pytest.approx(results["mean"]["exact"]["headline"] / 2)
    assert mean["seeds"] == [1.0, 0.0]
    assert mean["seed_deviation"] == pytest.approx(0.5**0.5)
    assert results["systems"]["seeded"] == {"seed": 0, "seeds": 2}
    assert "seeds" not in results["mean"]["exact"]
