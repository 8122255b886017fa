"""The grammar of filters: text to a tree of tests, by a tokenizer and recursive descent.

    filter   =  term {"or" term}
    term     =  factor {"and" factor}
    factor   =  "not" factor  |  "(" filter ")"  |  "has" field  |  field [test]
    test     =  ("=" | "!=" | "<" | "<=" | ">" | ">=") value
             |  ["not"] "in" "(" value {"," value} ")"
             |  ["not"] "like" text
             |  "is" ["not"] "missing"
    field    =  name {"." name}
    name     =  a word, or anything in double quotes
    value    =  a number, a text in single quotes ('' is a quote in it), true or false

Words of the grammar may be written in any case. A field alone is the test whether it is true. What a filter
means is in `genius.filter.values`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from genius.data.report import printable
from genius.errors import BadInput

BUILT_IN = ("id", "modality", "text", "folder", "modified", "date")  # fields that are not metadata
META = "meta"  # before the name of a metadata field that is called like one of those
MAX_CHARS = 1_000_000
MAX_TESTS = 1_000  # in one filter; a list of `in` counts once
MAX_DEPTH = 100  # of brackets and `not` inside each other
MAX_NUMBER = 2**63 - 1  # whole numbers beyond it are compared as floats, as SQLite does
SHOWN = 60  # characters of a filter around the place of an error

Value = int | float | str | bool
Operator = Literal["=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class FieldName:
    """What a test looks at: something every item may have, or a path in its metadata."""

    built_in: str | None
    path: tuple[str, ...] = ()  # keys of objects inside each other


@dataclass(frozen=True, slots=True)
class Compare:
    """Whether a field compares so with a value."""

    field: FieldName
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a field equals one of several values."""

    field: FieldName
    values: frozenset[tuple[bool, Value]]  # each with whether it is a truth value: True and 1 are two values


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text matches a pattern (`genius.filter.patterns`); case does not count."""

    field: FieldName
    pattern: str


@dataclass(frozen=True, slots=True)
class Has:
    """Whether a field is there."""

    field: FieldName


@dataclass(frozen=True, slots=True)
class Not:
    """Whether a filter does not hold."""

    inner: Expression


@dataclass(frozen=True, slots=True)
class AllOf:
    """Whether all filters hold."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Whether at least one filter holds."""

    parts: tuple[Expression, ...]


FieldTest = Compare | OneOf | Like | Has
Expression = FieldTest | Not | AllOf | AnyOf


def parse_filter(text: str) -> Expression:
    """The filter that `text` says; raises BadInput that shows the place where it cannot be understood."""
    if not isinstance(text, str):
        raise BadInput(f"a filter is a text such as 'price < 50', not {type(text).__name__}")
    if len(text) > MAX_CHARS:
        raise BadInput(f"the filter has {len(text):,} characters: at most {MAX_CHARS:,} are read")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the filter has broken Unicode: leave it out") from None
    return _Parser(text).whole()


def parse_field(name: str) -> FieldName:
    """The field that `name` says, as in a filter; raises BadInput."""
    return _Parser(name).only_field()


def field_text(field: FieldName) -> str:
    """A metadata field as a filter names it, whatever its name."""
    return ".".join([META, *('"' + key.replace('"', '""') + '"' for key in field.path)])


def field_tests(expression: Expression) -> list[FieldTest]:
    """The tests in a filter, each of them once, in the order they are written."""
    if isinstance(expression, Not):
        return field_tests(expression.inner)
    if isinstance(expression, AllOf | AnyOf):
        return list(dict.fromkeys(test for part in expression.parts for test in field_tests(part)))
    return [expression]


class _Token(NamedTuple):
    kind: Literal["name", "quoted", "text", "number", "sign", "end"]
    text: str  # as it is meant: without quotes
    at: int  # where it begins


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<name>[^\W\d]\w*)
      | '(?P<text>(?:[^']|'')*)'
      | "(?P<quoted>(?:[^"]|"")*)"
      | (?P<sign><=|>=|!=|<>|==|[=<>(),.])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_SAME = {"==": "=", "<>": "!="}
_WORDS = frozenset({"and", "or", "not", "in", "like", "is", "has", "missing", "null", "true", "false"})


