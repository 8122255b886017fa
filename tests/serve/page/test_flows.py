"""What people do on the page: search, look, narrow down, page on, add and remove."""

from __future__ import annotations

import base64

import pytest
from PIL import Image

from genius import Query

pytestmark = pytest.mark.xdist_group("browser")
DROP = """
const [bytes, name, type, pasted] = arguments;
const file = new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, {type});
const transfer = new DataTransfer();
transfer.items.add(file);
const rest = {bubbles: true, cancelable: true};
const events = pasted
  ? [new ClipboardEvent("paste", {...rest, clipboardData: transfer})]
  : ["dragover", "drop"].map((kind) => new DragEvent(kind, {...rest, dataTransfer: transfer}));
events.forEach((event) => document.body.dispatchEvent(event));
"""


def drop(page, data: bytes, name: str, kind: str = "image/png", *, paste: bool = False) -> None:
    page.run(DROP, base64.b64encode(data).decode(), name, kind, paste)


def test_search_by_text(page):
    assert page.search("something red")[0] in ("red", "t/red", "p-red")
    assert page.text("#status") == "24 best of 31 items"
    assert not page.shown("#how-text") and "beam" in page.one("#how-text").get_property("textContent")
    page.want("text")
    page.until(lambda: page.ids()[:1] == ["t/red"] and page.text("#status") == "All 10, the best first")


def test_more_results(page):
    first = page.search("blue")
    page.press("#more")
    page.until(lambda: len(page.ids()) == 31 and page.text("#status") == "All 31, the best first")
    assert page.ids()[:24] == first and len(set(page.ids())) == 31
    assert not page.shown("#more")


def test_search_by_dropped_image_and_by_both(page, kit, served):
    blue = kit.picture("blue")
    page.want("image")
    drop(page, blue, "mine.png")
    page.until(lambda: page.ids()[:1] == ["blue"])
    assert page.shown("#picked")
    page.want("pair")
    page.until(lambda: page.ids()[:1] == ["p-blue"])
    with_both = [hit.id for hit in served.engine.search(Query(image=blue, text="a green thing"), 24, "pair")]
    assert page.search("a green thing") == with_both
    page.press("#unpick")
    page.until(lambda: page.ids() != with_both and page.ids()[0] == "p-green")
    page.want("text")
    drop(page, kit.picture("green"), "pasted.png", paste=True)
    page.until(lambda: page.ids()[:1] == ["t/green"])


