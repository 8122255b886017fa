"""The ids of one run, without holding them in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable


class SeenIds:
    """A set of ids in a file without a name, which goes with the process: there may be millions."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", check_same_thread=False)
        self._table.execute("CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def again(self, ids: Iterable[str]) -> list[str]:
        """Those of the distinct ids that were here before; all of them are, from now on."""
        insert = "INSERT OR IGNORE INTO seen VALUES (?)"
        return [id for id in dict.fromkeys(ids) if not self._table.execute(insert, (id,)).rowcount]

    def close(self) -> None:
        """Let go of the file."""
        self._table.close()
