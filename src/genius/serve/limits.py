"""The limits of one server. Whatever exceeds them is refused with a status that says so."""

from __future__ import annotations

from dataclasses import dataclass

from genius.data.images import MAX_PIXELS
from genius.data.isolated import SECONDS

MB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of one server; the defaults suit a machine with a few cores and some GB of memory."""

    beam: int = 500  # prefixes a search may follow
    hits: int = 200  # answers a search may ask for, and items in one page of a list
    depth: int = 1000  # answers of a search that can be paged through
    items: int = 64  # items in one request
    body: int = 32 * MB  # bytes of a request
    pixels: int = MAX_PIXELS  # of an image, read off its header
    batch: int = 32  # searches answered together
    waiting: int = 128  # searches that may wait for their turn; more get 429
    writes: int = 8  # changes that may wait for their turn; more get 429
    requests: int = 512  # requests at a time; more get 503
    open_requests: int = 64  # of those that need no key, or are refused; health checks are not counted
    connections: int = 768  # at a time; beyond it, those that ask nothing are closed
    held: int = 256 * MB  # bytes of bodies held at a time; more get 503
    head_s: float = 10.0  # the head of a request must be here by then, else the connection is closed
    upload_s: float = 30.0  # a request must be here by then, else 408
    decoders: int = 2  # processes that decode pictures, each with 1 GB of memory
    decode_s: float = SECONDS  # of processor time, for one picture
    decode_all_s: float = 30.0  # for all pictures of a request that adds items
    search_s: float = 10.0  # a search must be answered by then, its picture decoded, else 503
    write_s: float = 120.0
    send_s: float = 10.0  # a client that takes nothing of its response for so long is hung up on
    stop_s: int = 10  # requests under way may finish when the server stops


RETRY_AFTER_S = 1
