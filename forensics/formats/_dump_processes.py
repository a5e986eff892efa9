"""Numbers the processes of one dump, and says what command lines and headings tell of their ranks.

Each process also becomes the facts `pid`, `parent_pid` and `command`: of several files that speak of one process each,
`proc` may keep only one pid.
"""

from __future__ import annotations

import re
from typing import Any

from forensics.artifact import Sink, Source
from forensics.formats._text_lines import clean_text
from forensics.redact import masked_text

MAX_PROCESSES = 4096
MAX_PID = (1 << 31) - 1
_MAX_COMMAND = 2000

_RANK = re.compile(r"(?:--(?:global[-_])?rank[= ]|(?<![A-Za-z_])RANK=)(\d{1,6})(?!\d)")
_LOCAL_RANK = re.compile(r"(?:--local[-_]rank[= ]|LOCAL_RANK=)(\d{1,4})(?!\d)")
# Titles that servers give their processes: `sglang::scheduler_TP3`, `VLLM::Worker_TP1`. With other parallelism beside
# it, the number is no rank.
_TITLE = re.compile(r"::?\w{0,40}?((?:_(?:DP|PP|EP|TP)\d{1,5})+)\b")
_TENSOR_PARALLEL = re.compile(r"_TP(\d{1,5})$")
_HEADING_RANK = re.compile(r"(?<![a-z])rank[ _=:#-]{0,3}(\d{1,6})(?!\d)", re.IGNORECASE)
_HEADING_HOST = re.compile(r"\bhost(?:name)?[ =:]{1,3}([A-Za-z][\w.-]{0,80})", re.IGNORECASE)


def ranks_of_command(command: str) -> dict[str, int]:
    """`rank` and `local_rank` where a command line or process title tells them."""
    text = command[:_MAX_COMMAND]
    found: dict[str, int] = {}
    if rank := _RANK.search(text):
        found["rank"] = int(rank[1])
    elif (title := _TITLE.search(text)) and (parallel := _TENSOR_PARALLEL.match(title[1])):
        found["rank"] = int(parallel[1])
    if local := _LOCAL_RANK.search(text):
        found["local_rank"] = int(local[1])
    return found


def place_of_heading(line: str) -> dict[str, Any]:
    """`rank` and `host` that a line between dumps tells of the next: `=== rank 3 on host node-2 ===`."""
    text = line[:400]
    rank, host = _HEADING_RANK.search(text), _HEADING_HOST.search(text)
    return ({"rank": int(rank[1])} if rank else {}) | ({"host": host[1]} if host else {})


def ends_inside_line(source: Source) -> bool:
    """Whether an uncompressed artifact lacks its last line feed; what is compressed tells its own damage."""
    with source.open() as stream, source.path.open("rb") as file:
        if stream.read(4) != file.read(4):
            return False
        size = file.seek(0, 2)
        file.seek(max(size - 4, 0))
        return size > 0 and not file.read().rstrip(b"\0").endswith(b"\n")


class DumpProcesses:
    """Processes in the order in which a dump speaks of them; a pid that comes again on the same host is the same."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._numbers: dict[tuple[str | None, int | None], int] = {}
        self._told: set[tuple[int, str]] = set()
        self._ranked: set[int] = set()
        self.n_read: dict[int, int] = {}

    def number(self, pid: int | None, *, line: int | None = None, **known: Any) -> int:
        """The number of a process; `known` as for `Sink.proc`."""
        pid = pid if pid is not None and 0 < pid <= MAX_PID else None
        key = (known.get("host"), pid)
        number = self._numbers.get(key)
        if number is None:
            number = min(len(self._numbers), MAX_PROCESSES)
            if number < MAX_PROCESSES:
                self._numbers[key] = number
                self._sink.proc(number, pid=pid)
                if pid is not None:
                    self.tell(number, "pid", str(pid), line, number_value=pid)
        if number < MAX_PROCESSES:
            self.learn(number, **known)
        return number

    def learn(self, number: int, **known: Any) -> None:
        values = {key: value for key, value in known.items() if value is not None}
        if "rank" in values:
            if number in self._ranked:
                del values["rank"]
            else:
                self._ranked.add(number)
                values["rank_origin"] = "content"
        if values:
            self._sink.proc(number, **values)

    def command(self, number: int, command: str, line: int | None) -> None:
        """The command line or title of a process."""
        if command.strip():
            self.tell(number, "command", masked_text(clean_text(command.strip()[:_MAX_COMMAND])), line, scope="command")
            self.learn(number, **ranks_of_command(command))

    def parent(self, number: int, pid: int, line: int | None) -> None:
        self.tell(number, "parent_pid", str(pid), line, number_value=pid)

    def tell(
        self,
        number: int,
        key: str,
        value: str,
        line: int | None,
        *,
        scope: str = "note",
        number_value: float | None = None,
    ) -> None:
        """One fact of a process, once."""
        if (number, key) not in self._told and number < MAX_PROCESSES:
            self._told.add((number, key))
            self._sink.fact(key, value, scope=scope, line=line, number=number_value, proc=number)
