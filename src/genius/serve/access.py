"""Access control: host names the server answers to, sites whose pages may use the API, and the key."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from genius.errors import BadInput

HEALTH_ROUTES = ("/healthz", "/readyz")
OPEN_ROUTES = (*HEALTH_ROUTES, "/", "/docs", "/openapi.json")  # need no key: they tell nothing of the index
OPEN_FOLDER = "/page/"
SHORTEST_KEY = 16
_OWN_SITE = ("same-origin", "none")  # Sec-Fetch-Site of our own page, and of an address that was typed


class Refusal(NamedTuple):
    """Why a request is not let in."""

    status: int
    reason: str  # one word, for the metrics
    detail: str


def is_loopback(host: str) -> bool:
    """Whether only this very machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(host: str, key: str | None) -> None:
    """Refuse to be reachable by others without a key, or with one that can be guessed."""
    if key is None:
        if not is_loopback(host):
            raise BadInput(
                f"{host} can be reached from other machines: set a key (environment variable GENIUS_KEY, "
                f"{SHORTEST_KEY} characters or more), or listen on 127.0.0.1"
            )
        return
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(
            f"the key must be {SHORTEST_KEY} or more printable ASCII characters without blanks: "
            "make one with `python -c 'import secrets; print(secrets.token_urlsafe(24))'`"
        )


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_ROUTES or path.startswith(OPEN_FOLDER)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the headers of a request must have."""

    key: str | None = None
    loopback: bool = True  # answer only to names of this machine, so that no site on the web reaches it
    origins: Collection[str] = ()  # sites whose pages may ask

    def refusal(
        self, method: str, path: str, headers: Mapping[bytes, str], client: str | None = None
    ) -> Refusal | None:
        """Why a request with these headers (names in lower case) is refused; None if it is not.

        `client` is the address it comes from, if that is known.
        """
        if self.loopback and client is not None and _is_elsewhere(client):
            return Refusal(403, "client", "this server is for its own machine only: start it with a key")
        host = _host_name(headers.get(b"host", ""))
        if host is None:
            return Refusal(400, "host", "the Host header is malformed: send the name of this server")
        if self.loopback and not is_loopback(host):
            return Refusal(421, "host", "this server answers to localhost only: use that name")
        if not self._own_page(method, path, headers):
            return Refusal(403, "origin", "pages of other sites may not ask: start with --allow-origin")
        if self.key is None or is_open(path) or self.is_preflight(method, headers):
            return None
        authorization = headers.get(b"authorization", "").encode("latin-1")
        if not hmac.compare_digest(authorization, b"Bearer " + self.key.encode()):
            return Refusal(401, "key", "send the key of this server as `Authorization: Bearer KEY`")
        return None

    def is_preflight(self, method: str, headers: Mapping[bytes, str]) -> bool:
        """Whether a browser asks what a page of an allowed site may send; it cannot send the key yet."""
        return (
            method == "OPTIONS"
            and b"access-control-request-method" in headers
            and headers.get(b"origin") in self.origins
        )

    def _own_page(self, method: str, path: str, headers: Mapping[bytes, str]) -> bool:
        """Whether our own page, a page of an allowed site, or no browser at all asks."""
        origin = headers.get(b"origin")
        if origin is not None:
            return origin in self.origins or _is_origin_of(origin, headers.get(b"host"))
        if headers.get(b"sec-fetch-site", "none") in _OWN_SITE:
            return True
        followed_link = method == "GET" and headers.get(b"sec-fetch-mode") == "navigate"
        return followed_link and is_open(path)


def _is_elsewhere(client: str) -> bool:
    """Whether `client` is the address of another machine; a socket of this machine has no address."""
    try:
        return not ipaddress.ip_address(client).is_loopback
    except ValueError:
        return False


def _is_origin_of(origin: str, host: str | None) -> bool:
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(netloc) and netloc == host


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None if it is malformed."""
    if "@" in host or "/" in host:
        return None
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None
