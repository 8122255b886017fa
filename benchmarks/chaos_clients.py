"""Clients of a server that behave badly, and pictures that cost more than they look, for chaos.py."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import struct
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

from PIL import Image

SIDE = 5600  # pixels; 31 megapixels are just below the server's default limit


def progressive_jpeg(scans: int = 400) -> bytes:
    """A progressive JPEG whose last scan comes again and again; each costs a pass over all pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), "gray").save(buffer, "JPEG", progressive=True, quality=10)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def rle_bitmap() -> bytes:
    """A BMP of run lengths: a few bytes a row."""
    row = b"".join(bytes((min(255, SIDE - start), 7)) for start in range(0, SIDE, 255)) + b"\0\0"
    pixels = row * SIDE + b"\0\1"
    palette = bytes(range(256)) * 4
    head = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 8, 1, len(pixels), 2835, 2835, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + 1024 + len(pixels), 0, 0, 54 + 1024) + head + palette + pixels


def large_png() -> bytes:
    """31 megapixels with an alpha channel in a small file."""
    buffer = io.BytesIO()
    Image.new("RGBA", (SIDE, SIDE), (1, 2, 3, 128)).save(buffer, "PNG", compress_level=9)
    return buffer.getvalue()


class BadClients:
    """What strangers and broken programs do to a server; each method is one of them, and ends by itself."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key
        self.pictures = [make() for make in (progressive_jpeg, rle_bitmap, large_png)]

    def never_read(self, chance: random.Random) -> None:
        """Ask for long answers over many connections and read none of them."""
        lines = [self._connect() for _ in range(12)]
        for line in lines:
            with suppress(OSError):
                line.settimeout(1)
                line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
        time.sleep(chance.uniform(1, 8))
        self._hang_up(lines)

    def upload_slowly(self, chance: random.Random) -> None:
        """Promise a body and send it byte by byte."""
        lines = [self._connect() for _ in range(6)]
        for _ in range(int(chance.uniform(2, 16))):
            for line in lines:
                with suppress(OSError):
                    line.sendall(b"x" if _ else self._head(1_000_000))
            time.sleep(0.5)
        self._hang_up(lines)

    def leave(self, chance: random.Random) -> None:
        """Go away in the middle of a request, or before its answer comes."""
        body = json.dumps({"text": "red", "limit": 200, "beam": 500}).encode()
        for _ in range(20):
            line = self._connect()
            with suppress(OSError):
                line.sendall((self._head(len(body)) + body)[: chance.randrange(1, 200) * 3])
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            self._hang_up([line])

    def talk_nonsense(self, chance: random.Random) -> None:
        """Bytes that are no request, and requests that are wrong."""
        wrong = [
            chance.randbytes(300),
            b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
            b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
            b"GET /v1/items/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: x\r\n\r\n",
            self._head(10) + b"{" * 10,
            self._head(10**10),
        ]
        for data in wrong:
            line = self._connect()
            with suppress(OSError):
                line.settimeout(2)
                line.sendall(data)
                line.recv(4096)
            self._hang_up([line])

    def send_costly_pictures(self, chance: random.Random) -> None:
        """Search with pictures that take long to decode; whatever the answer, it must come."""
        body = json.dumps({"image": base64.b64encode(chance.choice(self.pictures)).decode()}).encode()
        for _ in range(2):
            connection = HTTPConnection("127.0.0.1", self.port, timeout=90)
            with suppress(OSError, HTTPException):
                headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
                connection.request("POST", "/v1/search", body, headers)
                if chance.random() < 0.5:
                    connection.getresponse().read()
            connection.close()

    def _head(self, length: int) -> bytes:
        return (
            f"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def _connect(self) -> socket.socket:
        line = socket.socket()
        with suppress(OSError):
            line.settimeout(5)
            line.connect(("127.0.0.1", self.port))
        return line

    @staticmethod
    def _hang_up(lines: list[socket.socket]) -> None:
        for line in lines:
            with suppress(OSError):
                line.close()
