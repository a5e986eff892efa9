"""The case: a plain DuckDB file that explains itself and cannot be used to reach files or the network."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from forensics import Case
from forensics.assembly import assemble_case
from forensics.case import case_columns, conform, create_case, intern, open_for_rules
from forensics.discovery import discover
from forensics.errors import CaseError
from forensics.ingest import ingest
from forensics.states import CAPABILITIES

pytestmark = pytest.mark.installed


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "case.duckdb"
    con = create_case(path)
    con.execute("INSERT INTO string VALUES (1, 'a'), (2, 'b')")
    con.close()
    return path


def test_every_table_view_and_column_has_a_comment(case: Path) -> None:
    con = duckdb.connect(str(case), read_only=True)
    bare = con.execute(
        "SELECT table_name, '' FROM duckdb_tables() WHERE comment IS NULL"
        " UNION ALL SELECT view_name, '' FROM duckdb_views() WHERE comment IS NULL AND NOT internal"
        " UNION ALL SELECT table_name, column_name FROM duckdb_columns() WHERE comment IS NULL AND NOT internal"
        " AND table_name IN (SELECT table_name FROM duckdb_tables())"
    ).fetchall()
    con.close()
    assert bare == []


def test_a_plain_duckdb_connection_opens_the_case(case: Path) -> None:
    con = duckdb.connect(str(case), read_only=True)
    assert con.execute("SELECT count(*) FROM capability").fetchone() == (len(CAPABILITIES),)
    con.close()


@pytest.mark.parametrize(
    "statement",
    [
        "COPY string TO 'out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "DROP TABLE string",
        "ATTACH 'other.duckdb'",
    ],
)
def test_rules_can_neither_write_nor_reach_files_nor_change_settings(case: Path, statement: str) -> None:
    con = open_for_rules(case)
    with pytest.raises(duckdb.Error):
        con.execute(statement)
    con.close()


def test_case_answers_questions_as_relations_and_frames(case: Path) -> None:
    with Case(case) as opened:
        assert opened.query("SELECT text FROM string WHERE id = $id", id=2).fetchall() == [("b",)]
        assert list(opened.query("SELECT text FROM string ORDER BY id").df()["text"]) == ["a", "b"]


def test_a_missing_or_foreign_case_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="forensics analyze"):
        Case(tmp_path)
    (tmp_path / "case.duckdb").write_bytes(b"no database at all" * 100)
    with pytest.raises(CaseError, match="cannot be opened"):
        Case(tmp_path)


def test_rows_of_a_format_are_cast_and_completed() -> None:
    rows = conform(
        "slice",
        pa.table({"row": [0], "kind": ["kernel"], "name": ["k"], "correlation": pa.array([2**63 + 1], pa.uint64())}),
    )
    assert rows.column("proc").to_pylist() == [0] and rows.column("correlation").to_pylist() == [2**63 + 1]


@pytest.mark.parametrize(
    ("table", "columns", "complaint"),
    [
        ("slice", {"row": [0], "kind": ["kernel"], "name": ["k"], "colour": ["red"]}, "unknown columns"),
        ("slice", {"row": [0], "kind": ["kernel"]}, "name"),
        ("finding", {"id": [0]}, "not a table that formats fill"),
    ],
)
def test_rows_that_do_not_fit_their_table_are_refused(
    table: str, columns: dict[str, list[object]], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        conform(table, pa.table(columns))


def test_columns_read_off_the_schema_file_are_those_that_duckdb_makes(case: Path) -> None:
    con = duckdb.connect(str(case), read_only=True)
    rows = con.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        " AND table_name IN (SELECT table_name FROM duckdb_tables()) ORDER BY table_name, column_index"
    ).fetchall()
    con.close()
    read = sorted(
        (table, column, kind) for table, columns in case_columns().items() for column, kind in columns.items()
    )
    assert read == sorted(rows)


def test_event_tables_start_alike() -> None:
    head = ["artifact_id", "row", "proc_id", "rank", "step", "ts_ns"]
    for table in (
        "log_event",
        "sample",
        "slice",
        "memory_event",
        "collective",
        "thread_state",
        "node",
        "tensor",
        "compile_event",
    ):
        assert list(case_columns()[table])[:6] == head


def test_texts_are_stored_once_by_the_id_that_the_database_gives_them(tmp_path: Path) -> None:
    known: set[int] = set()
    names = ["aten::add", "b", "aten::add"]
    encoded = pa.table({"row": [4, 2, 3], "kind": ["k"] * 3, "name": pa.array(names).dictionary_encode()})
    plain = pa.table({"row": [5], "kind": ["k"], "name": ["c"], "shapes": ["[[1]]"]})
    rows, texts = intern("slice", [conform("slice", encoded), conform("slice", plain)], known)
    assert rows.column("row").to_pylist() == [2, 3, 4, 5]
    by_id = dict(zip(texts.column("id").to_pylist(), texts.column("text").to_pylist(), strict=True))
    assert [by_id[number] for number in rows.column("name_id").to_pylist()] == ["b", "aten::add", "aten::add", "c"]
    assert [by_id.get(number) for number in rows.column("shapes_id").to_pylist()] == [None, None, None, "[[1]]"]
    asked = duckdb.sql("SELECT md5_number_lower(text), text FROM (VALUES ('aten::add'), ('b')) AS t (text)").fetchall()
    assert all(by_id[number] == text for number, text in asked)
    assert intern("slice", [conform("slice", plain)], known)[1].num_rows == 0


def test_files_of_one_content_give_each_artifact_its_rows_once(tmp_path: Path) -> None:
    for rank in range(3):
        file = tmp_path / "job" / f"rank_{rank}" / "metrics.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')
    loaded = ingest(discover(tmp_path / "job", tmp_path / "work"), tmp_path / "cache")
    assemble_case(loaded, tmp_path / "case.duckdb")
    con = duckdb.connect(str(tmp_path / "case.duckdb"), read_only=True)
    counted = con.execute("SELECT artifact_id, rank, count(*) FROM sample GROUP BY ALL ORDER BY ALL").fetchall()
    con.close()
    assert counted == [(0, 0, 2), (1, 1, 2), (2, 2, 2)]


def _hungry(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TEMP TABLE kept AS SELECT list(i::VARCHAR || 'x' ORDER BY i) AS l FROM range(1500000) AS r (i)")


@pytest.mark.parametrize("more", ["600MB", "60MB"])
def test_a_step_that_needs_more_memory_gets_it_once_and_else_says_what_to_do(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.case.BUILDING_LIMIT", "60MB")
    monkeypatch.setattr("forensics.assembly.MEMORY_LIMIT", more)
    monkeypatch.setattr("forensics.assembly.DERIVATIONS", (_hungry,))
    if more == "600MB":
        assert assemble_case([], tmp_path / "case.duckdb") == []
        return
    with pytest.raises(CaseError, match=r"_hungry: .*raise --memory-limit"):
        assemble_case([], tmp_path / "case.duckdb")
