"""Ablations: variants are real recipes, effects are paired, a collapse is a result and no crash."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from genius.config import load_recipe
from genius.data.base import Row
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.ablations import LARGE, AblationRunner, choose_variants, variants_of
from genius.evaluate.protocol import match_qrels, row_metrics
from genius.evaluate.report.seeds import seeds_table
from genius.evaluate.report.studies import _rank_correlation, ablation_table, ablation_tables, agreement
from genius.evaluate.results import Entry, Results

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
RECIPE = RECIPES / "bench.toml"
VARIANTS = variants_of(load_recipe(RECIPE, ["quantizer.levels=9"]), beam=50)


def results(hits):
    """Each system finds the answers of so many of 50 queries, the first ones."""
    row = Row("emoji", 0)
    queries = [str(n) for n in range(50)]
    matched = match_qrels(row, queries, {q: {"a": 1} for q in queries}, {"a": 0, "b": 1})
    entries = []
    for system, found in hits.items():
        ranked = np.array([[0 if n < found else 1] for n in range(50)])
        metrics = row_metrics(row, "universal", system, matched, [ranked], 2)
        entries.append(Entry(metrics, "f", "p", "q", 9, 1.0))
    return Results("universal", "test", "bench", "base", "abc", entries, versions={})


class Bench:
    """Stands in for training and evaluator; notes what was asked of it."""

    def __init__(self, hits):
        self.hits, self.trained, self.saved, self.said, self.evaluated = hits, [], [], [], []

    def run(self, variants, folder, seeds=1, overrides=(), command="genius ablate", compare=()):
        keep = lambda outcome: self.saved.append(dict(outcome))  # noqa: E731
        by = {"command": command, "commit": "0123abc"}
        runner = AblationRunner(
            RECIPE, overrides, folder, seeds, self.train, self.evaluate, self.said.append, keep, by, compare
        )
        return runner.run(variants)

    def train(self, recipe, stage, folder):
        self.trained.append((folder.name, stage, recipe.seed))
        if recipe.quantizer_training.contrastive == 0:
            raise TrainingStopped("step 100: all items share one code")
        if stage == "decoder":
            assert (folder / "model" / "quantizer.safetensors").read_text().startswith("of base")
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "quantizer.safetensors").write_text(f"of {folder.name}")
        (folder / "model" / "decoder.safetensors").write_text("")

    def evaluate(self, model, beam, systems):
        self.evaluated.append((model.parent.name, systems))
        own = self.hits.get(f"beam {beam}" if beam else model.parent.name, 10)
        return results({name: self.hits.get(name, own) for name in systems})


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.beam], ids=lambda v: v.name)
def test_every_variant_is_a_valid_recipe_and_another_one(variant):
    base = ["quantizer.levels=9"]
    assert load_recipe(RECIPE, [*base, *variant.overrides]) != load_recipe(RECIPE, base)


def test_the_list_covers_what_the_paper_changes_and_leaves_out_what_the_recipe_has():
    names = {variant.name for variant in VARIANTS}
    assert {
        "no modality level",
        "modality by classifier",
        "no query augmentation",
        "no contrastive loss",
        "no agreement loss",
        "5 levels of 256 codes",
        "9 levels of 1024 codes",
        "decoder of t5-small size",
        "beam 1",
        "small fusion",
        "items encoded greedily",
        "query augmentation as released",
        "targets around the item alone",
        "targets of perplexity 12",
    } <= names
    assert not {"9 levels of 256 codes", "decoder of mini size", "beam 50", "no fusion"} & names
    published = {v.name for v in variants_of(load_recipe(RECIPES / "mbeir.toml"), beam=30)}
    assert {"9 levels of 256 codes", "decoder of mini size", "beam 50"} <= published
    assert not {"9 levels of 4096 codes", "decoder of t5-small size", "beam 30"} & published
    greedy_and_hard = {"items encoded greedily", "hard targets", "query augmentation as released"}
    assert not (greedy_and_hard | {"targets of perplexity 12", "no plain queries"}) & published


def test_the_papers_effect_is_that_of_the_same_change():
    effects = {variant.name: variant.paper for variant in VARIANTS}
    assert effects["no contrastive loss"] == pytest.approx(-46.8, abs=0.05)
    assert effects["no modality level"] == pytest.approx(-12.4, abs=0.05)
    assert effects["9 levels of 4096 codes"] == pytest.approx(7.6, abs=0.05)  # the recipe has 256
    assert effects["5 levels of 256 codes"] == pytest.approx(-7.3, abs=0.05)
    assert effects["beam 1"] == pytest.approx(-33.8, abs=0.05)
    assert effects["hard targets"] is None
    assert effects["decoder of t5-small size"] is None  # the paper has no smaller one
    published = variants_of(load_recipe(RECIPES / "mbeir.toml"), beam=30)
    assert {v.name: v.paper for v in published}["9 levels of 256 codes"] == pytest.approx(-7.6, abs=0.05)


def test_variants_are_trained_evaluated_and_compared(tmp_path):
    bench = Bench({"base": 30, "beam 1": 5})
    names = "no modality level, no contrastive loss, hard targets, beam 1"
    outcome = bench.run(choose_variants(names, VARIANTS), tmp_path)
    assert bench.trained == [
        ("base", "all", 0),
        ("no-modality-level", "all", 0),
        ("no-contrastive-loss", "all", 0),
        ("hard-targets", "decoder", 0),  # on the quantizer of the base
    ]
    assert len(bench.saved) == 5
    outcome = json.loads(json.dumps(outcome))
    table = ablation_table(outcome)
    assert table.lines[0][:3] == ["base", "bench", "60.0"]
    lines = {line[0]: line for line in table.lines}
    assert lines["no contrastive loss"][2] == "stopped"
    assert [line[0] for line in table.lines][:3] == ["base", "no contrastive loss", "beam 1"]  # harm first
    assert lines["no modality level"][2] == "20.0"
    assert lines["no modality level"][3].startswith("-40.0 [")
    assert lines["no modality level"][-1] == "-12.4"
    assert lines["hard targets"][-1] == ""
    assert "| no modality level |" in table.markdown()
    assert any("all items share one code" in line for line in agreement(outcome))


def test_nothing_is_trained_twice_and_another_recipe_is_not_taken_for_this_one(tmp_path):
    bench = Bench({"base": 30})
    wanted = choose_variants("no contrastive loss, no agreement loss", VARIANTS)
    first = bench.run(wanted, tmp_path)
    again = bench.run(wanted, tmp_path)
    assert len(bench.trained) == 3
    for outcome in (first, again):
        for variant in outcome["variants"]:
            variant.pop("minutes")
    assert first == again
    with pytest.raises(BadInput, match="a model of another recipe"):
        bench.run(wanted, tmp_path, overrides=["quantizer.codes=64"])


def test_seeds_are_averaged_and_shown(tmp_path):
    bench = Bench({"base": 30, "base-seed1": 20, "hard-targets": 10, "hard-targets-seed1": 15})
    wanted = choose_variants("hard targets", VARIANTS)
    outcome = bench.run(wanted, tmp_path, seeds=2)
    assert [seed for _, _, seed in bench.trained] == [0, 1, 0, 1]
    effect = outcome["variants"][0]["effects"]["genius"]
    assert outcome["base"]["genius"]["mean"] == pytest.approx(25 / 50)
    assert effect["difference"] == pytest.approx(-12.5 / 50)
    assert effect["by_seed"] == pytest.approx([-20 / 50, -5 / 50])
    assert "means of 2 seeds" in ablation_table(outcome).notes


def test_a_win_is_one_under_every_seed_of_training(tmp_path):
    hits = {"base": 30, "base-seed1": 31, "exact": 40, "faiss-rq": 10, "pq": 29}
    bench = Bench(hits)
    compare = ["exact", "lookup+codes", "lookup+vectors", "faiss-rq", "pq"]
    outcome = bench.run([], tmp_path, seeds=2, compare=compare)
    others = ["exact", "faiss-rq", "pq"]
    assert [e for e in bench.evaluated if set(e[1]) & set(others)] == [("base", others)]  # once
    found = json.loads(json.dumps(outcome))["over_seeds"]
    assert found["systems"]["lookup+codes"]["by_seed"] == pytest.approx([0.6, 0.62])
    assert found["systems"]["lookup+codes"]["deviation"] == pytest.approx(0.01414, abs=1e-4)
    verdicts = {(each["one"], each["other"]): each["verdict"] for each in found["comparisons"]}
    assert verdicts == {
        ("lookup+codes", "faiss-rq"): "better",
        ("lookup+codes", "pq"): "even",
        ("lookup+vectors", "exact"): "worse",
    }
    table = seeds_table(found)
    (line,) = [line for line in table.lines if line[0] == "lookup+codes"]
    assert line[1:5] == ["training", "61.0 [47.0, 74.0]", "1.4", "60.0, 62.0"]
    assert any(n.startswith("lookup+codes is better than faiss-rq under all seeds") for n in table.notes)
    assert [t.title for t in ablation_tables(outcome)] == [table.title]  # no variants, no table of them
    hits["base-seed1"] = 11  # one seed is hardly better than faiss-rq
    lucky = Bench(hits).run([], tmp_path / "lucky", seeds=2, compare=compare)["over_seeds"]
    (rq,) = [each for each in lucky["comparisons"] if each["other"] == "faiss-rq"]
    assert rq["interval"][0] > 0  # their mean is
    assert rq["verdict"] == "even"
    with pytest.raises(BadInput, match="--compare needs some of genius"):
        Bench(hits).run([], tmp_path, seeds=2, compare=["exact"])


def test_agreement_with_the_paper_is_said_by_name(tmp_path):
    hits = {"base": 30, "no-modality-level": 10, "no-agreement-loss": 30, "no-query-augmentation": 45}
    wanted = choose_variants("no modality level, no agreement loss, no query augmentation", VARIANTS)
    outcome = Bench(hits).run(wanted, tmp_path)
    said = agreement(outcome)
    assert any(line.startswith("rank correlation of our effects on genius") for line in said)
    assert "as in the paper: no modality level (-40.0; paper -12.4)" in said
    assert "opposite to the paper: no query augmentation (+30.0; paper -9.7)" in said
    assert any(line.startswith("no clear effect here: no agreement loss (+0.0") for line in said)


def test_agreement_is_said_by_table_and_decoders_are_compared_with_each_other(tmp_path):
    hits = {"base": 30, "no-modality-level": 10, "no-agreement-loss": 20, "no-query-augmentation": 15}
    hits |= {"beam 1": 25, "decoder-of-t5-small-size": 20, "decoder-of-t5-base-size": 26}
    names = "no modality level, no agreement loss, no query augmentation, beam 1, decoder"
    wanted = [v for v in choose_variants(names, VARIANTS) if "large" not in v.name]
    said = agreement(Bench(hits).run(wanted, tmp_path))
    assert said[0].endswith("-0.20 (1: the same order); by table: Table 4 +1.00 (3 variants)")
    assert "decoders compared with t5-small size: t5-base +12.0 (paper +0.7)" in said


def test_parts_of_the_work_are_collected_from_one_folder(tmp_path):
    hits = {"base": 30, "hard-targets": 20, "small-fusion": 25, "beam 1": 5}
    for part in ("hard targets", "small fusion"):  # as two processes would
        Bench(hits).run(choose_variants(part, VARIANTS), tmp_path)
    last = Bench(hits)
    whole = last.run(choose_variants("hard targets, small fusion, beam 1", VARIANTS), tmp_path)
    assert last.trained == []
    effects = {v["name"]: v["effects"]["genius"]["difference"] for v in whole["variants"]}
    assert effects == pytest.approx({"hard targets": -0.2, "small fusion": -0.1, "beam 1": -0.5})


def test_the_outcome_says_which_commands_trained_its_models(tmp_path):
    both = choose_variants("hard targets, small fusion, no contrastive loss, beam 1", VARIANTS)
    whole = Bench({"base": 30}).run(both, tmp_path / "whole", seeds=2)
    assert whole["trained_by"] == [{"command": "genius ablate", "commit": "0123abc"}]
    assert not any("put together" in note for note in ablation_table(whole).notes)
    again = Bench({"base": 30}).run(both, tmp_path / "whole", seeds=2)  # as after a stop
    assert again["trained_by"] == whole["trained_by"]

    Bench({"base": 30}).run(both[:1], tmp_path / "parts", command="first")
    parts = Bench({"base": 30}).run(both, tmp_path / "parts", command="second")
    assert [by["command"] for by in parts["trained_by"]] == ["first", "second"]
    (note,) = [line for line in ablation_table(parts).notes if "put together" in line]
    assert note == "put together from models that 2 commands trained: `first`, `second`"
    (tmp_path / "parts" / "base" / "trained_by.json").unlink()  # a folder of an earlier version
    parts = Bench({"base": 30}).run(both, tmp_path / "parts", command="third")
    assert parts["trained_by"][0] == {}
    del parts["trained_by"]
    assert "which commands trained the models was not recorded" in ablation_table(parts).notes


def test_a_base_that_was_trained_again_is_noted(tmp_path):
    outcome = Bench({"base": 40}).run(choose_variants("no agreement loss", VARIANTS), tmp_path)
    outcome["variants"][0]["base"] = outcome["base"]
    (note,) = [line for line in ablation_table(outcome).notes if "trained again" in line]
    assert note.startswith("no agreement loss: its base") and note.endswith("80.0 and 80.0")


def test_rank_correlation_equals_scipys():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 12))
    assert _rank_correlation(one.tolist(), other.tolist()) == pytest.approx(spearmanr(one, other).statistic)


def test_names_choose_variants():
    with pytest.raises(BadInput, match="no ablation called 'less data'"):
        choose_variants("less data", VARIANTS)
    usual = choose_variants("", VARIANTS)
    assert {v.name for v in VARIANTS} - {v.name for v in usual} == LARGE
    assert choose_variants("all", VARIANTS) == VARIANTS
    assert choose_variants("none", VARIANTS) == []
    assert {v.beam for v in choose_variants("beam", VARIANTS)} == {1, 5, 10, 20, 30}
    assert [v.name for v in choose_variants("small fusion,beam 1", VARIANTS)] == ["small fusion", "beam 1"]
