"""The recipe for `nsys recipe`, and its output read back."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import load

import forensics
from forensics.artifact import Head
from forensics.errors import ArtifactError
from forensics.formats import case_tables

RECIPE = Path(forensics.__file__).parent / "nsys_recipes" / "forensics_case"


def test_the_recipes_metadata_name_a_class_that_its_module_has() -> None:
    told = json.loads((RECIPE / "metadata.json").read_bytes())
    module = ast.parse((RECIPE / f"{told['module_name']}.py").read_text())
    (found,) = [node for node in module.body if isinstance(node, ast.ClassDef)]
    assert found.name == told["class_name"]
    assert {"run", "get_argument_parser"} <= {n.name for n in found.body if isinstance(n, ast.FunctionDef)}


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"artifact_id": [0, 0], "File": ["a", "b"], **columns}), path)
    return path


def test_slices_of_several_reports_come_back_with_their_times_and_names(tmp_path: Path) -> None:
    times = [1_796_025_015_075_173_742, 5]
    path = write(
        tmp_path / "slice.parquet", row=[7, 7], kind=["kernel", "os_call"], name=["gemm", "poll"], ts_ns=times,
        dur_ns=[3, None], device=[0.0, None], stack_id=[9, 9],
    )  # fmt: skip
    assert case_tables.recognise(Head(path.name, path.read_bytes(), True)) > 12
    sink = load(case_tables, path)
    rows = sink.rows("slice")
    assert [(r["row"], r["kind"], r["name"], r["ts_ns"], r["dur_ns"], r["device"]) for r in rows] == [
        (0, "kernel", "gemm", times[0], 3, 0), (1, "os_call", "poll", 5, None, None),
    ]  # fmt: skip
    assert all(r["stack_id"] is None for r in rows)


def test_secrets_in_facts_stay_masked(tmp_path: Path) -> None:
    path = write(
        tmp_path / "fact.parquet", scope=["variable"] * 2, key=["HF_TOKEN", "A"], value=["hunter2hunter2", "b"]
    )
    assert [f["value"] for f in load(case_tables, path).facts] == ["***", "b"]


@pytest.mark.parametrize("columns", [{}, {"kind": [1, 2], "name": ["a", "b"], "dur_ns": ["x", "y"]}])
def test_other_parquet_files_of_that_name_are_refused(columns: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        load(case_tables, write(tmp_path / "slice.parquet", **columns))
    (tmp_path / "slice.parquet").write_bytes(b"PAR1 and no end")
    with pytest.raises(ArtifactError):
        load(case_tables, tmp_path / "slice.parquet")
