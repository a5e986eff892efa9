"""Reads texts as logs, for tests: rows with their fields as objects, and tracebacks made to measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import MemorySink, load

from forensics.formats import log


def read(tmp_path: Path, text: str) -> MemorySink:
    path = tmp_path / "x.log"
    path.write_text(text, encoding="utf-8")
    return load(log, path)


def events(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    rows = read(tmp_path, text).rows("log_event")
    for row in rows:
        row["fields"] = json.loads(row["fields"]) if row["fields"] else {}
    return rows


def traceback_of(error: str, *names: str, indent: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for number, name in enumerate(names, 1):
        lines += [
            f'  File "train.py", line {number}, in {name}',
            f"    {name}()  # RuntimeError: not this",
            "    ^^^^^",
        ]
    return "".join(f"{indent}{line}\n" for line in [*lines, error])
