"""A format dropped in by tests: its artifacts say how loading them goes wrong after a row was emitted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import forensics.formats
from forensics.ingest import Loaded

TROUBLE = '''
"""An artifact that gives one row and then does what it says."""
import ctypes, itertools, os, signal, sys, time
import pyarrow as pa
VERSION = 1
TITLE = "trouble of a test"
PROVIDES = ("log_event",)
def recognise(head):
    return 100 if head.data.startswith(b"TROUBLE") else 0
def load(source, sink):
    words = source.open().read().decode().split()
    row = {"row": [0], "line": [1], "source": ["test"], "role": ["noise"], "message": ["before"]}
    sink.fact("trouble", words[1], scope="note")
    sink.emit("log_event", pa.table(row))
    globals()[words[1]]()
    sink.emit("log_event", pa.table({**row, "row": [1], "message": ["after"]}))
    sink.cover("log_event", n_read=2, n_kept=2)
def crash():
    os.abort()
def fault():
    ctypes.string_at(0)
def hungry():
    kept = []
    while True:
        kept.append(bytearray(1 << 24))
def large():  # more than half of a gibibyte
    bytearray(600 << 20)
def loop():
    while True:
        time.sleep(0.01)
def deaf():  # no signal handler runs in here
    sum(itertools.repeat(0))
def leave():
    os._exit(3)
def fine():
    pass
'''


def messages(item: Loaded) -> list[str]:
    """The texts of a load's events, in their order."""
    texts: dict[int, str] = {}
    for part in item.tables()["string"]:
        stored = pq.read_table(part)
        texts.update(zip(stored.column("id").to_pylist(), stored.column("text").to_pylist(), strict=True))
    parts = [pq.read_table(part) for part in item.tables()["log_event"]]
    return [texts[number] for part in parts for number in part.column("message_id").to_pylist()]


@contextmanager
def dropped_in(folder: Path, name: str, text: str) -> Iterator[None]:
    """A format that the site has beside those of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forensics.formats, "__path__", [*forensics.formats.__path__, str(folder)])
        forensics.formats.formats.cache_clear()
        try:
            yield
        finally:
            forensics.formats.formats.cache_clear()
            sys.modules.pop(f"forensics.formats.{name}", None)