class _Parser:
    """One pass over a text, a token ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = self.tests = 0
        self.after = 0  # where the token ahead ends
        self.token = self._next()

    def whole(self) -> Expression:
        if self.token.kind == "end":
            raise self._error("the filter is empty: write one, such as price < 50")
        found = self._filter()
        self._end("`and`, `or` or the end is expected here")
        return found

    def only_field(self) -> FieldName:
        found = self._field()
        self._end("the name of a field ends here: put names with other characters in double quotes")
        return found

    # --- tokens -------------------------------------------------------------------------------------------

    def _next(self) -> _Token:
        match = _TOKEN.match(self.text, self.after)
        if match is None:
            rest = self.text[self.after :]
            at = self.after + len(rest) - len(rest.lstrip())
            if self.text[at] in "'\"":
                raise self._error(f"this {self.text[at]} is never closed", at)
            raise self._error("this cannot be read: texts are written in single quotes", at)
        kind = match.lastgroup
        assert kind is not None
        text, at = match[kind], match.start(kind)
        self.after = match.end()
        if kind == "text":
            return _Token("text", text.replace("''", "'"), at - 1)
        if kind == "quoted":
            return _Token("quoted", text.replace('""', '"'), at - 1)
        return _Token(kind, _SAME.get(text, text), at)  # type: ignore[arg-type]

    def _take(self) -> _Token:
        taken, self.token = self.token, self._next()
        return taken

    def _word(self, *words: str) -> str | None:
        """The next token, taken, if it is one of these words or signs."""
        text = self.token.text.lower()
        if self.token.kind in ("name", "sign") and text in words:
            self._take()
            return text
        return None

    def _expect(self, sign: str, why: str) -> None:
        if self._word(sign) is None:
            raise self._error(f"{sign} is expected here, {why}")

    def _end(self, otherwise: str) -> None:
        if self.token.kind != "end":
            raise self._error(otherwise)

    def _error(self, message: str, at: int | None = None) -> BadInput:
        place = self.token.at if at is None else at
        start = max(0, place - SHOWN // 2)
        part = self.text[start : start + SHOWN].replace("\n", " ").replace("\t", " ")
        before = ("…" if start else "") + printable(part[: place - start])
        after = printable(part[place - start :]) + ("…" if start + SHOWN < len(self.text) else "")
        return BadInput(f"in the filter: {message}\n  {before}{after}\n  {' ' * len(before)}^")

    # --- rules --------------------------------------------------------------------------------------------

    def _filter(self) -> Expression:
        return self._several("or", self._term, AnyOf)

    def _term(self) -> Expression:
        return self._several("and", self._factor, AllOf)

    def _several(
        self, word: str, rule: Callable[[], Expression], kind: type[AllOf] | type[AnyOf]
    ) -> Expression:
        parts = [rule()]
        while self._word(word):
            parts.append(rule())
        return parts[0] if len(parts) == 1 else kind(tuple(parts))

    def _factor(self) -> Expression:
        at = self.token.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(
                f"more than {MAX_DEPTH} brackets or `not` inside each other: write it flatter", at
            )
        found: Expression
        if self._word("not"):
            found = Not(self._factor())
        elif self._word("("):
            found = self._filter()
            self._expect(")", "to close the bracket")
        else:
            found = self._test()
        self.depth -= 1
        return found

    def _test(self) -> Expression:
        self.tests += 1
        if self.tests > MAX_TESTS:
            raise self._error(f"more than {MAX_TESTS:,} tests: use `in` for many values of one field")
        if self._word("has"):
            return Has(self._field())
        field = self._field()
        if (operator := self._word("=", "!=", "<", "<=", ">", ">=")) is not None:
            return self._comparison(field, operator)
        if self._word("is"):
            return self._missing(field)
        if self._word("not"):
            if self._word("in"):
                return AllOf((Has(field), Not(self._one_of(field))))
            if self._word("like"):
                return AllOf((Has(field), Not(self._like(field))))
            raise self._error("`in` or `like` is expected after `not`")
        if self._word("in"):
            return self._one_of(field)
        if self._word("like"):
            return self._like(field)
        return Compare(field, "=", True)

    def _comparison(self, field: FieldName, operator: str) -> Expression:
        at = self.token.at
        value = self._value()
        if operator == "!=":
            return AllOf((Has(field), Not(Compare(field, "=", value))))
        if isinstance(value, bool) and operator != "=":
            raise self._error("true and false have no order: compare them with = or !=", at)
        return Compare(field, operator, value)  # type: ignore[arg-type]

    def _missing(self, field: FieldName) -> Expression:
        there = self._word("not") is not None
        if self._word("missing", "null") is None:
            raise self._error("`missing` or `not missing` is expected after `is`")
        return Has(field) if there else Not(Has(field))

    def _one_of(self, field: FieldName) -> OneOf:
        self._expect("(", "with the values after it: in ('sofa', 'chair')")
        values = [self._value()]
        while self._word(","):
            values.append(self._value())
        self._expect(")", "after the last value")
        return OneOf(field, frozenset((isinstance(value, bool), value) for value in values))

    def _like(self, field: FieldName) -> Like:
        if self.token.kind != "text":
            raise self._error("a pattern in single quotes is expected: like '%oak%'")
        return Like(field, self._take().text)

    def _field(self) -> FieldName:
        first = self.token
        names = [self._name()]
        while self._word("."):
            names.append(self._name())
        if first.kind == "name" and len(names) == 1 and first.text in BUILT_IN:
            return FieldName(first.text)
        if first.kind == "name" and len(names) > 1 and first.text == META:
            return FieldName(None, tuple(names[1:]))
        return FieldName(None, tuple(names))

    def _name(self) -> str:
        token = self.token
        if token.kind == "quoted" or (token.kind == "name" and token.text.lower() not in _WORDS):
            return self._take().text
        if token.kind == "text":
            raise self._error(
                "a field is expected here: names are written without quotes, or in double quotes"
            )
        raise self._error("the name of a field is expected here")

    def _value(self) -> Value:
        token = self.token
        if token.kind == "text":
            return self._take().text
        if token.kind == "number":
            value = number(token.text)
            if value is None:
                raise self._error("this number is too large")
            self._take()
            return value
        if token.kind == "name" and token.text.lower() in ("true", "false"):
            return self._take().text.lower() == "true"
        if token.kind == "name" and token.text.lower() == "null":
            raise self._error("nothing equals null: write `is missing`")
        if token.kind in ("name", "quoted"):
            raise self._error("a value is expected here: texts are written in single quotes")
        raise self._error("a value is expected here: a number, a text in single quotes, true or false")


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def number(text: str) -> int | float | None:
    """The number that a text says; None if it is not one, or not finite."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        whole = int(text)
    except ValueError:
        pass
    else:
        return whole if abs(whole) <= MAX_NUMBER else float(whole) if abs(whole) < 1e308 else None
    value = float(text)
    return value if math.isfinite(value) else None
