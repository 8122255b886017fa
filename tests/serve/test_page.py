"""The page in a real browser: search, more like this, add, find, remove; captions are but text."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from genius import Item, Query
from genius.engine import Engine

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra `dev`)")

By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no browser found: install chromium and chromium-driver to test the page",
)
KEY = "a-key-of-some-length"
SECONDS = 15
DROP = """
const [bytes, name] = arguments;
const file = new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, {type: "image/png"});
const transfer = new DataTransfer();
transfer.items.add(file);
const rest = {bubbles: true, cancelable: true};
const events = arguments[2]
  ? [new ClipboardEvent("paste", {...rest, clipboardData: transfer})]
  : ["dragover", "drop"].map((kind) => new DragEvent(kind, {...rest, dataTransfer: transfer}));
events.forEach((event) => document.body.dispatchEvent(event));
"""
CONTRAST = """
const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const over = (colours) => {
  pen.clearRect(0, 0, 1, 1);
  for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
  const light = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2];
};
return arguments[0].map((css) => {
  const one = document.querySelector(css);
  const grounds = [];
  for (let at = one; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
  const [low, high] = [over(grounds), over([...grounds, getComputedStyle(one).color])].sort((a, b) => a - b);
  return [css, (high + 0.05) / (low + 0.05)];
});
"""


class Page:
    def __init__(self, browser, url: str) -> None:
        self.browser, self.url = browser, url

    def open(self, where: str = "") -> None:
        self.browser.get("about:blank")
        self.console()  # what the page of an earlier test said when its server went away
        self.browser.get(self.url + where)

    def all(self, css: str):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str):
        return self.browser.find_element(By.CSS_SELECTOR, css)

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

    def text(self, css: str) -> str:
        return self.one(css).text

    def results(self) -> list[str]:
        script = "return [...document.querySelectorAll('#results .card')].map((card) => card.dataset.id)"
        return self.browser.execute_script(script)

    def search(self, text: str) -> list[str]:
        before = self.all("#results .card")
        box = self.one("#q")
        box.clear()
        box.send_keys(text, Keys.ENTER)
        self.until(lambda: self.all("#results .card") and self.all("#results .card") != before)
        return self.results()

    def press(self, css: str) -> None:
        self.browser.execute_script("arguments[0].click()", self.one(css))

    def console(self) -> list[str]:
        return [f"{one['level']}: {one['message']}" for one in self.browser.get_log("browser")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[object]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1280,1000", "--force-prefers-reduced-motion",
                     f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def served(tmp_path_factory, fake, module_kit) -> Iterator[object]:
    with Engine.create(tmp_path_factory.mktemp("page") / "index", fake.FakeModel()) as engine:
        engine.add(module_kit.colours(fake))
        with module_kit.live(engine) as running:
            yield running


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    return tmp_path_factory.mktemp("screenshots")


@pytest.fixture
def page(browser, served) -> Iterator[Page]:
    opened = Page(browser, served.url)
    opened.open()
    opened.until(lambda: "items" in opened.text("#count-text"))
    opened.until(lambda: opened.all("#tasters-list button"))
    yield opened
    assert opened.console() == []


def wanted(page: Page, want: str) -> None:
    page.press(f"input[name=want][value={want}]")


def test_search_by_text(page, shots):
    assert page.search("something red")[0] in ("red", "t/red", "p-red")
    assert "found in" in page.text("#status") and "beams" in page.text("#status")
    wanted(page, "text")
    page.until(lambda: page.results()[0] == "t/red" and len(page.results()) == 10)
    chips = page.all("#results .card:first-child .chip")
    assert chips[0].get_property("textContent") == "text" and len(chips) == 5
    assert all("shared" in chip.get_attribute("class") for chip in chips)
    page.browser.save_screenshot(str(shots / "text.png"))
    page.one("#contains").send_keys("blue")
    page.until(lambda: page.results() == ["t/blue"])
    page.one("#contains").send_keys("est of all")
    page.until(lambda: page.results() == [] and "filters" in page.text("#none"))
    page.press("#none button")
    page.until(lambda: len(page.results()) == 10 and not page.one("#none").is_displayed())


def test_search_by_dropped_image_and_by_both(page, kit, served, shots):
    blue = kit.picture("blue")
    wanted(page, "image")
    page.browser.execute_script(DROP, base64.b64encode(blue).decode(), "mine.png")
    page.until(lambda: page.results()[:1] == ["blue"])
    assert page.one("#picked").is_displayed()
    wanted(page, "pair")
    page.until(lambda: page.results()[:1] == ["p-blue"])
    with_both = [hit.id for hit in served.engine.search(Query(image=blue, text="a green thing"), 24, "pair")]
    assert page.search("a green thing") == with_both
    page.browser.save_screenshot(str(shots / "both.png"))
    page.press("#unpick")
    page.until(lambda: page.results() != with_both and page.results()[0] == "p-green")


def test_search_by_a_pasted_image(page, kit):
    wanted(page, "text")
    page.browser.execute_script(DROP, base64.b64encode(kit.picture("green")).decode(), "pasted.png", True)
    page.until(lambda: page.results()[:1] == ["t/green"])


def test_more_like_this_and_like_this_but(page):
    wanted(page, "image")
    page.search("magenta")
    page.press("#results .card:first-child .more")
    page.until(lambda: page.text("#like-name") == "magenta" and "magenta" not in page.results())
    assert len(page.results()) == 9
    assert page.text("#results .card:first-child .rank") == "1"
    page.browser.back()
    page.until(lambda: page.results()[:1] == ["magenta"])
    page.press("#results .card:first-child .but")
    assert page.one("#q").get_attribute("placeholder") == "…but how?"
    assert page.search("yellow yellow yellow")[0] in ("yellow", "red", "white", "orange")
    assert "magenta" not in page.results()


def test_add_find_and_remove(page, kit, tmp_path):
    file = tmp_path / "teal.png"
    file.write_bytes(kit.picture("teal"))
    page.press("#open-add")
    page.one("#add-file").send_keys(str(file))
    page.until(lambda: page.one("#add-id").get_attribute("value") == "teal.png")
    page.one("#add-text").send_keys("quite new")
    page.press("#add-form [type=submit]")
    page.until(lambda: "32 items" in page.text("#count-text"))
    assert "teal.png" in page.text("#toast")
    wanted(page, "pair")
    assert page.search("quite new")[0] == "teal.png"
    page.press("#results .card:first-child .remove")
    assert page.results()[0] == "teal.png", "it asks first"
    page.press("#results .card:first-child .remove")
    page.until(lambda: "teal.png" not in page.results() and "31 items" in page.text("#count-text"))
    assert "teal.png" not in page.search("quite new indeed")


def test_markup_in_a_caption_is_shown_as_text(page, kit, shots):
    """Fault 31."""
    wanted(page, "pair")
    page.search("orange strange caption")
    page.until(lambda: page.text("#results .card[data-id=markup] .caption") == kit.MARKUP)
    page.press("#results .card[data-id=markup] .look")
    page.until(lambda: page.one("#detail").is_displayed())
    assert page.text("#detail-text") == kit.MARKUP
    page.browser.save_screenshot(str(shots / "detail.png"))
    assert page.browser.switch_to.active_element.text == "Close"
    page.press("#detail [data-close]")
    assert page.browser.title == "genius" and not page.all("#results img[src=x]")


def test_the_tree_of_codes(page, shots):
    page.press("a[data-view=codes]")
    page.until(lambda: len(page.all(".twig")) == 3)
    assert "31 items" in page.text("#branch-status")
    page.press(".twig[aria-label^=pictures]")
    page.until(
        lambda: "10 items" in page.text("#branch-status") and len(page.all("#branch-items .card")) == 10
    )
    page.browser.save_screenshot(str(shots / "codes.png"))
    page.press("#branch-items .card[data-id=red] .chip:last-child")
    page.until(lambda: [c.get_attribute("data-id") for c in page.all("#branch-items .card")] == ["red"])
    assert len(page.all("#trail .chip")) == 5


def test_keys_are_enough(page):
    body = page.one("body")
    page.browser.execute_script("document.activeElement.blur()")
    body.send_keys("/")
    active = page.browser.switch_to.active_element
    assert active.get_attribute("id") == "q" and active.get_attribute("value") == ""
    page.search("cyan")
    page.one("#q").send_keys(Keys.ARROW_DOWN)
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    focused = page.browser.switch_to.active_element
    assert focused.get_attribute("data-id") == page.results()[1]
    focused.send_keys("m")
    page.until(lambda: page.text("#like-name") != "")


def test_dark_and_on_a_phone(page, shots):
    page.press("#theme")
    assert page.one("html").get_attribute("data-theme") == "dark"
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        page.search("purple")
        width = page.browser.execute_script("return document.documentElement.scrollWidth")
        page.browser.save_screenshot(str(shots / "phone.png"))
        assert width <= 390
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.press("#theme")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, theme):
    """WCAG AA: at least 4.5 to 1 for everything that is read."""
    page.browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    page.search("red")
    still = "return document.getAnimations().every((one) => one.playState === 'finished')"
    page.until(lambda: page.browser.execute_script(still))
    read = ["#status", "#count-text", "a[data-view=codes]", ".segments input:not(:checked) + span", "summary",
            ".facet", ".card .name", ".card .caption", ".card .rank", ".card .more", ".chip.first.shared",
            ".chip.shared:not(.first)", ".chip:not(.shared)", ".button.main", ".legend"]  # fmt: skip
    found = page.browser.execute_script(CONTRAST, read)
    assert [(css, ratio) for css, ratio in found if ratio < 4.5] == []


def test_every_control_has_a_name(page):
    """What a screen reader says of a control is never empty."""
    page.search("red")
    nameless = page.browser.execute_script("""
      return [...document.querySelectorAll("button, a[href], input, select, textarea, img")].filter((one) =>
        !one.closest("dialog:not([open])") && !(one.matches("img[alt='']") && one.closest("a, button"))
        && !(one.getAttribute("aria-label") || one.textContent.trim() || one.alt || one.labels?.length))
        .map((one) => one.outerHTML)""")
    assert nameless == []


def test_an_empty_collection_asks_for_a_first_item(browser, tmp_path, fake, module_kit):
    with Engine.create(tmp_path / "none", fake.FakeModel()) as engine, module_kit.live(engine) as running:
        page = Page(browser, running.url)
        page.open()
        page.until(lambda: page.one("#empty").is_displayed() and "0 items" in page.text("#count-text"))
        assert not page.one("input[name=want][value=pair]").is_enabled()
        page.press("#add-first")
        page.one("#add-text").send_keys("the first one")
        page.one("#add-id").send_keys("first")
        page.press("#add-form [type=submit]")
        page.until(lambda: "1 item" in page.text("#count-text") and not page.one("#empty").is_displayed())
        assert page.search("first") == ["first"]
        assert page.console() == []


def test_a_picture_that_is_gone_is_said_to_be(browser, tmp_path, fake, module_kit):
    file = tmp_path / "red.png"
    file.write_bytes(module_kit.picture("red"))
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item("red", image=file)])
        file.unlink()
        with module_kit.live(engine) as running:
            page = Page(browser, running.url)
            page.open()
            assert page.search("red") == ["red"]
            page.until(lambda: page.all("#results .look.gone"))
            assert page.all("#results .look.gone img")[0].is_displayed() is False
            assert [line for line in page.console() if "404" not in line] == []


def test_with_a_key(browser, engine, module_kit):
    with module_kit.live(engine, key=KEY) as running:
        page = Page(browser, running.url)
        page.open()
        page.until(lambda: page.one("#key").is_displayed())
        page.one("#key-value").send_keys(KEY, Keys.ENTER)
        page.until(lambda: "31 items" in page.text("#count-text"))
        wanted(page, "image")
        assert page.search("red")[0] == "red"
        script = "return document.querySelector('#results img').naturalWidth"
        page.until(lambda: page.browser.execute_script(script) > 0)
        assert [line for line in page.console() if "401" not in line] == []


def test_the_interface_can_be_tried(browser, engine, module_kit, shots):
    """/docs: every route of the document, with a form that sends a real request; nothing from elsewhere."""
    with module_kit.live(engine, key=KEY) as running:
        page = Page(browser, running.url)
        page.open("/docs")
        page.until(lambda: len(page.all("details")) == 11, "the routes")

        def send(number: int, press: str = "form button") -> str:
            block = f"details:nth-of-type({number + 1})"
            browser.execute_script("arguments[0].open = true", page.one(block))
            page.press(f"{block} {press}")
            page.until(lambda: page.all(f"{block} .answer pre"), "an answer")
            return page.text(f"{block} .answer")

        titles = [one.text.split("\n")[:2] for one in page.all("summary")]
        routes = [" ".join(title) for title in titles]
        assert "401" in send(routes.index("POST /v1/search"))
        page.one("#key").send_keys(KEY)
        search = routes.index("POST /v1/search")
        send(search)
        page.until(lambda: '"hits"' in page.text(f"details:nth-of-type({search + 1}) .answer"))
        thumbnail = routes.index("GET /v1/items/{id}/thumbnail")
        browser.execute_script("arguments[0].open = true", page.one(f"details:nth-of-type({thumbnail + 1})"))
        page.one(f"details:nth-of-type({thumbnail + 1}) input[name=id]").send_keys("red")
        send(thumbnail)
        page.until(lambda: page.all(f"details:nth-of-type({thumbnail + 1}) .answer img"), "a picture")
        browser.save_screenshot(str(shots / "docs.png"))
        browser.execute_script("sessionStorage.clear()")
        assert [line for line in page.console() if "SEVERE" in line and "401" not in line] == []
