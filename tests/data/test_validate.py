"""The rules for what may be stored of an item."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.data.validate import (
    MAX_ID,
    MAX_META_DEPTH,
    valid_codes,
    valid_id,
    valid_meta,
    valid_text,
    valid_thumbnail,
    valid_vector,
)
from genius.errors import BadInput


def nested(depth, inner=None):
    for _ in range(depth):
        inner = [inner]
    return {"a": inner}


@pytest.mark.parametrize("id", ["", "a\nb", "\x1b[31m", "x" * (MAX_ID + 1), "\ud800", "\u202e"])
def test_ids_that_are_refused(id):
    with pytest.raises(BadInput, match="printable"):
        valid_id(id)


@pytest.mark.parametrize("id", [7, None, ["a"], b"a"])
def test_an_id_that_is_no_string_is_told_its_type(id):
    with pytest.raises(BadInput, match=f"must be a string, not {type(id).__name__}"):
        valid_id(id)


def test_ids_that_are_taken():
    for id in ("a", "x" * MAX_ID, "ünï ☃ / .. \\", "../../etc/passwd"):
        assert valid_id(id) == id


@pytest.mark.parametrize(
    "meta",
    [
        None,
        [],
        "{}",
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": {1, 2}},
        {"a": b"x"},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"a": ["\ude00\ud83d"]},
        {"a": 1, 2: 3},
        nested(MAX_META_DEPTH),
        nested(260),
        nested(5000),
        {"a": "x" * 1_000_001},
    ],
)
def test_meta_that_is_refused(meta):
    with pytest.raises(BadInput, match="meta"):
        valid_meta(meta)


def test_meta_that_contains_itself_is_refused():
    meta = {}
    meta["a"] = meta
    with pytest.raises(BadInput, match="meta"):
        valid_meta(meta)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(meta=st.dictionaries(st.text(), JSON, max_size=4))
def test_meta_that_is_taken_comes_back(meta):
    assert json.loads(valid_meta(meta)) == meta


def test_meta_may_have_emoji_many_brackets_and_the_full_depth():
    for meta in ({"a": "😀\\ud800"}, {"a": [[1]] * 100, "b": "[" * 50}, nested(MAX_META_DEPTH - 1)):
        assert json.loads(valid_meta(meta)) == meta


@pytest.mark.parametrize(
    "codes",
    [
        [0, 1],
        [0, 1, 16],
        [0, -1, 2],
        [0.0, 1.0, 2.0],
        ["0", "1", "2"],
        [[0], [1], [2]],
        None,
        5,
        [0, [1], 2],
        [2**80] * 3,
    ],
    ids=repr,
)
def test_codes_that_the_model_lacks_are_refused(codes):
    with pytest.raises(BadInput, match="codes"):
        valid_codes(codes, (3, 16, 16))


def test_codes_that_fit_are_uint16():
    codes = valid_codes([2, 15, 0], (3, 16, 16))
    assert codes.dtype == np.uint16 and codes.tolist() == [2, 15, 0]


BAD_VECTORS = [[1, 2], [1, np.nan, 2], [1, np.inf, 2], [1, 1e9, 2], [[1, 2, 3]]]


@pytest.mark.parametrize("vector", BAD_VECTORS, ids=repr)
def test_vectors_that_are_refused(vector):
    with pytest.raises(BadInput, match="vector"):
        valid_vector(np.array(vector, dtype=np.float32), 3)


def test_texts_and_thumbnails():
    assert valid_text(None) is None and valid_text("a\nb") == "a\nb"
    for text in ("", " a", "a\0b", "\ud800", "x" * 20_001, 7, b"a"):
        with pytest.raises(BadInput, match="text"):
            valid_text(text)
    assert valid_thumbnail(b"\xff\xd8\xff\xe0") == b"\xff\xd8\xff\xe0"
    for jpeg in (b"", b"<svg>", b"\xff\xd8\xff" * 400_000):
        with pytest.raises(BadInput, match="thumbnail"):
            valid_thumbnail(jpeg)
