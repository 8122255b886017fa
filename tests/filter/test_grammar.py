"""The grammar of filters: what can be written, and errors that show the place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.errors import BadInput
from genius.filter.grammar import (
    AllOf,
    AnyOf,
    Compare,
    FieldName,
    Has,
    Like,
    Not,
    OneOf,
    field_tests,
    number,
    parse_field,
    parse_filter,
)

A, B, C = (FieldName(None, (name,)) for name in "abc")


def one(name: FieldName, value: object) -> Compare:
    return Compare(name, "=", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", one(A, 1)),
        ("a == 1.5e1", one(A, 15.0)),
        ("a=-.5", one(A, -0.5)),
        ("a = 'it''s'", one(A, "it's")),
        ("a = ''", one(A, "")),
        ("a = TRUE", one(A, True)),
        ("a", one(A, True)),
        ("not a", Not(one(A, True))),
        ("a < 1 AND b >= 'x'", AllOf((Compare(A, "<", 1), Compare(B, ">=", "x")))),
        ("a or b and c", AnyOf((one(A, True), AllOf((one(B, True), one(C, True)))))),
        ("(a or b) and c", AllOf((AnyOf((one(A, True), one(B, True))), one(C, True)))),
        ("not a and b", AllOf((Not(one(A, True)), one(B, True)))),
        ("not (a and b)", Not(AllOf((one(A, True), one(B, True))))),
        ("a != 1", AllOf((Has(A), Not(one(A, 1))))),
        ("a <> 1", AllOf((Has(A), Not(one(A, 1))))),
        ("a in (1, 'x', true)", OneOf(A, frozenset({(False, 1), (False, "x"), (True, True)}))),
        ("a not in (1)", AllOf((Has(A), Not(OneOf(A, frozenset({(False, 1)})))))),
        ("a like '%x_'", Like(A, "%x_")),
        ("a not like 'x'", AllOf((Has(A), Not(Like(A, "x"))))),
        ("has a", Has(A)),
        ("a is missing", Not(Has(A))),
        ("a is not null", Has(A)),
        ("a.b = 1", one(FieldName(None, ("a", "b")), 1)),
        ('"a.b" = 1', one(FieldName(None, ("a.b",)), 1)),
        ('"say ""hi""" = 1', one(FieldName(None, ('say "hi"',)), 1)),
        ('"and" = 1', one(FieldName(None, ("and",)), 1)),
        ("größe = 1", one(FieldName(None, ("größe",)), 1)),
        ("date = 1", one(FieldName("date"), 1)),
        ("meta.date = 1", one(FieldName(None, ("date",)), 1)),
        ('"date" = 1', one(FieldName(None, ("date",)), 1)),
        ("meta = 1", one(FieldName(None, ("meta",)), 1)),
        ("modality = 'image'", one(FieldName("modality"), "image")),
    ],
)
def test_what_can_be_written(text, expected):
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "at", "hint"),
    [
        ("", 0, "empty"),
        ("price <", 7, "a value is expected"),
        ("price < and sold", 8, "single quotes"),
        ("price < 'x", 8, "never closed"),
        ('"price < 1', 0, "never closed"),
        ("(a or b", 7, ") is expected"),
        ("a or b)", 6, "`and`, `or` or the end"),
        ("a = 1 b = 2", 6, "`and`, `or` or the end"),
        ("a = b", 4, "single quotes"),
        ('a = "b"', 4, "single quotes"),
        ("a = null", 4, "is missing"),
        ("a in 1", 5, "( is expected"),
        ("a in (1, 2", 10, ") is expected"),
        ("a in ()", 6, "a value is expected"),
        ("a like 5", 7, "a pattern"),
        ("a is 5", 5, "missing"),
        ("a not 5", 6, "`in` or `like`"),
        ("a < true", 4, "no order"),
        ("5 < a", 0, "the name of a field"),
        ("'a' = 5", 0, "without quotes"),
        ("a = 1; drop table items", 5, "cannot be read"),
        ("a = 1e999", 4, "too large"),
        ("a = 12x", 4, "cannot be read"),
        ("and", 0, "the name of a field"),
        ("a. = 1", 3, "the name of a field"),
    ],
)
def test_an_error_shows_the_place(text, at, hint):
    with pytest.raises(BadInput) as caught:
        parse_filter(text)
    message, shown, caret = str(caught.value).split("\n")
    assert hint in message
    assert shown == f"  {text}" and caret == f"{' ' * (at + 2)}^"


def test_of_a_long_filter_the_error_shows_the_part():
    text = "a in (" + ", ".join(map(str, range(10_000))) + ") and and"
    with pytest.raises(BadInput) as caught:
        parse_filter(text)
    _, shown, caret = str(caught.value).split("\n")
    assert len(shown) < 80 and shown[len(caret) - 1 :] == "and"


def test_what_is_too_much_is_refused():
    for text in ("(" * 5000 + "a" + ")" * 5000, "not " * 5000 + "a"):
        with pytest.raises(BadInput, match="inside each other"):
            parse_filter(text)
    with pytest.raises(BadInput, match="tests"):
        parse_filter(" or ".join(["a = 1"] * 5000))
    with pytest.raises(BadInput, match="characters"):
        parse_filter("a = '" + "x" * 1_000_000 + "'")
    with pytest.raises(BadInput, match="broken Unicode"):
        parse_filter("a = '\ud800'")
    with pytest.raises(BadInput, match="not int"):
        parse_filter(5)  # type: ignore[arg-type]


WORDS = ("a", "1", "'x'", "and", "or", "not", "(", ")", ",", "in", "=", "<", "like", "is", "has")


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_whatever_is_written_is_a_filter_or_bad_input(text):
    try:
        field_tests(parse_filter(text))
    except BadInput as error:
        assert "\n" not in str(error).split("\n  ")[0]


def test_a_field_by_itself():
    assert parse_field("size.width") == FieldName(None, ("size", "width"))
    assert parse_field('"unit price"') == FieldName(None, ("unit price",))
    with pytest.raises(BadInput, match="double quotes"):
        parse_field("unit price")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (" -2.50 ", -2.5), ("1e3", 1000.0), (".5", 0.5), ("007", 7)]
    + [
        (bad, None)
        for bad in ("", " ", "1,5", "0x10", "1_000", "nan", "inf", "1e999", "１", "1 2", "--1", "9" * 400)
    ],
)
def test_texts_that_read_as_numbers(text, value):
    assert number(text) == value


def test_whole_numbers_beyond_64_bits_are_floats():
    assert number(str(2**63 - 1)) == 2**63 - 1 and isinstance(number(str(2**63)), float)