def test_a_picture_that_the_browser_cannot_show_is_named(page, tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs the extra heic")
    pillow_heif.from_pillow(Image.new("RGB", (64, 64), "green")).save(tmp_path / "IMG_0001.HEIC")
    page.want("image")
    drop(page, (tmp_path / "IMG_0001.HEIC").read_bytes(), "IMG_0001.HEIC", "image/heic")
    page.until(lambda: page.ids()[:1] == ["green"] and page.text("#picked-name") == "IMG_0001.HEIC")
    assert not page.shown("#picked-image") and page.cut_off() == []
    page.press("#unpick")
    page.until(lambda: not page.shown("#picked") and page.ids() == [])
    assert not page.shown("#notice") and page.console() == [], "nothing was asked"


def test_a_dropped_pdf_is_told_to_be_no_picture(page):
    before = page.search("blue")
    drop(page, b"%PDF-1.7", "bill.pdf", "application/pdf")
    page.until(lambda: "“bill.pdf” is not a picture" in page.text("#toast"))
    assert page.ids() == before and not page.shown("#picked")
    page.press("#open-add")
    drop(page, b"%PDF-1.7", "bill.pdf", "application/pdf")
    page.until(lambda: "“bill.pdf” is not a picture" in page.text("#add-problem"))
    page.press("#add [data-close]")


def test_more_like_this_and_like_this_but(page):
    page.want("image")
    page.search("magenta")
    page.press("#results .card:first-child .more")
    page.until(lambda: page.text("#like-name") == "magenta" and "magenta" not in page.ids())
    assert len(page.ids()) == 9
    assert page.text("#results .card:first-child .rank") == "1"
    page.browser.back()
    page.until(lambda: page.ids()[:1] == ["magenta"])
    page.press("#results .card:first-child .but")
    assert page.one("#q").get_attribute("placeholder") == "…but how?"
    assert page.search("yellow yellow yellow")[0] in ("yellow", "red", "white", "orange")
    assert "magenta" not in page.ids()


def test_fields_on_the_card(page):
    """Codes and metadata are on the cards only for those who choose them, and stay chosen."""
    page.want("image")
    page.search("red")
    assert not page.all("#results .chip") and not page.all("#results .facts")

    def choose(name: str) -> None:
        page.run(
            "[...document.querySelectorAll('#show-list label')]"
            ".find((one) => one.textContent === arguments[0]).click()",
            name,
        )

    for name in ("price", "Codes", "Name"):
        choose(name)
    first = "#results .card[data-id=red]"
    assert page.text(f"{first} .facts") == "price\n0" and not page.all(f"{first} .name")
    chips = page.all(f"{first} .chip")
    assert chips[0].text == "picture" and len(chips) == 5
    page.browser.refresh()
    page.until(lambda: page.all(f"{first} .facts") and page.all(f"{first} .chip"))


def test_how_sure_an_answer_is(page):
    page.want("image")
    page.search("red")
    sure = [one.text for one in page.all("#results .sure")]
    assert int(sure[0].removesuffix(" %")) >= 98  # by its colour, and as "red" is its name
    assert sure[-1].startswith("0.0") and not page.shown("#nearest")
    page.press("#options > summary")
    page.one("#at-least").send_keys("50")
    assert 1 <= len(page.search("red")) < 10 and not page.shown("#nearest")
    page.one("#at-least").clear()
    page.one("#at-least").send_keys("99.9")
    found = page.search("red")
    assert page.text("#nearest") == "Nothing close was found; the nearest are:" and found[0] == "red"


def test_the_similarity_is_shown_without_what_words_add(page, served):
    found = page.search("t/cyan")
    similar = {hit.id: hit.score for hit in served.engine.search("t/cyan", 31, hybrid=False)}
    assert found[0] == "t/cyan" and similar["t/cyan"] < max(similar.values()) <= 1
    page.press("#results .card:first-child .look")
    how = page.one("#detail-how").get_property("textContent")
    sure, _, rest = how.partition(" % sure · similarity ")
    assert int(sure.split()[-1]) >= 95 and rest.startswith(f"{similar['t/cyan']:.3f}")


def test_filters_and_facets(page):
    page.search("red")
    menu = "#facets details[data-field=tone]"
    page.until(lambda: page.all(menu), "the facet")
    page.run("arguments[0].open = true", page.one(menu))
    assert page.text(f"{menu} .panel").split("\n") == ["cold", "6", "warm", "4"]
    page.press(f"{menu} label:last-child input")
    page.until(lambda: sorted(page.ids()) == ["magenta", "orange", "red", "yellow"])
    assert page.text("#status") == "All 4, the best first" and page.text("#chosen") == "tone: warm×"

    def begin(field: str, value: str) -> None:
        page.run(
            "const one = document.querySelector(`[data-field=${arguments[0]}] [data-end=from]`);"
            "one.value = arguments[1]; one.dispatchEvent(new Event('change'))",
            field,
            value,
        )

    begin("price", "3")
    page.until(lambda: page.ids() and "red" not in page.ids() and len(page.ids()) == 3)
    begin("date", "2999-12-31")
    page.until(lambda: page.ids() == [] and "date from 2999-12-31" in page.text("#chosen"))
    begin("date", "")
    page.until(lambda: len(page.ids()) == 3)
    page.browser.refresh()
    page.until(lambda: len(page.ids()) == 3 and "price from 3" in page.text("#chosen"))
    page.one("#contains").send_keys("nothing has this\n")
    page.until(lambda: page.ids() == [] and "Nothing passes these filters" in page.text("#none"))
    page.press("#none button")
    page.until(lambda: len(page.ids()) == 24 and not page.shown("#none"))
    page.one("#contains").send_keys("BLUE\n")
    page.until(lambda: sorted(page.ids()) == ["blue", "p-blue", "t/blue"])
    page.press("#options > summary")
    page.one("#where").send_keys("price < \n")
    page.until(lambda: "In the filter" in page.text("#notice"))
    assert len(page.ids()) == 3, "what was found before stays"
    page.one("#contains").clear()
    page.one("#where").send_keys("1 and\n")
    page.until(lambda: page.text("#notice pre").splitlines()[0].strip() == "price <1 and")
    assert [line for line in page.console() if "422" not in line] == []


def test_the_viewer(page, files):
    page.want("image")
    found = page.search("green")
    page.press("#results .card:nth-child(2) .look")
    assert page.text("#detail-title") == found[1] and page.text("#detail-place") == "2 of 10"
    keys = page.browser.switch_to.active_element
    assert keys.get_attribute("id") == "detail-close"
    keys.send_keys("\ue014")  # right
    page.until(lambda: page.text("#detail-title") == found[2])
    page.press("#detail-before")
    page.press("#detail-before")
    page.until(lambda: page.text("#detail-title") == found[0] and not page.one("#detail-before").is_enabled())
    assert str(files["green"]) in page.text("#detail-meta")
    assert page.one("#detail-original").get_attribute("href").endswith("/v1/items/green/original")
    size = (
        "const done = arguments[0]; const image = new Image(); image.onload = () => done(image.naturalWidth);"
    )
    load = f"{size} image.src = document.getElementById('detail-original').href"
    assert page.browser.execute_async_script(load) == 64
    page.press("#detail-like")
    page.until(lambda: page.text("#like-name") == "green" and not page.shown("#detail"))


def test_the_viewer_goes_on_beyond_the_first_results(page):
    page.search("green")
    page.press("#results .card:nth-child(24) .look")
    page.press("#detail-next")
    page.until(lambda: page.text("#detail-place") == "25 of 31" and len(page.ids()) == 31)
    page.press("#detail-close")


def test_add_find_and_remove(page, kit, tmp_path):
    """Nobody has to think of an id; the same content again is the same item."""
    file = tmp_path / "teal.png"
    file.write_bytes(kit.picture("teal"))
    for said in ("Added “teal.png”", "“teal.png” was there already"):
        page.press("#open-add")
        page.one("#add-file").send_keys(str(file))
        page.one("#add-text").send_keys("quite new")
        page.press("#add-form [type=submit]")
        page.until(lambda said=said: said in page.text("#toast"))
        page.until(lambda: "32 items" in page.text("#count-text"))
    page.want("pair")
    added = page.search("quite new")[0]
    assert page.text("#results .card:first-child .caption") == "quite new"
    page.press("#results .card:first-child .remove")
    assert page.ids()[0] == added, "it asks first"
    page.press("#results .card:first-child .remove")
    page.until(lambda: added not in page.ids() and "31 items" in page.text("#count-text"))
    assert added not in page.search("quite new indeed")


def test_markup_in_a_caption_is_shown_as_text(page, kit):
    """Fault 31."""
    page.want("pair")
    page.search("orange strange caption")
    page.until(lambda: page.text("#results .card[data-id=markup] .caption") == kit.MARKUP)
    page.press("#results .card[data-id=markup] .look")
    page.until(lambda: page.shown("#detail"))
    assert page.text("#detail-text") == kit.MARKUP
    page.press("#detail-close")
    assert page.browser.title == "genius" and not page.all("#results img[src=x]")


def test_the_tree_of_codes(page):
    page.press("a[data-view=codes]")
    page.until(lambda: len(page.all(".tile")) == 3)
    assert "31 items" in page.text("#branch-status")
    page.press(".tile[data-name=pictures]")
    page.until(lambda: "10 items" in page.text("#branch-status") and len(page.ids("#branch-items")) == 10)
    page.press("#branch-items .card[data-id=red] .look")
    page.run("document.querySelector('#detail details').open = true")
    page.press("#detail-how .chip:last-child")
    page.until(lambda: page.ids("#branch-items") == ["red"] and not page.shown("#detail"))
    assert len(page.all("#trail .chip")) == 5


def test_keys_are_enough(page):
    body = page.one("body")
    page.run("document.activeElement.blur()")
    body.send_keys("/")
    active = page.browser.switch_to.active_element
    assert active.get_attribute("id") == "q" and active.get_attribute("value") == ""
    page.search("cyan")
    page.one("#q").send_keys("\ue015")  # down
    page.browser.switch_to.active_element.send_keys("\ue014")
    focused = page.browser.switch_to.active_element
    assert focused.get_attribute("data-id") == page.ids()[1]
    focused.send_keys("\ue007")
    page.until(lambda: page.shown("#detail"))
    page.browser.switch_to.active_element.send_keys("\ue00c")  # escape
    page.until(lambda: not page.shown("#detail"))
    page.run("document.querySelector('#show > summary').focus()")
    page.browser.switch_to.active_element.send_keys(" ")
    page.until(lambda: page.shown("#show-list"))
    page.browser.switch_to.active_element.send_keys("\ue00c")
    page.until(lambda: not page.shown("#show-list"))
    page.run("document.querySelectorAll('#results .card')[1].focus()")
    page.browser.switch_to.active_element.send_keys("m")
    page.until(lambda: page.text("#like-name") != "")


def test_the_passage_of_a_long_text_is_shown(page, served):
    text = "🍎 Nothing of note here. " * 3 + "A plum tree stands there."
    start = text.index("A plum")
    hit = {
        "id": "long",
        "text": text,
        "span": [start, len(text)],
        "codes": [1],
        "meta": {},
        "modality": "text",
    }
    show = "import('/page/parts.js').then((parts) => arguments[1](parts.textAround(arguments[0])))"
    before, found, after = page.browser.execute_async_script(show, hit)
    assert (before, found, after) == (text[:start], "A plum tree stands there.", "")
