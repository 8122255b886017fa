"""Ablations: variants are real recipes, effects are paired, a collapse is a result and no crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genius.config import load_recipe
from genius.data.base import Row
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.ablations import SYSTEMS, VARIANTS, ablation_table, chosen_variants, run_ablations
from genius.evaluate.protocol import figures, label
from genius.evaluate.results import Entry, Results

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "bench.toml"


def results(hits):
    """Both systems find the answers of the first `hits` of 50 queries."""
    row = Row("emoji", 0)
    queries = [str(n) for n in range(50)]
    labels = label(row, queries, {q: {"a": 1} for q in queries}, {"a": 0, "b": 1})
    ranked = np.array([[0 if n < hits else 1] for n in range(50)])
    entries = [
        Entry(figures(row, "universal", system, labels, [ranked], 2), "f", "p", "q", 9, 1.0)
        for system in SYSTEMS
    ]
    return Results("universal", "test", "bench", "base", "abc", entries, versions={})


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_variant_is_a_valid_recipe(variant):
    load_recipe(RECIPE, variant.overrides)


def test_the_papers_effects():
    effects = {variant.name: variant.paper_effect for variant in VARIANTS}
    assert effects["no contrastive loss"] == pytest.approx(-46.8, abs=0.05)
    assert effects["no modality level"] == pytest.approx(-12.4, abs=0.05)
    assert effects["hard targets"] is None


def test_variants_are_trained_evaluated_and_compared(tmp_path):
    trained = []

    def train(recipe, folder):
        trained.append((folder.name, recipe.quantizer.modality, recipe.decoder_training.augmentation))
        assert recipe.data.features == str(tmp_path / "vectors")
        if recipe.quantizer_training.contrastive == 0:
            raise TrainingStopped("step 100: all items share one code")
        return folder / "model"

    def evaluate(model):
        return results(30 if model.parent.name == "base" else 10)

    wanted = chosen_variants("no modality level, no contrastive loss, 256 codes")
    said = []
    base, effects = run_ablations(RECIPE, [], wanted, tmp_path, train, evaluate, said.append)
    assert [name for name, _, _ in trained] == ["base", "no-modality-level", "no-contrastive-loss"]
    assert trained[1][1] == "none"
    assert any("256 codes: the base recipe has these values already" in line for line in said)
    table = ablation_table(base, effects)
    assert table.lines[0][:3] == ["base", "base", "60.0"]
    assert table.lines[1][0] == "no modality level"
    assert table.lines[1][2] == "20.0"
    assert table.lines[1][3].startswith("-40.0 [")
    assert table.lines[1][-1] == "-12.4"
    assert table.lines[2][2] == "stopped"
    assert any("all items share one code" in note for note in table.notes)
    assert "| no modality level |" in table.markdown()


def test_unknown_names_are_refused():
    with pytest.raises(BadInput, match="no ablation called 'less data'"):
        chosen_variants("less data")
    assert chosen_variants("") == list(VARIANTS)
