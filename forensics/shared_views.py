"""Views that several rules read, each run once and kept as a table when a rule that runs first names it.

Planning these joins again in each rule costs most of the time of a small analysis, and so would running all of them
where few rules have evidence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from functools import lru_cache

import duckdb

from forensics.deadline import Deadline

_CREATE = re.compile(r"\bCREATE TEMP VIEW (\w+)")
_WORD = re.compile(r"\w+")
_OF_THE_SCHEMA = ("log", "frame")  # as views, with texts in place of their ids


class SharedViews:
    """The views of one connection. `views`: SQL of the library's (see `library.load_views`)."""

    def __init__(self, con: duckdb.DuckDBPyConnection, views: Sequence[str], deadline: Deadline) -> None:
        self._con = con
        self._deadline = deadline
        self._unmade = {name: f"CREATE TEMP VIEW {name} AS SELECT * FROM main.{name}" for name in _OF_THE_SCHEMA}
        for view in views:
            for name in _CREATE.findall(view):
                self._unmade.setdefault(name.lower(), view)

    def make_all(self) -> None:
        """Before a query that is not known."""
        for view in list(self._unmade.values()):
            self.make(view)

    def make(self, sql: str) -> None:
        """Makes those that a statement names, after those that they name in turn."""
        for word in _words(sql):
            view = self._unmade.pop(word, None)
            if view is not None:
                self.make(view)
                self._create(view)

    def _create(self, view: str) -> None:
        """A view that fails stays a view, so that only the rules that read it fail."""
        try:
            with self._deadline.interrupting(self._con):
                self._con.execute(_CREATE.sub(r"CREATE TEMP TABLE \1", view, count=1))
        except duckdb.Error:
            with contextlib.suppress(duckdb.Error):
                self._con.execute(view)


@lru_cache(maxsize=2048)
def _words(sql: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_WORD.findall(sql.lower())))
