"""A search engine for your own collection: the only module that knows all parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from genius.confidence import NEAR
from genius.engine.changing import IndexChanges
from genius.engine.searching import IndexSearch
from genius.filter.grammar import field_tests, field_text, parse_filter
from genius.fitting.due import fit_state
from genius.ingest.missing import FilesReport, missing_files
from genius.query.branch import Branch, branch
from genius.query.browse import ItemPage, browse
from genius.query.defaults import describe_options
from genius.query.duplicates import DuplicateGroup, find_duplicates
from genius.store.records import Record
from genius.store.stats import stats


class Engine(IndexChanges, IndexSearch):
    """An open index together with the model that made it. Threads may share it."""

    def __len__(self) -> int:
        """The number of items."""
        return len(self._current())

    def __bool__(self) -> bool:
        """An engine is true, whether or not its index is empty."""
        return True

    def __iter__(self) -> Iterator[str]:
        """The ids of all items in insertion order, like the keys of a dict."""
        return self.index.truth.ids()

    def __contains__(self, id: object) -> bool:
        """Whether there is an item with this id."""
        return isinstance(id, str) and self.get(id) is not None

    def count(self, where: str | None = None) -> int:
        """The number of items that match a filter, or of all items."""
        return self.browse(where, limit=0).total

    def unknown_fields(self, where: str) -> list[str]:
        """The metadata fields in a filter that no item has, perhaps because they are misspelt."""
        tests = field_tests(parse_filter(where))
        fields = dict.fromkeys(test.field for test in tests if test.field.built_in is None)
        return [".".join(field.path) for field in fields if not self.count(f"has {field_text(field)}")]

    def browse(
        self,
        where: str | None = None,
        limit: int | None = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        facets: Sequence[str] = (),
    ) -> ItemPage:
        """The stored items that match a filter, in insertion order, and how many there are.

        `cursor` is that of the previous page; items added or changed meanwhile come last. `facets`
        are fields whose values are counted over all of these items.
        """
        self.prepare(where)
        view = self._current()
        pool = None if where is None else self._filters.pool(where, view)
        return browse(self.index.truth, view, pool, limit, offset, cursor, facets)

    def duplicates(self, at_least: float | None = NEAR) -> list[DuplicateGroup]:
        """Groups of items with the same content or, unless `at_least` is None, at least so similar."""
        return find_duplicates(self.index, at_least)

    def missing_files(self) -> FilesReport:
        """Items whose files are missing, with the new path of those that were only moved."""
        return missing_files(self.index)

    def branch(
        self, prefix: Sequence[int] = (), max_items: int = 24, max_children: int = 64, per_child: int = 4
    ) -> tuple[Branch, dict[int, Record]]:
        """The items under a prefix of codes, its children, and the records of the rows in both."""
        found = branch(self._current(), prefix, max_items, max_children, per_child)
        rows = {*found.rows, *(row for child in found.children for row in child.rows)}
        return found, self.index.truth.records(rows)

    def stats(self) -> dict[str, Any]:
        """Items, sizes, settings and the default search, as plain values; does not load the model."""
        counted = stats(self.index)
        search = describe_options(
            self._search_settings(),
            vectors=self.index.dim is not None,
            items=counted["items"],
            codes=self.index.levels > 1,
        )
        state = self.index.truth.identity, self.index.truth.change()
        if self._fit_state is None or self._fit_state[0] != state:
            self._fit_state = state, fit_state(self.index)
        fit = self._fit_state[1]
        if fit.number:
            search["chosen_on"] = "nothing (untuned defaults)"
        return {**counted, "search": search, "fit": fit.as_dict()}
