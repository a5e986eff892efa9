"""A finished case, opened for questions that no rule asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.case import open_for_rules
from forensics.errors import CaseError

if TYPE_CHECKING:
    import duckdb


class Case:
    """A case file, read-only; use it as a context manager or close it.

    `path` is a `case.duckdb` or the folder that `forensics analyze` wrote. Raises CaseError when there is none.
    """

    def __init__(self, path: str | Path, *, memory_limit: str | None = None) -> None:
        given = Path(path)
        self.path = given / "case.duckdb" if given.is_dir() else given
        if not self.path.is_file():
            raise CaseError(f"{self.path}: not found; expected a case; run `forensics analyze` first")
        self._con = open_for_rules(self.path, memory_limit)

    def query(self, sql: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the case (`.df()` gives a pandas frame); `$name` in the SQL takes a keyword."""
        answer: duckdb.DuckDBPyRelation | None = self._con.sql(sql, params=parameters or None)
        if answer is None:
            raise CaseError("query: the statement gives no rows; expected a SELECT")
        return answer

    def close(self) -> None:
        self._con.close()

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
