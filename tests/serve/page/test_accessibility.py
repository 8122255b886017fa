"""The page for everybody: axe-core finds nothing, light or dark, and nothing is cut off on small phones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("browser")
RUN = """
const done = arguments[arguments.length - 1];
const where = (one) => one.nodes.slice(0, 3).map((node) => node.html).join(" ");
axe.run(document, {resultTypes: ["violations"], ...arguments[0]}).then((found) =>
  done(found.violations.map((one) => `${one.impact} ${one.id}: ${one.help}: ${where(one)}`)));
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which the package brings along."""
    package = importlib.util.find_spec("selenium_axe_python")
    if package is None or package.origin is None:
        pytest.skip("axe-core is not installed (extra `dev`)")
    return (Path(package.origin).parent / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def open_results(page) -> None:
    page.want("image")
    page.search("red")
    page.run("document.querySelectorAll('#show-list input:not(:checked)').forEach((one) => one.click())")


def open_menu(page) -> None:
    page.search("red")
    page.run("document.querySelector('#show').open = document.querySelector('#how').open = true")
    page.run("document.querySelector('#options').open = document.querySelector('.experts').open = true")


def open_viewer(page) -> None:
    page.want("image")
    page.search("red")
    page.press("#results .look")
    page.run("document.querySelector('#detail details').open = true")


def open_add(page) -> None:
    page.press("#open-add")


def open_key(page) -> None:
    page.run("document.getElementById('key').showModal()")


def open_codes(page) -> None:
    page.press("a[data-view=codes]")
    page.until(lambda: page.all(".tile"))
    page.press(".tile")
    page.until(lambda: page.ids("#branch-items"))


def open_notice(page) -> None:
    page.search("red")
    page.run("window.fetch = () => Promise.reject(new TypeError())")
    page.one("#q").send_keys(" again\n")
    page.until(lambda: page.shown("#notice"))


VIEWS = {
    "home": lambda page: None,
    "results": open_results,
    "menu": open_menu,
    "viewer": open_viewer,
    "add": open_add,
    "key": open_key,
    "codes": open_codes,
    "notice": open_notice,
}


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_nothing_is_cut_off(page, axe, view):
    VIEWS[view](page)
    page.run(axe)
    assert page.browser.execute_async_script(RUN, {}) == []
    page.run("document.documentElement.dataset.theme = 'dark'")
    assert page.browser.execute_async_script(RUN, {"runOnly": ["color-contrast"]}) == []
    page.size(320, 568)
    try:
        assert page.cut_off() == []
        assert page.run("return document.documentElement.scrollWidth") <= 320
    finally:
        page.full_size()
