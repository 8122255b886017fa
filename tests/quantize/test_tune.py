from pathlib import Path

import pytest
import torch

from genius.config import TuningConfig
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer
from genius.quantize.recall import code_recall, fuse_items
from genius.quantize.refine import refine
from genius.quantize.residual import code_sizes
from genius.quantize.tune import tune

TUNING = TuningConfig(steps=150, batch=128, rate=2e-3, temperature=0.05, error=3.0)


def refined(pairs, modality="assigned") -> Quantizer:
    quantizer = Quantizer(24, code_sizes(4, 32, modality), fusion="sum", modality=modality).eval()
    z = fuse_items(quantizer, pairs)
    init_codebooks(quantizer.residual, z, pairs.item_modality, torch.Generator().manual_seed(0))
    refine(quantizer.residual, z, pairs.item_modality, rounds=4)
    return quantizer


def test_the_loss_falls_and_codes_rank_unseen_items_better(train_pairs, val_pairs):
    quantizer = refined(train_pairs)
    before = code_recall(quantizer, val_pairs)
    losses = tune(quantizer, train_pairs, TUNING)
    after = code_recall(quantizer, val_pairs)
    assert len(losses) == TUNING.steps
    assert sum(losses[-20:]) < 0.95 * sum(losses[:20])
    assert after["hit@5"] > before["hit@5"]
    assert after["hit@5_z"] == before["hit@5_z"]  # the fusion is not touched


def test_the_error_term_holds_the_vectors_back(train_pairs):
    loose, tight = refined(train_pairs), refined(train_pairs)
    tune(loose, train_pairs, TUNING.model_copy(update={"error": 0.0, "steps": 40}))
    tune(tight, train_pairs, TUNING.model_copy(update={"error": 100.0, "steps": 40}))
    assert code_recall(tight, train_pairs)["error"] < code_recall(loose, train_pairs)["error"]


@pytest.mark.parametrize("modality", ["nearest", "classifier"])
def test_level_zero_stays_where_it_decides_the_modality(train_pairs, modality):
    quantizer = refined(train_pairs, modality)
    zero, one = quantizer.residual.codebook(0).clone(), quantizer.residual.codebook(1).clone()
    tune(quantizer, train_pairs, TUNING.model_copy(update={"steps": 3}))
    assert torch.equal(quantizer.residual.codebook(0), zero)
    assert not torch.equal(quantizer.residual.codebook(1), one)


def test_the_first_step_by_hand(train_pairs):
    """One step of Adam moves each coordinate against its gradient by the rate."""
    quantizer = refined(train_pairs)
    before = quantizer.residual.vectors.clone()
    tune(quantizer, train_pairs, TUNING.model_copy(update={"steps": 1}))
    moved = (quantizer.residual.vectors - before).abs()
    used = moved.amax(1) > 0
    assert used.any() and not used.all()  # codes that no item of the batch has do not move
    torch.testing.assert_close(
        moved[used].amax(1), torch.full((int(used.sum()),), TUNING.rate), rtol=0.02, atol=0
    )


def test_training_ends_with_it(train_pairs, val_pairs, tmp_path: Path):
    from genius.config import OptimiserConfig
    from genius.quantize.train import QuantizerObjective, train_quantizer

    def run(name: str, tuning: TuningConfig | None) -> Quantizer:
        quantizer = Quantizer(24, code_sizes(4, 32), fusion="sum")
        plan = OptimiserConfig(steps=1, batch=64)
        train_quantizer(
            quantizer, train_pairs, val_pairs, plan, QuantizerObjective(), folder=tmp_path / name, seed=0,
            refine_rounds=2, tuning=tuning, show=False,
        )  # fmt: skip
        return quantizer

    plain, tuned = run("plain", None), run("tuned", TUNING)
    assert code_recall(tuned, val_pairs)["hit@5"] > code_recall(plain, val_pairs)["hit@5"]
