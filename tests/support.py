"""Shared by tests: a sink that keeps everything in memory, and the folders of real artifacts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from forensics.artifact import Source
from forensics.case import conform, joined
from forensics.states import CAPABILITIES

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
ARTIFACTS = SHARED / "artifacts"
needs_artifacts = pytest.mark.skipif(not ARTIFACTS.is_dir(), reason="the folder of real artifacts is absent")


class MemorySink:
    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {}
        self.procs: dict[int, dict[str, Any]] = {}
        self.coverage: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []
        self.facts: list[dict[str, Any]] = []
        self.clock_kind = "none"
        self.clock_error_ns: int | None = None
        self.quality = "complete"
        self.bad_byte: int | None = None

    def emit(self, table: str, data: Any) -> None:
        if hasattr(data, "to_arrow_table"):
            data = data.to_arrow_table()
        self.tables.setdefault(table, []).append(conform(table, data))

    def proc(self, number: int = 0, **known: Any) -> None:
        self.procs.setdefault(number, {}).update({k: v for k, v in known.items() if v is not None})

    def cover(self, capability: str, **known: Any) -> None:
        assert capability in CAPABILITIES, capability
        self.coverage.append({"capability": capability, **known})

    def warn(self, code: str, message: str, hides: str, **where: Any) -> None:
        self.warnings.append({"code": code, "message": message, "hides": hides, **where})

    def fact(self, key: str, value: str, **known: Any) -> None:
        self.facts.append({"key": key, "value": value, **known})

    def clock(self, kind: str, *, error_ns: int | None = None) -> None:
        self.clock_kind, self.clock_error_ns = kind, error_ns

    def damaged(self, quality: str, *, byte: int | None = None, lost_bytes: int | None = None) -> None:
        self.quality = quality
        self.bad_byte = byte

    def rows(self, table: str) -> list[dict[str, Any]]:
        if table not in self.tables:
            return []
        return list(joined(self.tables[table]).to_pylist())


def load(module: Any, path: Path) -> MemorySink:
    """Loads one file with one format; an ArtifactError is the caller's to expect."""
    sink = MemorySink()
    module.load(Source(path, path.name), sink)
    return sink


def fixture_program(name: str) -> ModuleType:
    """A module of fixtures/programs, which is no package."""
    spec = importlib.util.spec_from_file_location(f"fixture_{name}", ROOT / "fixtures" / "programs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
