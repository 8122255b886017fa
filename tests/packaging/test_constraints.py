"""constraints.txt pins every direct dependency, within the range that pyproject.toml accepts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = {
    canonicalize_name(one.name): one
    for one in map(
        Requirement, [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    )
    if one.name != PROJECT["name"]
}
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))


def test_every_direct_dependency_is_pinned_and_nothing_else():
    assert {canonicalize_name(name) for name in PINS} == set(NEEDED)


@pytest.mark.parametrize("name", PINS)
def test_pin_lies_in_the_range(name):
    assert NEEDED[canonicalize_name(name)].specifier.contains(PINS[name])


def test_torch_is_a_range_for_users_and_one_version_for_tests():
    assert str(NEEDED["torch"].specifier) == "<3,>=2.6"
    assert PINS["torch"] == "2.13.0"


def test_make_installs_within_the_constraints():
    lines = (REPOSITORY / "Makefile").read_text().splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs and all("-c constraints.txt" in line for line in installs)
