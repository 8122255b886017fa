"""The index of words as a part of the truth: there or not, and changed in the transactions of the items."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from genius.store import words
from genius.store.database import Database
from genius.store.words import ItemWords


class IndexedWords(Database):
    """A truth that may have an index of its items' words."""

    def has_words(self) -> bool:
        """Whether the words of all items are indexed."""
        return bool(self.get(words.SETTING, 0) == words.VERSION)

    def words_agree(self) -> bool:
        """Whether the index of words, if there is one, has the words that the items have."""
        with self.reading():
            if not self.has_words() or not words.supported():
                return True
            try:
                return words.agrees(self.connection)
            except sqlite3.DatabaseError:
                return False

    def build_words(self) -> None:
        """Make the index of words from all items, if this SQLite can; the caller holds the transaction."""
        if words.supported():
            words.build(self.connection)
            self.put(**{words.SETTING: words.VERSION})

    def change_words(self, old: Sequence[ItemWords] = (), new: Sequence[ItemWords] = ()) -> None:
        """Take items out of the index of words and put others in; a damaged one is given up."""
        if not self.has_words():
            return

        def change() -> None:
            words.remove(self.connection, old)
            words.add(self.connection, new)

        if not words.supported() or not words.kept_whole(self.connection, change):
            self.give_up_words()

    def give_up_words(self) -> None:
        """From now on there is no index of words, until one is built."""
        self.put(**{words.SETTING: 0})
