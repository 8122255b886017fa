"""Which items have the words of a query, and how many of them: a ranking by words beside that by vectors.

The score of an item is its BM25 score, a word counting once, as a share of what an item of average length
with all words would get: 1 is a full match. Only words that few items have are looked up; the others tell
little and would cost more the more items there are. Letters that stand alone do not count beside other words:
they are articles in a query, and anything in a file name. A word that no item has counts for items with a
word that one slip of the keyboard makes of it.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.errors import IndexLocked, StorageError
from genius.store import words
from genius.store.index import LOGGER, Index

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
RARE = 1024  # a word that more items have is not looked up
KEPT = 100  # items that are returned
MEASURED = 100  # items whose length is looked up
MAX_WORDS = 32  # of a query
MAX_UNKNOWN = 8  # words that no item has: so many are looked up with slips
KEPT_WORDS = 1024  # whose rows are remembered
AT_ONCE = 20_000  # items of an older index whose words are indexed when somebody searches
SLIP = 0.8  # what a word with a slip counts
SHORTEST, LONG = 4, 6  # letters: shorter words are taken as they are, in longer ones a letter may be wrong
K1, B = 1.2, 0.75  # of BM25
WORTHLESS = 1e-6  # weight of a word that half of the items have
WORD = re.compile(r"[^\W_]+")
LETTER = re.compile(r"[a-z]?")  # or nothing
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class WordMatches(NamedTuple):
    """Items with words of a query, the best first."""

    rows: Ints  # in the truth
    scores: Floats  # from 0 to 1

    @classmethod
    def none(cls) -> WordMatches:
        """No item."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32))


class _Posting(NamedTuple):
    """The items that have a word: all of them, or only about how many."""

    rows: Ints | None
    number: float


class WordSearch:
    """Searches the words of an index. Threads may share it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._state: object = None  # of the index, to which lengths and postings belong
        self._lengths: _Lengths | None = None
        self._refused = False  # whether this process could not index words
        self._prepared = False  # whether words were there when last looked
        self._postings: OrderedDict[str, _Posting] = OrderedDict()  # by the query of FTS5

    def prepare(self, *, always: bool = False) -> None:
        """Index the words of an older index, if it is small (or `always`) and this process may write now."""
        index, truth = self._index, self._index.truth
        if self._prepared or self._refused or truth.has_words() or not words.supported():
            return
        if not always and truth.last_row() > AT_ONCE:
            return
        try:
            with index.writing(wait=False), truth.writing():
                if not truth.has_words():
                    truth.build_words()
        except (IndexLocked, StorageError) as error:
            self._refused = True
            LOGGER.info("%s: words are not indexed: %s", index.folder, error)

    def find(self, text: str) -> WordMatches:
        """The items that have words of the text; none if words are not indexed."""
        asked = _asked(text)
        truth = self._index.truth
        with truth.reading():
            version, change = truth.some(words.SETTING, "change")
            self._prepared = version == words.VERSION
            if asked and self._prepared and words.supported():
                try:
                    lengths = self._renew((truth.identity, change), truth.connection)
                    return self._find(truth.connection, asked, lengths)
                except sqlite3.DatabaseError as error:
                    LOGGER.warning("%s: searched without words: %s", self._index.folder, error)
        return WordMatches.none()

    def _renew(self, state: object, connection: sqlite3.Connection) -> _Lengths:
        """Forget what was read of another state; the lengths of this one."""
        with self._lock:
            if state != self._state or self._lengths is None:
                self._lengths = _Lengths(connection)
                self._state = state
                self._postings.clear()
            return self._lengths

    def _find(self, connection: sqlite3.Connection, asked: list[str], lengths: _Lengths) -> WordMatches:
        total, unknown = 0.0, 0
        parts: list[tuple[Ints, float]] = []  # rows, and what the word is worth
        for word in asked:
            posting, share = self._posting(connection, _quoted(word)), 1.0
            rarest = lengths.weight(0)
            if not posting.number and len(word) >= SHORTEST and unknown < MAX_UNKNOWN:
                unknown += 1
                posting, share = self._posting(connection, " OR ".join(map(_quoted, slips(word)))), SLIP
            weight = lengths.weight(posting.number)
            total += rarest if share < 1 or not posting.number else weight
            if posting.rows is not None and len(posting.rows) and weight > WORTHLESS:
                parts.append((posting.rows, share * weight))
        if not parts or not total:
            return WordMatches.none()
        rows, place = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
        worth = np.bincount(place, np.concatenate([np.full(len(rows), worth) for rows, worth in parts]))
        best = _largest(worth, MEASURED)
        rows = rows[best]
        factors = lengths.factors(connection, rows)
        scores = np.minimum(worth[best] / total * factors, 1.0).astype(np.float32)
        best = _largest(scores, KEPT)
        return WordMatches(rows[best], scores[best])

    def _posting(self, connection: sqlite3.Connection, query: str) -> _Posting:
        """The items that match, if they are few."""
        with self._lock:
            known = self._postings.get(query)
        if known is None:
            known = self._read(connection, query)
            with self._lock:
                self._postings[query] = known
                while len(self._postings) > KEPT_WORDS:
                    self._postings.popitem(last=False)
        return known

    def _read(self, connection: sqlite3.Connection, query: str) -> _Posting:
        if not query:
            return _Posting(None, 0)
        matching = f"SELECT rowid AS row FROM words WHERE words MATCH ? LIMIT {RARE + 1}"
        # one text instead of a tuple for each row: a third of the time
        (joined,) = connection.execute(f"SELECT group_concat(row) FROM ({matching})", (query,)).fetchone()
        rows = np.fromstring(joined, np.int64, sep=",") if joined else np.zeros(0, np.int64)
        if len(rows) > RARE:  # as many among the later rows as among the earlier ones
            return _Posting(None, RARE * max(1.0, self._index.truth.last_row() / int(rows[-1])))
        return _Posting(rows, len(rows))


class _Lengths:
    """How many words the items have, as FTS5 keeps it in its own tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("SELECT block FROM words_data WHERE id = 1").fetchone()
        counts = [*_varints(found[0] if found else b"")]  # of the items, then of the words in each column
        self.items = max([1, *counts[:1]])
        self.mean = max(1.0, sum(counts[1:]) / self.items)

    def weight(self, count: float) -> float:
        """What a word is worth that so many items have (the inverse document frequency of FTS5)."""
        return max(WORTHLESS, math.log((self.items - min(count, self.items) + 0.5) / (count + 0.5)))

    def factors(self, connection: sqlite3.Connection, rows: Ints) -> Floats:
        """What BM25 makes of the lengths of these rows: 1 for an average one, less for longer ones."""
        select = "SELECT id, sz FROM words_docsize WHERE id IN (SELECT value FROM json_each(?))"
        known = dict(connection.execute(select, (json.dumps(rows.tolist()),)).fetchall())
        lengths = np.array([_sum(known[row]) if row in known else self.mean for row in rows.tolist()])
        return np.asarray((K1 + 1) / (1 + K1 * (1 - B + B * lengths / self.mean)), dtype=np.float32)


