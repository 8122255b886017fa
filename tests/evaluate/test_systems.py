"""The product's search as a system: lookup finds what the codes hold, vectors mend it, a decoder plugs in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.encode.base import Parts
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.embeddings import EncodedPool, EncodedQueries
from genius.evaluate.systems import CodeSearch, System
from genius.search.options import SearchOptions

SIZES = (3, 16, 16, 16)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    """Items that are sums of code vectors plus a little; queries near 60 of them."""
    rng = np.random.default_rng(0)
    books = [rng.normal(size=(size, 24)).astype(np.float32) * 0.7**level for level, size in enumerate(SIZES)]
    codes = np.stack([rng.integers(0, size, 500) for size in SIZES], axis=1).astype(np.uint16)
    exact_sum = sum(book[codes[:, level]] for level, book in enumerate(books))
    phi = unit(exact_sum + 0.15 * rng.normal(size=exact_sum.shape))
    pool = EncodedPool(
        ids=[str(n) for n in range(500)],
        modality=codes[:, 0].astype(np.uint8),
        phi=phi,
        codes=codes,
        digest="p",
        unreadable=[],
        parts=lambda rows: Parts(phi[rows], np.zeros_like(phi[rows])),
    )
    asked = rng.choice(500, 60, replace=False)
    q = unit(phi[asked] + 0.05 * rng.normal(size=(60, 24)))
    queries = EncodedQueries(
        [str(n) for n in asked], codes[asked, 0].astype(np.uint8), q, q, np.ones(60, bool), "q"
    )
    return books, pool, queries, asked


def hit(found, asked, k=5):
    return float((found.rows[:, :k] == asked[:, None]).any(axis=1).mean())


def test_lookup_finds_items_by_their_codes_and_vectors_equal_exact(world):
    books, pool, queries, asked = world
    by_codes = CodeSearch("lookup+codes", books, SearchOptions("lookup", rerank="codes", beam=50))
    by_vectors = CodeSearch("lookup+vectors", books, SearchOptions("lookup", rerank="vectors", beam=50))
    exact = Exact()
    hits = {}
    for system in (by_codes, by_vectors, exact):
        assert isinstance(system, System)
        system.index(pool)
        hits[system.name] = hit(system.search(queries, 10), asked)
    assert hits["exact"] >= 0.95
    assert hits["lookup+vectors"] >= hits["exact"] - 0.05
    assert hits["lookup+codes"] > 20 * 5 / 500


def test_bytes_are_those_of_the_trie_and_the_kept_vectors(world):
    books, pool, _, _ = world
    codes, vectors = (CodeSearch("x", books, SearchOptions("lookup", rerank=r)) for r in ("codes", "vectors"))
    codes.index(pool)
    vectors.index(pool)
    assert 3 < codes.bytes_per_item() < 16
    assert vectors.bytes_per_item() == pytest.approx(codes.bytes_per_item() + 24 * 2)


def test_a_decoder_plugs_in_and_scores_are_log_probabilities(world):
    books, pool, queries, _ = world
    decoder = Decoder(
        DecoderShape(24, SIZES, layers=1, width=16, heads=2, head_width=8, feed_forward=32)
    ).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    system = CodeSearch("genius", books, SearchOptions("generate", beam=20, stop=len(SIZES)), decoder)
    system.index(pool)
    found = system.search(queries, 10)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert (found.scores < 0).all()
    assert all(len(set(row)) == 10 for row in found.rows.tolist())


def test_settings_tell_systems_apart(world):
    books = world[0]
    one = CodeSearch("x", books, SearchOptions("lookup", beam=50))
    other = CodeSearch("x", books, SearchOptions("lookup", beam=51))
    assert one.settings != other.settings


def test_settings_tell_decoders_apart(world):
    books = world[0]
    shape = DecoderShape(24, SIZES, layers=1, width=16, heads=2, head_width=8, feed_forward=32)
    decoders = [Decoder(shape) for _ in range(3)]
    for decoder, seed in zip(decoders, (0, 0, 1), strict=True):
        initialise(decoder, torch.Generator().manual_seed(seed))
    one, same, other = (CodeSearch("genius", books, SearchOptions("generate"), d).settings for d in decoders)
    assert one == same
    assert one != other  # else a retrained decoder would be shown with the answers of the old one


def test_a_small_beam_is_not_widened_to_the_length_of_the_list(world):
    books, pool, queries, asked = world
    narrow = CodeSearch("x", books, SearchOptions("lookup", beam=2, leaves=1, stop=len(SIZES)))
    narrow.index(pool)
    found = narrow.search(queries, 10)
    assert found.rows.shape == (60, 10)
    assert (found.rows >= 0).sum(axis=1).max() <= 2
    wide = CodeSearch("x", books, SearchOptions("lookup", beam=50, leaves=1, stop=len(SIZES)))
    wide.index(pool)
    assert hit(wide.search(queries, 10), asked) > hit(found, asked)


def test_leaves_that_the_decoder_does_not_tell_apart_are_all_re_ranked(world):
    """In a small pool the decoder stops at once: every item is a leaf, and all have the same score."""
    books, pool, queries, asked = world
    shape = DecoderShape(24, SIZES, layers=1, width=16, heads=2, head_width=8, feed_forward=32)
    decoder = Decoder(shape).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    system = CodeSearch("x", books, SearchOptions("generate", rerank="vectors", beam=20, leaves=500), decoder)
    exact = Exact()
    for each in (system, exact):
        each.index(pool)
    assert hit(system.search(queries, 10), asked) >= hit(exact.search(queries, 10), asked) - 0.05
