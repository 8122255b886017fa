"""Images of the web, fetched only where that is switched on.

No private, loopback or link-local address is asked, no redirect followed, no endless answer read. The address
that was checked is the one that is connected to, whatever the name server says a moment later.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import time
from contextlib import closing
from urllib.parse import urlsplit

from genius.data.report import printable
from genius.errors import BadImage, MissingImage

MAX_BYTES = 32 * 2**20  # of one image
CONNECT_S = 10.0
TOTAL_S = 30.0
NOT_FETCHED = "images of the web are fetched only with --allow-urls"
_URL = re.compile(r"https?://", re.IGNORECASE)
_PIECE = 1 << 16
_TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "2002::/16", "2001::/32")))  # hold an IPv4 one


def is_url(name: object) -> bool:
    """Whether `name` is an address of the web."""
    return isinstance(name, str) and _URL.match(name) is not None


def fetch_image(url: str) -> bytes:
    """The bytes at `url`; raises BadImage with the reason, MissingImage if nothing is there."""
    shown = printable(url)
    try:
        return _fetch(url)
    except BadImage as error:
        raise type(error)(f"{shown}: {error}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BadImage(f"{shown}: cannot be fetched ({printable(error)})") from None


def _fetch(url: str) -> bytes:
    end = time.monotonic() + TOTAL_S
    parts = urlsplit(url)
    secure = parts.scheme.lower() == "https"
    if not parts.hostname or parts.username is not None:
        raise BadImage("not an address of an image")
    host = parts.hostname.encode("idna").decode()
    port = parts.port or (443 if secure else 80)
    with closing(http.client.HTTPConnection(host, port, timeout=CONNECT_S)) as connection:
        connection.sock = _connected(host, port, secure)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "genius"})
        response = connection.getresponse()
        if response.status in (404, 410):
            raise MissingImage("no image there")
        if 300 <= response.status < 400:
            raise BadImage("it leads elsewhere: give the address that it leads to")
        if response.status != 200:
            raise BadImage(f"the server answered {response.status}")
        data = bytearray()
        while piece := response.read(_PIECE):
            data += piece
            if len(data) > MAX_BYTES:
                raise BadImage(f"more than {MAX_BYTES >> 20} MB")
            if time.monotonic() > end:
                raise BadImage(f"not here within {TOTAL_S:g} s")
        return bytes(data)


def _connected(host: str, port: int, secure: bool) -> socket.socket:
    """A connection to `host`, all of whose addresses are public ones."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if not is_public(address):
            raise BadImage("an address of this machine or of a private network is not asked")
    line = socket.create_connection((found[0], port), timeout=CONNECT_S)
    if not secure:
        return line
    try:
        return ssl.create_default_context().wrap_socket(line, server_hostname=host)
    except BaseException:
        line.close()
        raise


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet."""
    place = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(place, ipaddress.IPv6Address) and place.ipv4_mapped is not None:
        place = place.ipv4_mapped
    inside = any(place.version == network.version and place in network for network in _TRANSLATED)
    return place.is_global and not place.is_multicast and not inside