def _largest(values: NDArray[Any], count: int) -> Ints:
    """Places of the `count` largest values, the largest first; of equal ones the earlier."""
    kept = np.arange(len(values))
    if len(values) > count:
        kept = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return np.asarray(kept[np.argsort(-values[kept], kind="stable")[:count]])


def _varints(data: bytes) -> Iterator[int]:
    """The numbers in a record of FTS5: 7 bits to a byte, the high bit says that more follow."""
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            yield number
            number = 0


def _sum(data: bytes) -> int:
    """The sum of the numbers in a record of FTS5."""
    return sum(data) if data.isascii() else sum(_varints(data))


def _asked(text: str) -> list[str]:
    """The words of a query that count, each once."""
    several = [WORD.findall(part) for part in unicodedata.normalize("NFC", text).lower().split()]
    longer = [words for words in several if len(words) > 1 or not LETTER.fullmatch("".join(words))]
    return list(dict.fromkeys(word for words in longer or several for word in words))[:MAX_WORDS]


def _quoted(word: str) -> str:
    return f'"{word}"'


def slips(word: str) -> list[str]:
    """Words of which one slip of the keyboard makes `word`; the first letter is taken to be right.

    Two letters are exchanged, one is missing or too many, or in a long word another one. In numbers only two
    digits are exchanged: with any other digit it is another number.
    """
    cuts = [(word[:at], word[at:]) for at in range(1, len(word) + 1)]
    found = [head + rest[1] + rest[0] + rest[2:] for head, rest in cuts if len(rest) > 1]
    if word.isascii() and word.isalpha():
        found += [head + rest[1:] for head, rest in cuts if rest]
        found += [head + letter + rest for head, rest in cuts for letter in LETTERS]
        if len(word) >= LONG:
            found += [head + letter + rest[1:] for head, rest in cuts if rest for letter in LETTERS]
    return [other for other in dict.fromkeys(found) if other != word]
