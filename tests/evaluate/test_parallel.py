"""Answers found by several processes are those that the evaluation would have found itself."""

from __future__ import annotations

from genius.data.mbeir import MBeir
from genius.evaluate.measure import Asked, Place, measure
from genius.evaluate.parallel import Source, find_answers, jobs_of


def test_long_searches_are_apart_and_baselines_that_learn_together():
    settings = [Asked("universal"), Asked("local")]
    jobs = jobs_of("exact,genius,lookup+codes,grace-numeric,dsi-nci,clip-sf=FOLDER", settings)
    assert jobs == [
        ("grace-numeric,dsi-nci", settings),
        ("genius", settings[:1]),
        ("genius", settings[1:]),
        ("exact,lookup+codes", settings[:1]),
        ("exact,lookup+codes", settings[1:]),
    ]


def test_a_process_finds_what_the_evaluation_then_only_reads(colours, tmp_path):
    place, both = Place(tmp_path / "cache"), [Asked("universal"), Asked("local")]
    data = MBeir(colours.path)

    def answers():
        return {file.name for file in (tmp_path / "cache" / "answers").iterdir()}

    for asked in both:
        measure(data, "colours", "mini", "exact", asked, place, lambda line: None)
    before, said = answers(), []
    source = Source("mbeir", colours.path, (), "mini")
    find_answers(source, "exact,lookup+codes", both, place, 1, said.append)
    found = answers()
    assert len(found) == 2 * len(before)
    assert said == ["found: exact,lookup+codes"] * 2
    for asked in both:
        measure(data, "colours", "mini", "exact,lookup+codes", asked, place, lambda line: None)
    assert answers() == found


def test_a_job_that_fails_is_said_and_left_to_the_evaluation(colours, tmp_path):
    said = []
    source = Source("mbeir", colours.path, (), "no-such-model")
    find_answers(source, "exact", [Asked("local")], Place(tmp_path), 1, said.append)
    assert len(said) == 1
    assert "no model 'no-such-model'" in said[0]
