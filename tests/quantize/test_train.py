from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from genius.config import OptimiserConfig, QuantizerTrainingConfig, TuningConfig
from genius.errors import BadInput, TrainingStopped
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer
from genius.quantize.recall import code_recall, least_share_of_phi, phi_recall
from genius.quantize.residual import code_sizes
from genius.quantize.train import QuantizerObjective, health_of, train_quantizer
from genius.training.log import read_log

PLAN = OptimiserConfig(
    steps=120, batch=64, rate=3e-3, final_rate=3e-4, warmup=5, weight_decay=0.01, check_every=40
)
OBJECTIVE = QuantizerObjective(temperature=0.05, decay=0.95)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setitem(PRESETS, "small", (32, 64))


def fresh(seed: int = 0, **options) -> Quantizer:
    torch.manual_seed(seed)
    sizes = code_sizes(4, 32, options.get("modality", "assigned"))
    return Quantizer(24, sizes, **{"fusion": "small", **options})


def trained(quantizer, train, val, folder, plan=PLAN, objective=OBJECTIVE, **options):
    options = {"seed": 0, "kmeans_sample": 1500, "show": False, **options}
    return train_quantizer(quantizer, train, val, plan, objective, folder=folder, **options)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_log(folder / "log.jsonl") if "loss" in line]


def test_objective_takes_the_values_of_the_recipe():
    table = QuantizerTrainingConfig.model_validate({"optimiser": {"steps": 1, "batch": 2}}).model_dump()
    assert asdict(QuantizerObjective()) == {name: table[name] for name in asdict(QuantizerObjective())}


def test_loss_falls_and_codes_find_more_than_before(tmp_path, train_pairs, val_pairs):
    untrained = trained(fresh(fusion="sum"), train_pairs, val_pairs, tmp_path / "sum", refine_rounds=1)
    assert untrained.result is None and len(untrained.errors) == 2
    quantizer = fresh()
    done = trained(quantizer, train_pairs, val_pairs, tmp_path / "small", refine_rounds=3)
    history = losses(tmp_path / "small")
    assert history[-1][1] < 0.8 * history[0][1]
    assert done.figures["hit@5"] > untrained.figures["hit@5"] + 0.05
    assert done.figures["hit@5_z"] > untrained.figures["hit@5_phi"] == phi_recall(val_pairs)
    assert done.errors[-1] <= done.errors[0]
    assert done.health.purity == 1.0
    assert done.health.levels[0].agreement == 1.0
    assert done.figures["hit@5"] == code_recall(quantizer, val_pairs)["hit@5"]


def test_a_run_started_again_keeps_the_codebooks_it_had_tuned(tmp_path, train_pairs, monkeypatch):
    tuned = []

    def shaken(quantizer, *rest):  # on a GPU no two runs give the same sums
        tuned.append(rest)
        quantizer.residual.codebooks()[1].data += 1e-3 * torch.randn(())

    monkeypatch.setattr("genius.quantize.train.tune", shaken)

    def run(steps: int):
        quantizer = fresh()
        options = {"tuning": TuningConfig(steps=steps), "refine_rounds": 2}
        plan = PLAN.model_copy(update={"steps": 40})
        done = trained(quantizer, train_pairs, None, tmp_path, plan, **options)
        return [book.clone() for book in quantizer.residual.codebooks()], done.errors

    first, errors = run(7)
    again, same_errors = run(7)
    assert len(tuned) == 1
    assert errors == same_errors and len(errors) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other, _ = run(8)  # tuned in another way: from the trained codebooks on
    assert len(tuned) == 2 and not torch.equal(other[1], first[1])


def test_the_agreement_loss_gives_queries_the_codes_of_their_targets(tmp_path, train_pairs, val_pairs):
    before = trained(fresh(fusion="sum"), train_pairs, val_pairs, tmp_path / "before")
    alone = replace(OBJECTIVE, contrastive=0.0, residual=0.0)
    after = trained(fresh(), train_pairs, None, tmp_path / "after", objective=alone)
    assert after.health.levels[1].agreement > before.health.levels[1].agreement + 0.2


@pytest.mark.parametrize("way", ["nearest", "classifier", "none"])
def test_the_other_ways_of_level_zero_train(tmp_path, train_pairs, val_pairs, way):
    quantizer = fresh(modality=way)
    done = trained(quantizer, train_pairs, val_pairs, tmp_path, least_purity=0.0)
    assert done.figures["hit@5"] > 0.3
    if way == "classifier":
        assert done.health.levels[0].agreement > 0.7
        assert not quantizer.residual.codebook(0).any()
        assert "classifier" in read_log(tmp_path / "log.jsonl")[0]


def test_shared_codebooks_and_bfloat16_train(tmp_path, train_pairs, val_pairs):
    quantizer = fresh(shared_codebooks=True)
    plan = PLAN.model_copy(update={"precision": "bfloat16"})
    assert trained(quantizer, train_pairs, val_pairs, tmp_path, plan=plan).figures["hit@5"] > 0.3


def test_without_validation_the_last_weights_are_kept(tmp_path, train_pairs):
    done = trained(fresh(), train_pairs, None, tmp_path)
    assert (done.result.steps, done.figures) == (120, {})


