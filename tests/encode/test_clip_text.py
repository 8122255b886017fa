"""CLIP's cleaning of texts against ftfy and html, which OpenAI's code uses."""

from __future__ import annotations

import html
import re
from pathlib import Path

import ftfy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.encode.clip import load
from genius.encode.clip_text import clean_clip_text


def openai(text: str) -> str:
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it’s “so” ‘plain’", "it's \"so\" 'plain'"),
        ("tom &amp; jerry", "tom & jerry"),
        ("tom &amp;amp; jerry", "tom & jerry"),
        ("&ldquo;x&rdquo;", '"x"'),
        ("&ldquo;x&rdquo; <b>", "“x” <b>"),
        ("a &lt; b", "a < b"),
        ("ﬁne ﬂat oﬃce ĳs", "fine flat office ijs"),
        ("ＡＢＣ　１２３", "ABC 123"),
        ("a\x00b\ufeff  c\n d", "ab c d"),
        ("\x93quoted\x94", '"quoted"'),
        ("cafe\u0301", "café"),
    ],
)
def test_as_clip(text: str, expected: str) -> None:
    assert clean_clip_text(text) == expected == openai(text)


@pytest.mark.parametrize("page", range(0, 0x10000, 0x1000))
def test_every_character_as_ftfy_mends_it(page: int) -> None:
    for code in range(page, page + 0x1000):
        if not 0xD800 <= code < 0xE000:
            text = f"a b{chr(code)}c d"
            assert clean_clip_text(text) == openai(text), hex(code)


@given(st.text("abc &;<\"'‘’“”ﬁＡ１　\t\nlgtampquo", max_size=30))
def test_any_mixture(text: str) -> None:
    assert clean_clip_text(text) == openai(text)


def test_the_encoder_reads_clean_texts(clip_folder: Path) -> None:
    encoder = load(clip_folder)
    dirty, clean = ["a ﬁne dog &amp; “cat”"], ['a fine dog & "cat"']
    assert encoder.prepare_texts(dirty).tolist() == encoder.prepare_texts(clean).tolist()
