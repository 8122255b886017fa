"""Tables of other programs: their columns, delimiters, encodings; and images of the web."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from genius.data import urls
from genius.data.columns import parse_columns
from genius.data.report import Report
from genius.data.rows import TableOptions
from genius.data.tables import read_items
from genius.errors import BadData, BadImage, BadInput, MissingImage
from genius.types import Item

SHOP = TableOptions(columns=parse_columns("id=sku,text=title, description"))


def test_columns_as_they_are_written() -> None:
    written = "id=sku,text=title, description,image=image_url"
    assert parse_columns(written) == {
        "id": ["sku"],
        "text": ["title", "description"],
        "image": ["image_url"],
    }
    for bad in ("sku", "id=", "key=sku", "id=a,id=b"):
        with pytest.raises(BadInput, match="columns"):
            parse_columns(bad)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_columns_become_what_they_are_called(tmp_path: Path, suffix: str) -> None:
    row = {"SKU": "7", "Title": "Sofa", "description": "grey", "brand": "x"}
    file = tmp_path / f"shop.{suffix}"
    lines = {
        "csv": ",".join(row) + "\n" + ",".join(row.values()),
        "jsonl": json.dumps(row),
        "json": json.dumps({"count": 1, "rows": [row]}),
    }
    file.write_text(lines[suffix])
    assert list(read_items(file, options=SHOP)) == [Item("7", None, "Sofa. grey", {"brand": "x"})]
    chosen = TableOptions(columns=parse_columns("id=SKU,text=title,meta=brand"))
    assert list(read_items(file, options=chosen)) == [Item("7", None, "Sofa", {"brand": "x"})]


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("sku,name\n1,x\n")
    with pytest.raises(BadInput, match="has no column 'title': it has sku, name"):
        list(read_items(tmp_path / "shop.csv", options=SHOP))


def test_delimiters_are_guessed_and_said(tmp_path: Path) -> None:
    file = tmp_path / "shop.csv"
    file.write_text("id;text\na;one, two\n")
    report = Report()
    assert list(read_items(file, report=report)) == [Item("a", None, "one, two")]
    assert "separated by ';'" in report.said[0]
    file.write_text("id;text;note\na;b|c;d\n")
    options = TableOptions(delimiter="|", columns={"id": ["id;text;note"], "text": ["id;text;note"]})
    assert [item.id for item in read_items(file, options=options)] == []  # a row has more cells than columns
    with pytest.raises(BadInput, match="one character, or tab"):
        list(read_items(file, options=TableOptions(delimiter="::")))
    file.write_text('id;"text, in German";note\na;b;c\n')
    assert [
        item.meta for item in read_items(file, options=TableOptions(columns={"id": ["id"], "text": ["note"]}))
    ] == [{"text, in German": "b"}]
    file.write_text("id\ttext\na\tb\n")
    assert list(read_items(file, options=TableOptions(delimiter="tab"))) == [Item("a", None, "b")]


PRICES = """sku;title;price;stock;size;rating;phone
A-1,5;Lamp 1,5 m;1.816,10;1.200;2,5;4.5;040 123 456
A-2;Desk;49,90;12;12 cm;3.75;030.555.1
A-3;Rug;-1 234,5;;1,234;4;007
"""


def test_decimal_commas_are_guessed_and_said(tmp_path: Path) -> None:
    """Of metadata alone; a column with decimal points keeps them, and what is no number stays."""
    (tmp_path / "shop.csv").write_text(PRICES)
    report = Report()
    options = TableOptions(columns=parse_columns("id=sku,text=title"))
    first, second, third = read_items(tmp_path / "shop.csv", report=report, options=options)
    assert (first.id, first.text) == ("A-1,5", "Lamp 1,5 m")
    assert first.meta == {
        "price": "1816.10", "stock": "1200", "size": "2.5", "rating": "4.5", "phone": "040 123 456"
    }  # fmt: skip
    assert second.meta == {
        "price": "49.90",
        "stock": "12",
        "size": "12 cm",
        "rating": "3.75",
        "phone": "030.555.1",
    }
    assert third.meta == {"price": "-1234.5", "size": "1.234", "rating": "4", "phone": "007"}
    assert "1.816,10 is read with a decimal comma; --decimal ." in report.said[-1]


def test_decimal_points_need_no_guess(tmp_path: Path) -> None:
    file = tmp_path / "shop.csv"
    file.write_text('id,text,price,views\na,x,"1,816.10","1,234"\nb,y,3.50,7\n')
    report = Report()
    assert [item.meta for item in read_items(file, report=report)] == [
        {"price": "1816.10", "views": "1,234"}, {"price": "3.50", "views": "7"}
    ]  # fmt: skip
    assert report.said == []
    file.write_text("id;text;price\na;x;1,50\nb;y;3.50\n")
    assert [item.meta["price"] for item in read_items(file, report=report)] == ["1,50", "3.50"]
    assert "column price have a decimal comma, others a point" in report.said[-1]
    for decimal, prices in ((",", ["1.50", "3.50"]), (".", ["1,50", "3.50"])):
        options = TableOptions(decimal=decimal)
        assert [item.meta["price"] for item in read_items(file, options=options)] == prices
    file.write_text("id;text;price\na;x;1,234\n")
    assert [item.meta["price"] for item in read_items(file)] == ["1,234"], "nothing tells what it is"
    for decimal, price in ((",", "1.234"), (".", "1234")):
        (item,) = read_items(file, options=TableOptions(decimal=decimal))
        assert item.meta["price"] == price
    with pytest.raises(BadInput, match=r"use \. or ,"):
        list(read_items(file, options=TableOptions(decimal=";")))


def test_encodings_are_guessed_and_said(tmp_path: Path) -> None:
    file = tmp_path / "shop.csv"
    for encoding, said in (("cp1252", "read as cp1252"), ("utf-16", "read as utf-16"), ("utf-8", "")):
        file.write_bytes("id,text\na,Größe\nb,plain\n".encode(encoding))
        report = Report()
        assert [item.text for item in read_items(file, report=report)] == ["Größe", "plain"]
        assert said in " ".join(report.said) and bool(report.said) == bool(said)
    file.write_bytes("id,text\na,тест\n".encode("cp1251"))
    options = TableOptions(encoding="cp1251")
    assert [item.text for item in read_items(file, options=options)] == ["тест"]
    with pytest.raises(BadInput, match="unknown encoding"):
        list(read_items(file, options=TableOptions(encoding="nonsense")))


def test_letters_that_are_lost_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "shop.csv"
    file.write_bytes("id,text\na,Größe\n".encode() + b"b,bro\xffken\n")
    report = Report()
    assert [item.text for item in read_items(file, report=report)] == ["Größe", "bro\ufffdken"]
    assert report.notes[0] == (f"{file}:3", "characters could not be read and were replaced")


def test_json_and_spreadsheets(tmp_path: Path) -> None:
    file = tmp_path / "shop.json"
    file.write_text('[{"id": 1, "text": "a"}, 5, {"id": 2}]')
    report = Report()
    assert [item.id for item in read_items(file, report=report)] == ["1"]
    assert [name for name, _ in report.names] == [f"{file}:2", f"{file}:3"]
    for bad in ("{", "3"):
        file.write_text(bad)
        with pytest.raises(BadData):
            list(read_items(file))
    (tmp_path / "shop.xlsx").write_bytes(b"PK")
    with pytest.raises(BadInput, match="save it as CSV"):
        read_items(tmp_path / "shop.xlsx")


# --- images of the web: fault 29 --------------------------------------------------------------------------


def test_urls_are_left_alone_unless_they_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    file.write_text(
        '{"id": 1, "image": "https://x.test/a.jpg"}\n{"id": 2, "image": "http://x/b", "text": "t"}'
    )
    report = Report()
    assert [item.id for item in read_items(file, report=report)] == ["2"]
    assert "--allow-urls" in report.names[0].reason
    allowed = list(read_items(file, options=TableOptions(allow_urls=True)))
    assert allowed[0].image == "https://x.test/a.jpg"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1%eth0", "fd00::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "100.64.0.1"],
)  # fmt: skip
def test_addresses_that_are_never_asked(address: str) -> None:
    assert not urls.is_public(address)
    assert urls.is_public("93.184.216.34") and urls.is_public("2606:2800:220:1::1")


class Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/here")
            self.end_headers()
        elif self.path == "/here?x=1":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"picture")
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_private_address_is_asked(web: str) -> None:
    with pytest.raises(BadImage, match="private network"):
        urls.fetch_image(f"{web}/here?x=1")
    with pytest.raises(BadImage, match="not an address"):
        urls.fetch_image("http://user:word@example.org/x")


def test_no_redirect_is_followed_and_nothing_endless_read(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "is_public", lambda address: True)
    monkeypatch.setattr(urls, "MAX_BYTES", 4000)
    assert urls.fetch_image(f"{web}/here?x=1") == b"picture"
    for path, why in (("moved", "leads elsewhere"), ("endless", "more than")):
        with pytest.raises(BadImage, match=why):
            urls.fetch_image(f"{web}/{path}")
    with pytest.raises(MissingImage):
        urls.fetch_image(f"{web}/nothing")