def test_health_of_a_quantizer_knows_error_and_agreement(train_pairs, val_pairs, tmp_path):
    quantizer = fresh(fusion="sum")
    trained(quantizer, train_pairs, None, tmp_path)
    health = health_of(quantizer, val_pairs)
    assert health.items == val_pairs.items
    assert health.error == pytest.approx(code_recall(quantizer, val_pairs)["error"], rel=1e-5)
    assert 0 < health.levels[1].agreement < 1


def test_compiled_training_is_the_same_training(tmp_path, train_pairs, monkeypatch):
    """Traced by torch for real; what it traced is run as it is, without the minute of code generation."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for name in ("plain", "compiled"):
        plan = PLAN.model_copy(update={"steps": 6, "check_every": 2, "compile": name == "compiled"})
        trained(fresh(), train_pairs, None, tmp_path / name, plan)
        assert bool(graphs) == (name == "compiled")
    for mine, theirs in zip(losses(tmp_path / "plain"), losses(tmp_path / "compiled"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


def test_weights_that_are_all_zero_are_refused(tmp_path, train_pairs):
    objective = QuantizerObjective(contrastive=0.0, residual=0.0, agreement=0.0)
    with pytest.raises(BadInput, match="all loss weights are 0"):
        trained(fresh(), train_pairs, None, tmp_path, objective=objective)


def test_nan_stops_with_the_step(tmp_path, train_pairs):
    plan = PLAN.model_copy(update={"rate": 1e30, "warmup": 0})
    with pytest.raises(TrainingStopped, match=r"loss = nan.* at step 2;"):
        trained(fresh(), train_pairs, None, tmp_path, plan=plan)
    quantizer = fresh()
    with torch.no_grad():
        quantizer.fusion.output_layer.bias.fill_(torch.nan)
    with pytest.raises(TrainingStopped, match="before step 1"):
        trained(quantizer, train_pairs, None, tmp_path)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from conftest import make_pairs
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer
from genius.quantize.residual import code_sizes
from genius.quantize.train import QuantizerObjective, train_quantizer
from genius.config import TuningConfig
from genius.training.distributed import is_main, process_group
from genius.config import OptimiserConfig

PRESETS["small"] = (32, 64)
with process_group("cpu"):
    torch.manual_seed(0)
    quantizer = Quantizer(24, code_sizes(3, 16), fusion="small")
    plan = OptimiserConfig(steps=12, batch=32, rate=1e-3, check_every=6)
    train_quantizer(quantizer, make_pairs(1), make_pairs(2), plan, QuantizerObjective(temperature=0.05),
                    folder=Path(sys.argv[2]), seed=0, kmeans_sample=400, refine_rounds=1,
                    tuning=TuningConfig(steps=5, batch=32, temperature=0.05), show=False)
    if is_main():
        torch.save(quantizer.residual.vectors, Path(sys.argv[2]) / "vectors.pt")
"""


def test_two_processes_learn_what_one_learns(run_by_one_and_two, tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(SCRIPT)
    run_by_one_and_two(script, tmp_path, Path(__file__).parent)
    one, two = read_log(tmp_path / "one" / "log.jsonl"), read_log(tmp_path / "two" / "log.jsonl")
    assert [line["step"] for line in one] == [6, 6, 12, 12]
    for mine, theirs in zip(one, two, strict=True):
        for name in mine.keys() - {"samples_per_s"}:
            # hit rates jump by whole queries when rounding tips a code
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=0.03 * name.startswith("hit"))
    mine, theirs = (torch.load(tmp_path / run / "vectors.pt") for run in ("one", "two"))
    assert (mine - theirs).abs().amax(1).gt(1e-3).float().mean() < 0.1  # refined and tuned in the same way


def test_a_fusion_that_drops_a_part_keeps_less_of_phi(val_pairs):
    whole = fresh(fusion="sum")
    assert least_share_of_phi(whole, val_pairs) == 1.0
    blind = fresh(fusion="sum")
    blind.fusion.forward = lambda image, text: torch.nn.functional.normalize(image + 1e-3 * text, dim=1)
    assert least_share_of_phi(blind, val_pairs) < 0.9


def test_weights_are_chosen_by_the_worst_task_too(tmp_path, train_pairs, val_pairs, monkeypatch):
    shares = iter([1.0, *[0.1] * 20])  # from the second validation on, a task is lost
    monkeypatch.setattr("genius.quantize.train.least_share_of_phi", lambda *_: next(shares))
    done = trained(fresh(), train_pairs, val_pairs, tmp_path)
    checks = [line for line in read_log(tmp_path / "log.jsonl") if "chosen" in line]
    assert len(checks) > 1 and done.result.best_step == checks[0]["step"]
    assert checks[0]["chosen"] == checks[0]["hit@5"]


def test_phi_is_measured_on_train_beside_val(tmp_path, train_pairs, val_pairs, monkeypatch):
    figures = trained(fresh(fusion="sum"), val_pairs, val_pairs, tmp_path / "a").figures
    assert figures["hit@5_phi_train"] == figures["hit@5_phi"] == phi_recall(val_pairs)
    monkeypatch.setattr("genius.quantize.train.PHI_SAMPLE", 5)
    few = trained(fresh(fusion="sum"), train_pairs, val_pairs, tmp_path / "b").figures
    assert few["hit@5_phi"] == phi_recall(val_pairs)
    assert 0 <= few["hit@5_phi_train"] <= 1
