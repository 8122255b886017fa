"""Stage 2 learns: loss falls, val hit rate rises, on a made-up and on a real slice; two processes as one."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs, build_pairs
from genius.decode.init import fresh_decoder
from genius.decode.rivals import Rivals
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.decode.validation import DecoderValidation, validator
from genius.decode.vectors import QueryVectors, encode_items
from genius.errors import BadInput, TrainingStopped
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer
from genius.training.log import read_log

SHORT = OptimiserConfig(steps=120, batch=64, rate=3e-3, warmup=10, check_every=60)
BENCH = Path(__file__).resolve().parents[2].parent / "shared" / "bench"


def learn(
    world: Any, folder: Path, objective: DecoderObjective, plan: OptimiserConfig = SHORT, **named: Any
) -> tuple[list[Any], Any]:
    decoder = named.pop("decoder", None) or world.decoder()
    result = train_decoder(
        decoder,
        world.quantizer,
        world.train,
        world.val,
        plan,
        objective,
        folder=folder,
        seed=1,
        show=False,
        **named,
    )
    return [line["loss"] for line in read_log(folder / "log.jsonl") if "loss" in line], result


@pytest.mark.parametrize("soft", [None, SoftTargetOptions(softness=0.3, lookup_share=0.2, toward_query=0.2)])
def test_loss_falls_and_hit_rate_rises(world: Any, tmp_path: Path, soft: SoftTargetOptions | None) -> None:
    untrained = validator(world.decoder().eval(), world.quantizer, world.val, DecoderValidation())()
    losses, result = learn(world, tmp_path, DecoderObjective(soft=soft, plain=0.3))
    assert losses[-1] < 0.8 * losses[0]
    assert result.metrics["hit@5"] > 0.6 > 3 * untrained["hit@5"]
    assert result.metrics["hit@1"] <= result.metrics["hit@5"] <= result.metrics["hit@10"]


@pytest.mark.parametrize(
    "objective",
    [
        DecoderObjective("released"),
        DecoderObjective("none", indexing=0.5),
        DecoderObjective(soft=SoftTargetOptions(hard_share=0.5)),
        DecoderObjective(soft=SoftTargetOptions(), rivals=Rivals(count=4, drawn=100), indexing=0.2),
    ],
)
def test_every_objective_runs(world: Any, tmp_path: Path, objective: DecoderObjective) -> None:
    plan = OptimiserConfig(steps=40, batch=32, rate=3e-3, check_every=20)
    losses, _ = learn(world, tmp_path, objective, plan)
    assert losses[-1] < losses[0]


def test_query_logits_find_items_untrained_and_more_when_trained(world: Any, tmp_path: Path) -> None:
    decoder = world.decoder(query_logits=True)
    checked = validator(decoder.eval(), world.quantizer, world.val, DecoderValidation())
    untrained, plain = (
        checked(),
        validator(world.decoder().eval(), world.quantizer, world.val, DecoderValidation())(),
    )
    assert untrained["hit@5"] > 2 * plain["hit@5"]
    _, result = learn(world, tmp_path, DecoderObjective(soft=SoftTargetOptions()), decoder=decoder)
    assert result.metrics["hit@5"] > untrained["hit@5"]


def test_narrow_numbers_learn_too(world: Any, tmp_path: Path) -> None:
    plan = OptimiserConfig(steps=40, batch=32, rate=3e-3, check_every=20, precision="bfloat16")
    losses, result = learn(world, tmp_path, DecoderObjective(soft=SoftTargetOptions()), plan)
    assert losses[-1] < losses[0]
    assert 0 <= result.metrics["hit@5"] <= 1


def test_compiled_training_is_the_same_training(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced by torch for real; what it traced is run as it is, without the minute of code generation."""
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    found = []
    for way in (False, True):
        plan = OptimiserConfig(steps=4, batch=8, compile=way)
        found.append(learn(world, tmp_path / str(way), DecoderObjective(), plan)[0])
        assert bool(graphs) == way
    plain, compiled = found
    assert compiled == pytest.approx(plain, rel=1e-5)


def test_quantizer_is_left_as_it_was(world: Any, tmp_path: Path) -> None:
    before = world.quantizer.residual.vectors.clone()
    world.quantizer.train()
    learn(world, tmp_path, DecoderObjective(), OptimiserConfig(steps=2, batch=8))
    assert torch.equal(world.quantizer.residual.vectors, before)
    assert not world.quantizer.training


def test_query_vectors_kept_or_fused_anew_are_the_same(world: Any) -> None:
    pairs = world.train
    batch = pairs.sample(3, 50, seed=1)
    kept, anew = (QueryVectors(world.quantizer, pairs, room) for room in (1 << 30, 0))
    assert kept.z is not None
    assert anew.z is None
    assert len(kept.z) == 2 * pairs.queries
    torch.testing.assert_close(kept(batch.query, batch.text), anew(batch.query, batch.text))


