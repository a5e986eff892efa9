"""Which process wrote a line: numbers for the ranks, hosts and actors that prefixes name, and what is known of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from forensics.artifact import Sink
from forensics.formats._log_prefix import COMPOSE, Labels, Line, parse
from forensics.formats._log_time import Clock, Stamp

MAX_PROCESSES = 4096
SURVEY_LINES = 4000

_SRUN = re.compile(r" {0,4}(\d{1,5}):(?: |$)")
_HOST = re.compile(r"([a-z][a-z0-9.-]{0,80}): (?=\S)")
_KERNEL_TEXT = re.compile(r"(?:NVRM|pcieport|mlx5_core|EXT4-fs|oom-kill|oom_reaper|nvidia-nv\w+|docker0|IPv6): ")
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[T _]\d\d:\d\d")
_SCHEDULER_TABLE = re.compile(
    r"LAST SEEN +TYPE +REASON|^\s*JobID\b.*\bState\b|^JobID\|.*State|^Events:|^ +Last State: ", re.MULTILINE
)
_SCHEDULER_WORDS = ("LAST SEEN", "JobID", "Events:", "Last State: ")
_LOOKED_AT = 3


@dataclass
class Survey:
    """What the beginning of a log says about all of it."""

    labels: Labels
    kernel: bool = False
    scheduler_table: bool = False
    several_writers: bool = False


def survey(text: str, clock: Clock) -> Survey:
    wordings = text.encode("utf-8", "replace").translate(None, b"0123456789").decode().splitlines()
    worded = [(a, b) for a, b in zip(text.splitlines()[:SURVEY_LINES], wordings, strict=False) if a and not a.isspace()]
    lines = [line for line, _ in worded]
    found = Survey(_labels(lines))
    found.scheduler_table = any(word in text for word in _SCHEDULER_WORDS) and _SCHEDULER_TABLE.search(text) is not None
    stamps: list[Stamp] = []
    n_kernel = 0
    writers: set[tuple[str | None, int | None]] = set()
    hosts: set[str] = set()
    # Lines of the same words have the same kind of prefixes: after some of them the others are not looked at.
    alike: dict[str, tuple[int, Line, bool]] = {}
    for raw, words in worded:
        n, line, is_kernel = alike.get(words, (0, None, False))
        differing = line is not None and (line.host is not None or (line.stamp and line.stamp.kind == "yearless"))
        if line is None or n < _LOOKED_AT or differing or found.labels.hosts:
            line = parse(raw[:2000], found.labels)
            is_kernel = line.writer == "kernel" or _KERNEL_TEXT.match(line.text) is not None
        alike[words] = n + 1, line, is_kernel
        if line.stamp is not None:
            stamps.append(line.stamp)
        n_kernel += is_kernel
        if line.writer == "nccl":
            writers.add((line.host, line.pid))
        if line.host is not None and line.rank is None:
            hosts.add(line.host)
    dated = any(stamp.kind in {"local", "epoch"} for stamp in stamps)
    clock.survey(stamps, [] if dated else _DATE.findall(text))
    found.kernel = n_kernel * 2 > len(lines) > 0
    found.several_writers = len(writers) > 1 or len(hosts) > 1
    return found


def _labels(lines: list[str]) -> Labels:
    numbers = [m[1] for line in lines if line[0] in " 0123456789" and (m := _SRUN.match(line))]
    lower = [line for line in lines if line[0].islower()]
    names = Counter(m[1] for line in lower if (m := _HOST.match(line)) and _is_host(m[1]))
    n_compose = sum("|" in line and COMPOSE.match(line) is not None for line in lines)
    return Labels(
        compose=n_compose * 5 > len(lines) * 4 and n_compose > 1,
        srun=len(numbers) * 5 > len(lines) * 4 and len(numbers) > 1,
        hosts={name for name, n in names.items() if n > 1},
    )


def _is_host(name: str) -> bool:
    """A name with a digit, and a hyphen or one of the usual beginnings: `gpu-a01`, `node17`, `ip-10-0-0-3`."""
    if not any(letter.isdigit() for letter in name):
        return False
    return re.match(r"(?:node|host|gpu|worker|compute|ip-|dgx|nid|cn|gn|pod|train-|n|c)[\w.-]*\d", name) is not None


class Processes:
    """Numbers processes; 0 is the writer of lines without a mark of their own, and the file as a whole."""

    def __init__(self, found: Survey) -> None:
        self._several = found.several_writers
        self._numbers: dict[tuple[str, str | int | None, int | None], int] = {}
        self._known: dict[int, dict[str, int | str]] = {}
        self._local_of: dict[int, int] = {}
        self.seen: set[int] = set()
        self._prefixed: set[int] = set()  # whose rank only a launcher's mark before their lines tells

    def number(self, line: Line) -> int:
        number = self._number(line)
        self.seen.add(number)
        return number

    def _number(self, line: Line) -> int:
        if line.rank is not None:
            number = self._get(("rank", line.rank, None))
            if "rank" not in self._known.get(number, ()):
                self._prefixed.add(number)
            self._learn(number, rank=line.rank, host=line.host, pid=line.pid, device=line.device)
            if line.local_rank is not None:
                self._local_of[line.local_rank] = line.rank
                self._learn(number, local_rank=line.local_rank)
            return number
        if line.local_rank is not None:
            number = self._get(("local", line.host, line.local_rank))
            self._learn(number, local_rank=line.local_rank, host=line.host)
            return number
        if line.actor is not None and line.pid is not None:
            number = self._get(("pid", line.host, line.pid))
            self._learn(number, pid=line.pid, host=line.host)
            return number
        if line.writer == "nccl" and line.pid is not None:
            number = self._get(("pid", line.host, line.pid)) if self._several else 0
            self._learn(number, pid=line.pid, host=line.host, device=line.device)
            return number
        if line.host is not None:
            number = self._get(("host", line.host, None)) if self._several else 0
            self._learn(number, host=line.host)
            return number
        return 0

    def find(self, line: Line) -> int | None:
        """The process of a line, if it has been met before; learns nothing."""
        if line.rank is not None:
            return self._numbers.get(("rank", line.rank, None))
        if line.local_rank is not None:
            return self._numbers.get(("local", line.host, line.local_rank))
        marks = (line.actor, line.host, line.writer if line.pid is not None else None)
        return 0 if all(mark is None for mark in marks) else None

    def of_rank(self, rank: int, **known: int | str | None) -> int:
        """The process of a rank that a line of another process tells of."""
        number = self._get(("rank", rank, None))
        self._prefixed.discard(number)
        self._learn(number, rank=rank, **known)
        return number

    def learn_rank(self, number: int, rank: int, world_size: int) -> None:
        """The process itself says which rank it is."""
        self._prefixed.discard(number)
        self._learn(number, rank=rank, world_size=world_size)

    def _get(self, key: tuple[str, str | int | None, int | None]) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= MAX_PROCESSES:
                return 0
            number = self._numbers[key] = len(self._numbers) + 1
        return number

    def _learn(self, number: int, **known: int | str | None) -> None:
        facts = self._known.setdefault(number, {})
        for name, value in known.items():
            if value is not None:
                facts.setdefault(name, value)

    def describe(self, sink: Sink) -> None:
        """Tells the sink what is known. torchrun's `[default3]:` names the local rank: the rank, on a single node."""
        one_node = all(local == rank for local, rank in self._local_of.items())
        hosts = {str(facts["host"]) for facts in self._known.values() if "host" in facts}
        for number, facts in sorted(self._known.items()):
            local = facts.get("local_rank")
            if "rank" not in facts and isinstance(local, int) and one_node and len(hosts) < 2:
                facts["rank"] = local
                self._prefixed.add(number)
            origin = "none" if "rank" not in facts else "prefix" if number in self._prefixed else "content"
            sink.proc(number, rank_origin=origin, **facts)  # type: ignore[arg-type]
