import math

import pytest
import torch
from torch import nn

from genius.config import OptimiserConfig
from genius.seeding import generator_for, seed_for
from genius.training.schedule import adamw, rate_at


def test_rate_warms_up_linearly_then_follows_half_a_cosine():
    config = OptimiserConfig(steps=110, batch=1, rate=1.0, final_rate=0.2, warmup=10)
    assert rate_at(config, 0) == pytest.approx(0.1)
    assert rate_at(config, 9) == pytest.approx(1.0)
    assert rate_at(config, 10) == pytest.approx(1.0)
    assert rate_at(config, 60) == pytest.approx(0.6)  # half way: the mean of both ends
    assert rate_at(config, 35) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert rate_at(config, 110) == pytest.approx(0.2)


def test_only_matrices_decay_and_factors_apply_by_name():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    optimiser = adamw(
        module,
        OptimiserConfig(steps=1, batch=1, weight_decay=0.2),
        lambda name: 0.5 if name.startswith("2.") else 1.0,
    )
    seen = {(g["weight_decay"], g["factor"], p.ndim) for g in optimiser.param_groups for p in g["params"]}
    assert seen == {(0.2, 1.0, 2), (0.0, 1.0, 1), (0.2, 0.5, 2), (0.0, 0.5, 1)}


def test_betas_and_eps_reach_the_optimiser_and_are_checked():
    config = OptimiserConfig(steps=1, batch=1, betas=[0.9, 0.98], eps=1e-6)
    groups = adamw(nn.Linear(2, 3), config).param_groups
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.9, 0.98), 1e-6)}
    for betas in ([0.9, 1.0], [0.9], [-0.1, 0.9]):
        with pytest.raises(ValueError, match="betas"):
            OptimiserConfig(steps=1, batch=1, betas=betas)


def test_seeds_differ_by_every_key_and_repeat():
    seeds = {seed_for(seed, stage, step) for seed in (0, 1) for stage in ("a", "b") for step in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    first, again = (torch.rand(3, generator=generator_for("cpu", 0, "a", 7)) for _ in range(2))
    assert torch.equal(first, again)
