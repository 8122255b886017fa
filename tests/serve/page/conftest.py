"""The page in a real browser: one browser and one server of coloured items for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from genius.confidence import Calibration, ConfidenceWeights
from genius.engine import Engine

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SECONDS = 15
YEAR = 366 * 24 * 3600
WARM = ("red", "yellow", "orange", "magenta")


class Page:
    """What a user sees and does."""

    def __init__(self, browser, url: str) -> None:
        self.browser, self.url = browser, url

    def open(self, where: str = "") -> None:
        self.browser.get("about:blank")
        self.console()  # what the page of an earlier test said when its server went away
        self.browser.get(self.url + where)

    def run(self, script: str, *arguments: object):
        return self.browser.execute_script(script, *arguments)

    def all(self, css: str):
        return self.browser.find_elements("css selector", css)

    def one(self, css: str):
        return self.browser.find_element("css selector", css)

    def text(self, css: str) -> str:
        return self.one(css).text

    def shown(self, css: str) -> bool:
        return self.one(css).is_displayed()

    def until(self, true: Callable[[], object], what: str = "") -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if true():
                    return
            except Exception as error:  # the page is being redrawn
                what = what or str(error)
            time.sleep(0.03)
        pytest.fail(f"waited in vain: {what}")

    def ids(self, within: str = "#results") -> list[str]:
        return self.run(
            f"return [...document.querySelectorAll('{within} .card')].map((card) => card.dataset.id)"
        )

    def search(self, text: str) -> list[str]:
        """Search for a text, and wait for its answer; the ids of the results."""
        # goes with the old results: the page begins to search after the key has been pressed
        mark = '<i class="card old"></i>'
        self.run("document.querySelector('#results').insertAdjacentHTML('beforeend', arguments[0])", mark)
        box = self.one("#q")
        box.clear()
        box.send_keys(text, "\ue007")
        self.settle()
        return self.ids()

    def settle(self) -> None:
        """Wait until the results are those of the last search."""
        script = "return !document.querySelector('#results .card.old, #results[aria-busy]')"
        self.until(lambda: self.run(script), "an answer")

    def press(self, css: str) -> None:
        self.run("arguments[0].click()", self.one(css))

    def want(self, modality: str) -> None:
        self.press(f"input[name=want][value={modality}]")

    def console(self) -> list[str]:
        return [f"{one['level']}: {one['message']}" for one in self.browser.get_log("browser")]

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def full_size(self) -> None:
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def cut_off(self) -> list[str]:
        """What reaches beyond the right edge of the window."""
        return self.run("""
          const width = document.documentElement.clientWidth;
          const hidden = (one) => one.closest(".sr, .skip") || !one.checkVisibility();
          const short = [...document.querySelectorAll(".name, .card p, summary, dd")]; // end in an ellipsis
          const clipped = (one) => short.some((box) => box !== one && box.contains(one));
          return [...document.querySelectorAll("body *")]
            .filter((one) => !hidden(one) && !clipped(one) && one.getBoundingClientRect().right > width + 1)
            .map((one) => `${one.tagName}#${one.id}.${one.className}`)""")


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[object]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra `dev`)")
    if BROWSER is None or DRIVER is None:
        pytest.skip("no browser found: install chromium and chromium-driver to test the page")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1280,1000", "--force-prefers-reduced-motion",
                     f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(120)  # axe takes its time on a busy machine
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def files(tmp_path_factory, fake, module_kit) -> dict[str, object]:
    """A picture file of each colour, of different years."""
    folder = tmp_path_factory.mktemp("pictures")
    for n, colour in enumerate(fake.COLOURS):
        (folder / f"{colour}.png").write_bytes(module_kit.picture(colour))
        os.utime(folder / f"{colour}.png", (n * YEAR, n * YEAR))
    return {colour: folder / f"{colour}.png" for colour in fake.COLOURS}


@pytest.fixture(scope="session")
def served(tmp_path_factory, fake, module_kit, files) -> Iterator[object]:
    """31 coloured items: pictures with a tone and a price, texts, pairs; one caption has markup."""
    items = [
        replace(item, image=files[item.id], meta={"tone": "warm" if item.id in WARM else "cold", "price": n})
        if item.id in files
        else item
        for n, item in enumerate(module_kit.colours(fake))
    ]
    model = fake.FakeModel()
    model.calibrations = {"vectors": Calibration({}, ConfidenceWeights(-16.0, 20.0, 0.0))}
    with Engine.create(tmp_path_factory.mktemp("page") / "index", model) as engine:
        engine.add(items)
        with module_kit.live(engine) as running:
            yield running


@pytest.fixture
def page(browser, served) -> Iterator[Page]:
    """The page as it opens; at the end it must have said nothing on the console."""
    opened = Page(browser, served.url)
    opened.open()
    opened.until(lambda: "items" in opened.text("#count-text"))
    opened.until(lambda: opened.all("#tasters-list button"))
    yield opened
    opened.run("localStorage.clear()")
    assert opened.console() == []


@pytest.fixture
def page_of(browser) -> Callable[[str], Page]:
    """The page of another server."""

    def open_page(url: str) -> Page:
        opened = Page(browser, url)
        opened.open()
        return opened

    return open_page
