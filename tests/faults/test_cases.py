"""cases.md names, for every fault, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (\d+) \|.*\| ([^|]+) \|$", Path(__file__).with_name("cases.md").read_text(), re.MULTILINE
)


def test_every_case_has_a_row():
    assert [int(number) for number, _ in ROWS] == list(range(1, 56))


@pytest.mark.parametrize(("number", "proof"), ROWS)
def test_the_tests_of_a_case_exist(number, proof):
    named = re.findall(r"`([^`]+)`", proof)
    assert named
    for file, _, test in (name.partition("::") for name in named):
        assert re.search(rf"^def {test or 'test_'}", (TESTS / file).read_text(), re.MULTILINE), (file, test)
