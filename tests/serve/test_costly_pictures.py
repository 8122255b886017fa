"""Fault 46: small pictures that are costly to decode: bounded, each and together; others are served."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import struct
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from genius import Client, Item, Query
from genius.client import ServerError
from genius.data.images import open_image
from genius.data.isolated import SMALL, ImageProcess, open_in_time
from genius.errors import BadImage, BadInput
from genius.serve.decoding import ImageDecoder
from genius.serve.limits import MB, Limits


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again: 10 s for 200 KB."""
    data = encoded(Image.new("RGB", (side, side), "grey"), "JPEG", progressive=True, quality=50)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def run_lengths(side: int) -> bytes:
    """A BMP with one pixel in each row: the rest is filled up byte by byte, in Python."""
    body = b"\x01\x07\x00\x00" * side + b"\x00\x01"
    start = 14 + 40 + 1024
    head = struct.pack("<IHHI", start + len(body), 0, 0, start)
    about = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + head + about + bytes(1024) + body


def many_chunks(count: int) -> bytes:
    """A PNG whose header does not tell what it costs: 4 s for a million of empty chunks."""
    plain = encoded(Image.new("RGB", (4, 4)), "PNG")
    chunk = struct.pack(">I", 0) + b"abCd" + struct.pack(">I", zlib.crc32(b"abCd"))
    return plain[:33] + chunk * count + plain[33:]


def searching(live, data: bytes, wait: float = 30.0) -> socket.socket:
    """A connection on which a search with this picture was sent."""
    body = json.dumps({"image": base64.b64encode(data).decode()}).encode()
    line = socket.create_connection((live.host, live.port), timeout=wait)
    head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return line


def waiting_pictures(live) -> int:
    return live.server.config.app.state.backend._decoder._waiting


# --- refused from the header, on the command line as on the server ----------------------------------------


@pytest.mark.parametrize(
    ("make", "why"), [(partial(many_scans, 5600, 500), "scans"), (partial(run_lengths, 5600), "run-length")]
)
def test_what_costs_far_more_than_its_size_is_refused(engine, tmp_path, make, why):
    data = make()
    assert len(data) < 250_000
    began = time.process_time()
    with pytest.raises(BadImage, match=why):
        open_image(data)
    file = tmp_path / "picture"
    file.write_bytes(data)
    added = engine.add([Item("costly", image=file), Item("fine", text="a text")])
    assert added.added == 1 and why in added.skipped[0].reason
    with pytest.raises(BadInput, match=why):
        engine.search(Query(image=file))
    assert time.process_time() - began < 1.0


def test_ordinary_progressive_and_run_length_pictures_are_decoded():
    photo = Image.effect_noise((2000, 1500), 60).convert("RGB")
    assert open_image(encoded(photo, "JPEG", progressive=True), at_least=448).width >= 448
    assert open_image(many_scans(500, 100)).size == (500, 500)
    assert open_image(run_lengths(1000)).size == (1000, 1000)


def test_a_large_file_has_a_limit_of_time_where_no_server_is(engine, kit, tmp_path, monkeypatch):
    """Its header tells nothing; it is skipped, and the next one is what it would be without the limit."""
    noise = encoded(Image.effect_noise((1500, 900), 90).convert("RGB"), "PNG")
    assert len(noise) > SMALL
    monkeypatch.setattr("genius.ingest.item.open_in_time", partial(open_in_time, seconds=0.5))
    for name, data in (("costly.png", many_chunks(1_000_000)), ("noise.png", noise)):
        (tmp_path / name).write_bytes(data)
    added = engine.add([Item(name, image=tmp_path / name) for name in ("costly.png", "noise.png")])
    assert added.added == 1 and "not decoded within 0.5 s" in added.skipped[0].reason
    assert open_in_time(noise, 448).tobytes() == open_image(noise, at_least=448).tobytes()
    assert open_in_time(kit.picture("red"), 448).size == (64, 48)  # a small one


# --- in a process with limits -----------------------------------------------------------------------------


def test_a_process_decodes_as_open_image_does(kit):
    process = ImageProcess()
    try:
        data = encoded(Image.effect_noise((300, 200), 80).convert("RGB"), "PNG")
        assert process.decode(data, 1024).tobytes() == open_image(data).tobytes()
        with pytest.raises(BadImage, match="not one of JPEG"):
            process.decode(b"no picture", 1024)
        assert process.decode(data, 100).size == (100, 67)
    finally:
        process.close()


def test_a_process_that_takes_too_long_or_dies_costs_one_picture(kit):
    process = ImageProcess()
    try:
        began = time.monotonic()
        with pytest.raises(BadImage, match=r"within 0\.5 s"):
            process.decode(many_chunks(1_000_000), 1024, seconds=0.5)
        assert time.monotonic() - began < 5.0
        assert process.decode(kit.picture("red"), 1024).size == (64, 48)
        process.kill()
        assert process.decode(kit.picture("red"), 1024).size == (64, 48)
    finally:
        process.close()


def test_a_picture_that_needs_too_much_memory_is_refused(kit):
    process = ImageProcess(memory=300 * MB)
    try:
        with pytest.raises(BadImage, match="too large"):
            process.decode(encoded(Image.new("RGBA", (7900, 7900)), "PNG", compress_level=1), 1024)
        assert process.decode(kit.picture("red"), 1024).size == (64, 48)
    finally:
        process.close()


# --- on the server ----------------------------------------------------------------------------------------


