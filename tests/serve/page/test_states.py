"""What the page says when there is nothing, when a key is needed, and when the server is slow or gone."""

from __future__ import annotations

import pytest

from genius import Item
from genius.engine import Engine

pytestmark = pytest.mark.xdist_group("browser")
KEY = "a-key-of-some-length"
# fetch fails, never ends, or works again; timers run faster meanwhile
BREAK = """
window.realFetch ??= window.fetch;
window.realTimeout ??= window.setTimeout;
window.setTimeout = (work, ms) => realTimeout(work, ms / 30);
window.fetch = {
  gone: () => Promise.reject(new TypeError("Failed to fetch")),
  slow: (_, {signal}) => new Promise((_, fail) => { signal.onabort = () => fail(signal.reason); }),
  busy: () => Promise.resolve(new Response('{"detail": "the server is loading"}', {status: 503})),
  fine: (...all) => realFetch(...all),
}[arguments[0]];
"""


def test_results_stay_while_the_server_is_gone(page):
    before = page.search("red")
    page.run(BREAK, "gone")
    page.one("#q").send_keys(" and green\n")
    page.until(lambda: "The server cannot be reached" in page.text("#notice"))
    assert page.ids() == before and "found before" in page.text("#notice")
    page.until(lambda: page.text("#count-text") == "not connected")
    page.run(BREAK, "fine")
    page.until(lambda: not page.shown("#notice") and "31 items" in page.text("#count-text"))
    assert page.ids() != before, "it asks again by itself"


def test_a_slow_answer_can_be_asked_for_again(page):
    before = page.search("red")
    page.run(BREAK, "slow")
    page.one("#q").send_keys(" and green\n")
    page.until(lambda: page.all("#form.busy") and page.text("#searching") == "Searching …")
    page.until(lambda: "longer than usual" in page.text("#notice") and page.ids() == before)
    page.until(lambda: "takes too long" in page.text("#notice") and not page.all("#form.busy"))
    page.run(BREAK, "busy")
    page.press("#notice button")
    page.until(lambda: "The server is loading" in page.text("#notice") and page.ids() == before)
    page.run(BREAK, "fine")
    page.press("#notice button")
    page.until(lambda: not page.shown("#notice") and page.ids() != before)


def test_a_stored_item_that_is_gone(page):
    page.open("/#/search?like=never-there")
    page.until(lambda: "No item has this id" in page.text("#notice"))
    assert not page.all("#notice button"), "asking again would not help"
    assert [line for line in page.console() if "404" not in line] == []


def test_an_empty_collection_asks_for_a_first_item(page_of, tmp_path, fake, module_kit):
    with Engine.create(tmp_path / "none", fake.FakeModel()) as engine, module_kit.live(engine) as running:
        page = page_of(running.url)
        page.until(lambda: page.shown("#empty") and "0 items" in page.text("#count-text"))
        assert not page.one("input[name=want][value=pair]").is_enabled()
        page.search("anything")
        page.until(lambda: "There is nothing to find yet" in page.text("#none"))
        page.press("#none button")
        page.press("#add-form [type=submit]")
        assert page.text("#add-problem") == "Give a picture, a text, or both."
        page.one("#add-text").send_keys("the first one")
        page.press("#add-form [type=submit]")
        page.until(lambda: "1 item" in page.text("#count-text") and not page.shown("#empty"))
        assert len(page.search("first")) == 1 and page.text("#status") == "1 found"
        page.open("/#/search?q=first&want=image")
        page.until(lambda: "There are no pictures to find" in page.text("#none"))
        assert page.console() == []


def test_a_picture_that_is_gone_is_said_to_be(page_of, tmp_path, fake, module_kit):
    file = tmp_path / "red.png"
    file.write_bytes(module_kit.picture("red"))
    with Engine.create(tmp_path / "index", fake.FakeModel()) as engine:
        engine.add([Item("red", image=file)])
        file.unlink()
        with module_kit.live(engine) as running:
            page = page_of(running.url)
            assert page.search("red") == ["red"]
            page.until(lambda: page.all("#results .look.gone"))
            assert page.all("#results .look.gone img")[0].is_displayed() is False
            page.press("#results .look")
            page.until(lambda: "moved or deleted" in page.text("#detail-problem"))
            assert [line for line in page.console() if "404" not in line] == []


def test_when_the_codes_were_fitted(page_of, tmp_path, module_kit):
    with Engine.create(tmp_path / "index") as engine:
        engine.add(Item(f"t{n}", text=f"{word} number {n}") for n, word in enumerate(["red", "blue"] * 20))
        engine.fit()
        with module_kit.live(engine) as running:
            page = page_of(running.url)
            page.search("red")
            page.press("#how summary")
            page.until(lambda: "codes fitted on" in page.text("#how-text"))
            assert "to 40 items" in page.text("#how-text")


def test_with_a_key(page_of, engine, module_kit):
    with module_kit.live(engine, key=KEY) as running:
        page = page_of(running.url)
        page.until(lambda: page.shown("#key"))
        page.one("#key-value").send_keys(KEY, "\ue007")
        page.until(lambda: "31 items" in page.text("#count-text"))
        page.want("image")
        assert page.search("red")[0] == "red" and not page.shown("#nearest")
        script = "return document.querySelector('#results img').naturalWidth"
        page.until(lambda: page.run(script) > 0)
        page.press("#results .look")
        page.until(lambda: page.shown("#detail"))
        assert not page.shown("#detail-original"), "a server with a key shows no files"
        assert [line for line in page.console() if "401" not in line] == []


def test_the_interface_can_be_tried(page_of, engine, module_kit):
    """/docs: every route of the document, with a form that sends a real request; nothing from elsewhere."""
    with module_kit.live(engine, key=KEY) as running:
        page = page_of(f"{running.url}/docs")
        page.until(lambda: len(page.all("details")) > 9, "the routes")

        def send(number: int) -> str:
            block = f"details:nth-of-type({number + 1})"
            page.run("arguments[0].open = true", page.one(block))
            page.press(f"{block} form button")
            page.until(lambda: page.all(f"{block} .answer pre"), "an answer")
            return page.text(f"{block} .answer")

        routes = [" ".join(one.text.split("\n")[:2]) for one in page.all("summary")]
        search = routes.index("POST /v1/search")
        assert "401" in send(search)
        page.one("#key").send_keys(KEY)
        send(search)
        page.until(lambda: '"hits"' in page.text(f"details:nth-of-type({search + 1}) .answer"))
        thumbnail = routes.index("GET /v1/items/{id}/thumbnail")
        page.run("arguments[0].open = true", page.one(f"details:nth-of-type({thumbnail + 1})"))
        page.one(f"details:nth-of-type({thumbnail + 1}) input[name=id]").send_keys("red")
        send(thumbnail)
        page.until(lambda: page.all(f"details:nth-of-type({thumbnail + 1}) .answer img"), "a picture")
        page.run("sessionStorage.clear()")
        assert [line for line in page.console() if "SEVERE" in line and "401" not in line] == []
