"""Files that survive the process: every write goes to the kernel at once, which keeps it through `kill -9`.

A line that the kernel has is lost only with the machine. Nothing here ever raises into training code: what cannot be
written (a full disk) is counted and said in the next line that can.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """JSON lines appended to `folder/stem.jsonl`, a header first; bounded by keeping the last two parts.

    When a part reaches `max_bytes` it becomes `stem.1.jsonl` (replacing the one before) and a new one begins. So
    between one and two times `max_bytes` of the newest lines are kept.
    """

    def __init__(self, folder: Path, stem: str, header: dict[str, Any], max_bytes: int = 64 << 20) -> None:
        self.path = folder / f"{stem}.jsonl"
        self._older = folder / f"{stem}.1.jsonl"
        self._header = header
        self._max_bytes = max_bytes
        self._file = -1
        self._size = 0
        self._n_lost = 0
        self._owner = os.getpid()

    def write(self, *lines: dict[str, Any]) -> None:
        """Appends lines in one write; a call in a forked child is ignored, since the file is its parent's."""
        if os.getpid() != self._owner or not lines:
            return
        try:
            if self._file < 0:
                self._begin()
            elif self._size >= self._max_bytes:
                self.close()
                self.path.replace(self._older)
                self._begin()
            if self._n_lost:
                lines = ({"recorder": "lines lost", "n": self._n_lost}, *lines)
            self._append("".join(encode(line) for line in lines))
            self._n_lost = 0
        except OSError:
            self._n_lost += len(lines)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._file).st_size
        if self._size == 0:
            self._append(encode(self._header))

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        written = os.write(self._file, data)
        self._size += written
        if written < len(data):  # the disk is full: close the broken line, so that the next one is whole
            os.write(self._file, b"\n")
            raise OSError("short write")


def encode(value: dict[str, Any]) -> str:
    """One line of JSON. NaN and infinities are written as the bare tokens that Python's own reader takes."""
    return json.dumps(value, separators=(",", ":"), default=str) + "\n"


def write_whole(path: Path, content: str | bytes) -> bool:
    """Writes a small file that is there whole or not at all; returns whether it could be written."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        return False
    return True