def test_a_picture_over_its_time_is_refused_while_others_are_served(serving, kit):
    with serving(Limits(decode_s=1.0)) as live, Client(live.url) as client:
        with searching(live, many_chunks(1_000_000)) as line:
            slowest = 0.0
            while waiting_pictures(live) or slowest == 0.0:
                began = time.monotonic()
                assert client.search("red", want="image")[0].id == "red"
                slowest = max(slowest, time.monotonic() - began)
            status, _, body = kit.answer(line)
        assert status == 422 and "within 1 s" in json.loads(body)["detail"]
        assert slowest < 3.0  # it takes milliseconds, but the machine may be busy
        assert client.search(Query(image=kit.picture("red")), want="image")[0].id == "red"


def test_the_time_of_a_search_includes_its_picture(serving, kit):
    with serving(Limits(search_s=0.5, decode_s=30.0)) as live:
        began = time.monotonic()
        with searching(live, many_chunks(1_500_000)) as line:
            status, _, body = kit.answer(line)
        assert status == 503 and "0.5 s" in json.loads(body)["detail"]
        assert time.monotonic() - began < 4.0


def test_the_picture_of_a_client_that_leaves_is_given_up(serving, kit):
    with serving(Limits(decoders=1, decode_s=60.0, search_s=60.0)) as live, Client(live.url) as client:
        line = searching(live, many_chunks(1_800_000))
        kit.wait_until(lambda: waiting_pictures(live) == 1)
        line.close()
        began = time.monotonic()
        assert client.search(Query(image=kit.picture("red")), want="image")[0].id == "red"
        assert time.monotonic() - began < 6.0


def test_pictures_wait_in_a_bounded_queue(serving, kit):
    with serving(Limits(decoders=1, waiting=3, decode_s=60.0, search_s=60.0)) as live:
        lines = [searching(live, many_chunks(1_000_000)) for _ in range(3)]
        kit.wait_until(lambda: waiting_pictures(live) == 3)
        with searching(live, kit.picture("red")) as line:
            assert kit.answer(line)[0] == 429
        for line in lines:
            line.close()
        kit.wait_until(lambda: waiting_pictures(live) == 0)


def test_items_with_costly_pictures_cost_only_themselves(serving, kit):
    with serving(Limits(decode_s=1.0)) as live, Client(live.url) as client:
        pictures = {
            "scans": many_scans(5600, 500),
            "chunks": many_chunks(1_000_000),
            "fine": kit.picture("red"),
        }
        added = client.add([Item(id, image=data) for id, data in pictures.items()])
        assert added.added == 1 and {name for name, _ in added.skipped} == {"scans", "chunks"}
    with serving(Limits(decode_s=1.0, decode_all_s=0.5)) as live, Client(live.url) as client:
        with pytest.raises(ServerError, match="send fewer"):
            client.add([Item(f"c{n}", image=many_chunks(600_000)) for n in range(2)])
        assert client.get("c0") is None


def resident(live) -> int:
    """Bytes of this process and of those that decode."""
    pids = {os.getpid()}
    for one in live.server.config.app.state.backend._decoder._all:
        if one._process is not None:
            pids.add(one._process.pid)
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended
            continue
    return total


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_large_pictures_together_take_bounded_memory(serving, kit):
    data = encoded(Image.new("RGBA", (5600, 5600), (10, 20, 30, 40)), "PNG")  # 31 megapixels in 130 KB
    limits = Limits(search_s=300.0, decode_s=30.0)
    with serving(limits) as live, ThreadPoolExecutor(8) as some, Client(live.url, timeout=300) as client:
        client.search(Query(image=kit.picture("red")))
        before = peak = resident(live)
        asked = [some.submit(client.search, Query(image=data), k=1) for _ in range(8)]
        while not all(one.done() for one in asked):
            peak = max(peak, resident(live))
            time.sleep(0.02)
        assert all(one.result() for one in asked)
    assert peak - before < 700 * MB  # 1.2 GB when each request decoded its own


def test_bodies_take_no_more_than_what_is_counted(engine, serving, kit):
    """Searches with large pictures wait; what they hold is about what the cap on held bytes counts."""
    gate, original = threading.Event(), engine.results
    picture = kit.picture("red") + bytes(6 * MB)  # what follows the end of a PNG is ignored
    with serving(Limits(body=16 * MB, search_s=120.0, upload_s=120.0)) as live:
        engine.results = lambda *args, **options: gate.wait(100) and original(*args, **options)
        metrics = live.server.config.app.state.backend.metrics
        with searching(live, kit.picture("red")):  # keeps the search thread busy
            kit.wait_until(lambda: metrics.active._value.get() == 1)
            tracemalloc.start()
            try:
                lines = [searching(live, picture) for _ in range(6)]
                kit.wait_until(lambda: metrics.waiting._value.get() >= 6)
                now, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            counted = metrics.held._value.get()
            gate.set()
            assert [kit.answer(line)[0] for line in lines] == [200] * 6
            for line in lines:
                line.close()
    assert counted > 6 * 8 * MB
    assert now < 1.1 * counted


def test_pictures_that_come_one_by_one_need_one_process(kit, monkeypatch):
    started = []
    begin = ImageProcess._started
    monkeypatch.setattr(ImageProcess, "_started", lambda self: started.append(self) or begin(self))

    async def decode() -> None:
        decoder = ImageDecoder(processes=3, waiting=3, seconds=5.0)
        try:
            for colour in ("red", "blue"):
                assert (await decoder.decode(kit.picture(colour))).size == (64, 48)
        finally:
            decoder.close()

    asyncio.run(decode())
    assert len(started) == 2 and len(set(started)) == 1
