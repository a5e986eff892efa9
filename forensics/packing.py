"""A redacted bundle of a case: the report's files and the case, with every text in them masked.

The case is written anew, so that nothing that was masked stays behind in unused pages of the file.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from forensics.case import connect, create_case
from forensics.errors import CaseError
from forensics.redact import MASK, is_secret, mask

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first day that an archive can say: the same case gives the same bytes
_TEXT = ("VARCHAR", "JSON")


def pack(case: Path, archive: Path) -> list[str]:
    """Writes the archive; the names within. Raises CaseError where the folder holds no case."""
    source = case / "case.duckdb"
    if not source.is_file():
        raise CaseError(f"{source}: not found; expected a folder that `forensics analyze` wrote")
    with tempfile.TemporaryDirectory(prefix="forensics-pack-") as work:
        masked = Path(work) / "case.duckdb"
        try:
            redact_case(source, masked)
        except duckdb.Error as error:
            said = str(error).partition("\n")[0]
            raise CaseError(
                f"{source}: cannot be read ({said}); expected a case that `forensics analyze` wrote"
            ) from error
        building = archive.with_name(archive.name + ".part")
        names = []
        try:
            with zipfile.ZipFile(building, "w", zipfile.ZIP_DEFLATED) as bundle:
                for name, content in _report_files(case):
                    _add(bundle, name, content)
                    names.append(name)
                _add(bundle, "case.duckdb", masked.read_bytes())
            building.replace(archive)
        finally:
            building.unlink(missing_ok=True)
    return [*names, "case.duckdb"]


def _report_files(case: Path) -> Iterator[tuple[str, bytes]]:
    """The page as it is where it was written masked; it is left out where not. The others are masked value by value."""
    page, document, reviews = case / "report.html", case / "report.json", case / "reviews.jsonl"
    if document.is_file():
        try:
            held = orjson.loads(document.read_bytes())
        except orjson.JSONDecodeError as error:
            raise CaseError(f"{document}: not a report; expected the one that `forensics analyze` wrote") from error
        if page.is_file() and isinstance(held, dict) and held.get("redacted") is True:
            yield page.name, page.read_bytes()
        yield document.name, orjson.dumps(_masked_value(held), option=orjson.OPT_INDENT_2) + b"\n"
    if reviews.is_file():
        said = (orjson.loads(line) for line in reviews.read_bytes().splitlines() if _is_json(line))
        yield reviews.name, b"".join(orjson.dumps(_masked_value(row)) + b"\n" for row in said)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _masked_value(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        return _masked(name, value)
    if isinstance(value, list):
        return [_masked_value(item, name) for item in value]
    if isinstance(value, dict):
        return {mask(key): _masked_value(item, key) for key, item in value.items()}
    return value


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    bundle.writestr(entry, content)


def redact_case(source: Path, target: Path) -> None:
    """A new case with the rows of the old one, each text masked, values of facts by their names too."""
    create_case(target).close()
    con = connect()
    try:
        con.execute(f"ATTACH '{_quoted(source)}' AS old (READ_ONLY)")
        con.execute(f"ATTACH '{_quoted(target)}' AS new")
        tables = con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'old' AND table_name IN"
            " (SELECT table_name FROM duckdb_tables() WHERE database_name = 'new') ORDER BY table_name"
        ).fetchall()
        for (table,) in tables:
            _copy(con, table)
        con.execute("CHECKPOINT new")
    finally:
        con.close()


def _copy(con: duckdb.DuckDBPyConnection, table: str) -> None:
    columns = con.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'new' AND table_name = ?"
        " ORDER BY column_index",
        [table],
    ).fetchall()
    replaced, joins = [], []
    for i, (name, kind) in enumerate(columns):
        column = f'o."{name}"'
        if kind not in _TEXT or (table, name) == ("artifact", "sha256"):
            replaced.append(column)
            continue
        key = "o.key" if (table, name) == ("fact", "value") else "''"
        pairs = con.execute(
            f"SELECT DISTINCT {key}, {column}::VARCHAR FROM old.{table} AS o WHERE {column} IS NOT NULL"
        ).fetchall()
        masked_as = _masked_json if kind == "JSON" else _masked
        changed = [(k, text, shown) for k, text in pairs if (shown := masked_as(k, text)) != text]
        if not changed:
            replaced.append(column)
            continue
        keys, texts, masked = zip(*changed, strict=True)
        con.register(f"changed_{i}", pa.table({"k": keys, "was": texts, "becomes": masked}))
        joins.append(f"LEFT JOIN changed_{i} AS c{i} ON c{i}.was = {column}::VARCHAR AND c{i}.k = {key}")
        replaced.append(f"coalesce(c{i}.becomes, {column}::VARCHAR)::{kind}")
    con.execute(f"DELETE FROM new.{table}")
    con.execute(
        f"INSERT INTO new.{table} SELECT {', '.join(replaced)} FROM old.{table} AS o {' '.join(joins)} ORDER BY o.rowid"
    )


def _masked_json(_: str, text: str) -> str:
    try:
        held = orjson.loads(text)
    except orjson.JSONDecodeError:
        return mask(text)
    shown = _masked_value(held)
    return text if shown == held else orjson.dumps(shown).decode()


def _masked(key: str, text: str) -> str:
    return MASK if key and is_secret(key, text) else mask(text)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
