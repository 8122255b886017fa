"""Texts that are longer than an encoder reads are cut in passages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.data.passages import passages


def words(texts: Sequence[str]) -> list[int]:
    """A token for each word, and one at either end."""
    return [2 + len(text.split()) for text in texts]


def shown(text: str, most: int) -> list[str]:
    return [text[start:end] for start, end in passages(text, words, most)]


def test_a_short_text_is_one_passage():
    assert passages("a few words", words, 8) == [(0, 11)]


def test_passages_end_with_sentences_and_a_short_sentence_is_in_both():
    text = "One two three four five six. Seven eight nine ten. Yes. Eleven twelve thirteen fourteen fifteen."
    assert shown(text, 14) == [
        "One two three four five six. Seven eight nine ten. Yes.",
        "Yes. Eleven twelve thirteen fourteen fifteen.",
    ]


def test_a_long_sentence_is_cut_between_words_with_an_overlap():
    text = " ".join(f"w{n}" for n in range(40))
    first, second, *_ = shown(text, 18)
    assert first == " ".join(f"w{n}" for n in range(16))
    assert second.startswith("w14 w15 w16 ")


def test_a_text_without_blanks_is_cut_too():
    def letters(texts: Sequence[str]) -> list[int]:
        return [2 + len(text) for text in texts]

    text = "字" * 300
    spans = passages(text, letters, 40)
    assert all(end - start <= 38 for start, end in spans) and spans[-1][1] == 300


@given(st.text("ab. \n!", max_size=400).map(str.strip), st.integers(12, 40))
def test_passages_cover_the_text_in_order_and_fit(text, most):
    spans = passages(text, words, most)
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    for (start, end), (following, last) in pairwise(spans):
        assert start < following and end < last
        assert not text[end:following].strip()  # nothing is left out
    assert all(count <= most for count in words([text[start:end] for start, end in spans]))


@pytest.mark.parametrize(
    "text", ["It is a sentence of some words. " * 60, "word " * 500, "日本語の文章です。" * 80, "🙂" * 300]
)
def test_passages_of_mini_fit(text):
    from genius.encode.mini.encoder import load

    encoder = load()
    spans = passages(text.strip(), encoder.count_tokens, encoder.max_tokens)
    counts = encoder.count_tokens([text[start:end] for start, end in spans])
    assert len(spans) > 1 or encoder.count_tokens([text])[0] <= encoder.max_tokens
    assert max(counts) <= encoder.max_tokens
