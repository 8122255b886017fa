"""Answers found by several processes are those that the evaluator would have found itself."""

from __future__ import annotations

import pytest
import torch

from genius.data.mbeir import MBeir
from genius.evaluate.options import EvalOptions, Workspace
from genius.evaluate.run import (
    ENCODERS,
    evaluate,
    one_thread,
    parallel_jobs,
    search_in_parallel,
    split_encoder,
)


def test_every_encoder_of_the_paper_is_a_system():
    from genius.encode import base

    for name in ("clip-sf", "clip-ff", "blip-sf", "blip-ff"):
        assert split_encoder(f"{name}=FOLDER") == (name, "FOLDER")
    assert set(ENCODERS.values()) <= set(base.ENCODERS)


def test_long_searches_are_apart_and_generative_baselines_together():
    settings = [EvalOptions("universal"), EvalOptions("local")]
    jobs = parallel_jobs("exact,genius,lookup+codes,grace-numeric,dsi-nci,clip-sf=FOLDER", settings)
    assert jobs == [
        ("grace-numeric,dsi-nci", settings),
        ("genius", settings[:1]),
        ("genius", settings[1:]),
        ("exact,lookup+codes", settings[:1]),
        ("exact,lookup+codes", settings[1:]),
    ]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_process_finds_what_the_evaluation_then_only_reads(colours, tmp_path, two_threads):
    """With one thread, whatever the evaluation has."""
    cache, both = tmp_path / "cache", [EvalOptions("universal"), EvalOptions("local")]
    data, workspace = MBeir(colours.path), Workspace(cache)
    arguments = ["--data", str(colours.path), "--model", "mini", "--device", "cpu", "--cache", str(cache)]

    def answers():
        return {file.name for file in (cache / "answers").iterdir()}

    for options in both:
        evaluate(data, "colours", "mini", "exact", options, workspace, lambda line: None)
    before, said = answers(), []
    search_in_parallel("exact,lookup+codes", both, arguments, 1, said.append)
    found = answers()
    assert len(found) == 3 * len(before)  # by two threads exact, by one both systems
    assert said == [f"{setting}, exact,lookup+codes is searched" for setting in ("universal", "local")]
    with one_thread():
        for options in both:
            evaluate(data, "colours", "mini", "exact,lookup+codes", options, workspace, lambda line: None)
    assert answers() == found
    assert torch.get_num_threads() == 2


def test_a_process_that_fails_is_logged_and_left_to_the_evaluation(colours, tmp_path):
    said = []
    arguments = ["--data", str(colours.path), "--model", "no-such-model", "--cache", str(tmp_path)]
    search_in_parallel("exact", [EvalOptions("local")], arguments, 1, said.append)
    assert len(said) == 1
    assert "no model 'no-such-model'" in said[0]
