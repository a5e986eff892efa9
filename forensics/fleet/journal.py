"""What a fleet remembers of each job: an append-only file of JSON lines that a kill at any moment leaves readable.

Lines: `{"event": "run", "run", "at_ns", "edition"}`, `{"event": "start", "job", "run"}`, which "withdrawn" takes back,
and `{"event": "end", "job", "run", "status", "stamp", "content", "edition", "bounds", "reason", "since"}`. A torn last
line is ignored; the next writer ends it. Only the holder of the fleet's lock writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

ANALYZED, NOT_ANALYZED = "analyzed", "not-analyzed"
_MOST_LINES_PER_JOB = 8  # more, and the file is written anew


@dataclass
class Memory:
    """The last word on one job. `since`: the run that first met its content; `n_open`: starts without an end."""

    status: str = ""
    stamp: str = ""
    content: str = ""
    edition: str = ""
    bounds: str = ""
    reason: str = ""
    since: int = 0
    n_open: int = 0


@dataclass
class Journal:
    """The journal, read at once and appended to; use it as a context manager."""

    path: Path
    jobs: dict[str, Memory] = field(default_factory=dict)
    run: int = 0

    def __enter__(self) -> Journal:
        n_lines = self._read()
        if n_lines > 1000 and n_lines > _MOST_LINES_PER_JOB * len(self.jobs):
            self._rewrite()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if self._torn:
            os.write(self._file, b"\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._file)

    def begin_run(self, edition: str, at_ns: int) -> int:
        self.run += 1
        self._append({"event": "run", "run": self.run, "at_ns": at_ns, "edition": edition})
        return self.run

    def start(self, job: str) -> None:
        self.jobs.setdefault(job, Memory()).n_open += 1
        self._append({"event": "start", "job": job, "run": self.run})

    def withdraw(self, job: str) -> None:
        """Takes a start back: the batch was asked to stop, so the job is not suspected of having ended it."""
        self.jobs[job].n_open -= 1
        self._append({"event": "withdrawn", "job": job, "run": self.run})

    def end(self, job: str, **said: Any) -> None:
        """`said`: fields of Memory."""
        self.jobs[job] = Memory(**said)
        self._append({"event": "end", "job": job, "run": self.run, **said})

    def _append(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, orjson.dumps(line) + b"\n")  # one write: whole, or cut where the machine died
        os.fsync(self._file)

    def _read(self) -> int:
        self._torn = False
        n_lines = 0
        try:
            with self.path.open("rb") as lines:
                for line in lines:
                    n_lines += 1
                    self._torn = not line.endswith(b"\n")
                    self._take(line)
        except FileNotFoundError:
            pass
        return n_lines

    def _take(self, line: bytes) -> None:
        try:
            said = orjson.loads(line)
            run = int(said["run"])
            if said["event"] == "start":
                self.jobs.setdefault(said["job"], Memory()).n_open += 1
            elif said["event"] == "withdrawn":
                self.jobs[said["job"]].n_open -= 1
            elif said["event"] == "end":
                known = {name: said[name] for name in Memory.__dataclass_fields__ if name in said}
                self.jobs[said["job"]] = Memory(**known)
        except (ValueError, KeyError, TypeError):  # torn by a kill
            return
        self.run = max(self.run, run)

    def _rewrite(self) -> None:
        beside = self.path.with_name(".journal.new")
        with beside.open("wb") as file:
            file.write(orjson.dumps({"event": "run", "run": self.run, "at_ns": 0, "edition": ""}) + b"\n")
            for job, known in self.jobs.items():
                n_open = known.n_open
                if known.status:
                    said = {name: getattr(known, name) for name in Memory.__dataclass_fields__ if name != "n_open"}
                    file.write(orjson.dumps({"event": "end", "job": job, "run": self.run, **said}) + b"\n")
                for _ in range(n_open):
                    file.write(orjson.dumps({"event": "start", "job": job, "run": self.run}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