def test_nan_stops_the_run_with_its_step(world: Any, tmp_path: Path) -> None:
    plan = OptimiserConfig(steps=20, batch=16, rate=1e30, check_every=5, clip=0)
    with pytest.raises(TrainingStopped, match=r"decoder: .* at step \d+"):
        learn(world, tmp_path, DecoderObjective(), plan)


def test_decoder_and_quantizer_must_fit(world: Any, tmp_path: Path) -> None:
    other = DecoderShape(16, (3, 16), layers=1, width=8, heads=1, head_width=8, feed_forward=8, prefix=2)
    decoder = fresh_decoder(other, world.quantizer.residual.codebooks()[:2], seed=0)
    with pytest.raises(BadInput, match="build one for the other"):
        learn(world, tmp_path, DecoderObjective(), decoder=decoder)


def test_a_run_with_another_quantizer_is_not_resumed(world: Any, tmp_path: Path) -> None:
    learn(world, tmp_path, DecoderObjective(), OptimiserConfig(steps=2, batch=8))
    world.quantizer.residual.vectors.mul_(2)
    try:
        with pytest.raises(BadInput, match="another quantizer"):
            learn(world, tmp_path, DecoderObjective(), OptimiserConfig(steps=2, batch=8))
    finally:
        world.quantizer.residual.vectors.div_(2)


def emoji_pairs() -> tuple[Pairs, Pairs]:
    """Train and val of row emoji 4 (picture -> the other maker's picture) with the CLIP vectors beside it."""
    from safetensors.numpy import load_file

    wanted = {
        "query/train/mbeir_emoji_task4_train.jsonl": b"",
        "cand_pool/global/mbeir_union_train_cand_pool.jsonl": b"",
        "query/val/mbeir_emoji_task4_val.jsonl": b"",
        "cand_pool/local/mbeir_emoji_task4_val_cand_pool.jsonl": b"",
    }
    with tarfile.open(BENCH / "tables.tar.xz", "r|xz") as tables:  # one pass
        for member in tables:
            if member.name in wanted and (opened := tables.extractfile(member)):
                wanted[member.name] = opened.read()
    names = (BENCH / "features" / "clip_vitb16.names.txt").read_text().splitlines()
    row_of = {name: row for row, name in enumerate(names)}
    vectors = load_file(BENCH / "features" / "clip_vitb16.safetensors")["image_embeds"].astype(np.float32)

    def pairs(query_lines: bytes, item_lines: bytes) -> Pairs:
        queries = [json.loads(line) for line in query_lines.splitlines()]
        items = [json.loads(line) for line in item_lines.splitlines() if b"mbeir_images/emoji" in line]
        place = {line["did"]: row for row, line in enumerate(items)}
        used = [row_of[line["query_img_path"]] for line in queries]
        used += [row_of[line["img_path"]] for line in items]
        return build_pairs(
            vectors[used],
            np.zeros((0, vectors.shape[1]), np.float32),
            query_image=range(len(queries)),
            query_texts=[[] for _ in queries],
            positives=[[place[did] for did in line["pos_cand_list"]] for line in queries],
            item_image=range(len(queries), len(used)),
            item_text=[-1] * len(items),
        )

    train_queries, train_items, val_queries, val_items = wanted.values()
    return pairs(train_queries, train_items), pairs(val_queries, val_items)


@pytest.mark.skipif(not BENCH.exists(), reason="the shared benchmark is not beside the repository")
def test_learns_on_a_real_slice(tmp_path: Path) -> None:
    train, val = emoji_pairs()
    quantizer = Quantizer(512, (3, 32, 32), fusion="sum").eval()
    z = F.normalize(train.item_parts(torch.arange(train.items))[0], dim=1)
    init_codebooks(quantizer.residual, z, train.item_modality, torch.Generator().manual_seed(0), rounds=4)
    shape = DecoderShape(
        512, (3, 32, 32), layers=2, width=64, heads=2, head_width=32, feed_forward=128, prefix=4
    )
    decoder = fresh_decoder(shape, quantizer.residual.codebooks(), seed=0)
    plan = OptimiserConfig(steps=200, batch=128, rate=2e-3, warmup=20, check_every=100)
    before = validator(decoder.eval(), quantizer, val, DecoderValidation())()
    objective = DecoderObjective(plain=0.3, soft=SoftTargetOptions(softness=0.2))
    result = train_decoder(
        decoder, quantizer, train, val, plan, objective, folder=tmp_path, seed=0, show=False
    )
    losses = [line["loss"] for line in read_log(tmp_path / "log.jsonl") if "loss" in line]
    assert losses[-1] < losses[0] - 0.3
    assert result.metrics["hit@5"] > before["hit@5"] + 0.3


def test_items_get_the_codes_of_the_quantizer(world: Any) -> None:
    z, codes = encode_items(world.quantizer, world.train)
    assert torch.equal(codes, world.quantizer.encode(z, world.train.item_modality))
    assert torch.equal(codes[:, 0], world.train.item_modality)
