"""Which process wrote a line: numbers for the ranks, hosts and actors that prefixes name, and what is known of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from forensics.artifact import Sink
from forensics.formats._log_blocks import FRAME, HEADER
from forensics.formats._log_catalogue import Match
from forensics.formats._log_cluster import CLUSTER_WORDS
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_prefix import COMPOSE, RICH, TIMED, parse
from forensics.formats._log_time import MONTHS, Clock, Stamp, dayless_stamp, full_stamp, time_ns

MAX_PROCESSES = 4096
SURVEY_LINES = 4000

_SRUN = re.compile(r" {0,4}(\d{1,5}):(?: |$)")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,80}): ")
_KERNEL_TEXT = re.compile(r"(?:NVRM|pcieport|mlx5_core|EXT4-fs|oom-kill|oom_reaper|nvidia-nv\w+|docker0|IPv6): ")
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[T _](\d\d):(\d\d)(?::(\d\d))?")
# What `date` prints: `Sun Mar  1 10:00:00 UTC 2026`, `Sun  1 Mar 10:00:00 CET 2026`.
_PRINTED_DATE = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +"
    r"(?:(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2})|(?P<day2>\d{1,2}) +(?P<month2>[A-Z][a-z]{2}))"
    r" +(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?: (?P<half>[AP]M))?"
    r"(?: [A-Z]{2,5}| [+-]\d{2,4})? (?P<year>20\d\d)\b"
)
_LEAST_TIMED = 3  # lines
_LEAST_TIMED_NS = 3600 * 10**9  # times since a start begin at zero
_SCHEDULER_TABLE = re.compile(
    r"LAST SEEN +TYPE +REASON|^\s*JobID\b.*\bState\b|^JobID\|.*State|^Events:|^ +Last State: ", re.MULTILINE
)
_SCHEDULER_WORDS = ("LAST SEEN", "JobID", "Events:", "Last State: ")
_LOOKED_AT = 3
_MAX_LABELS = 3  # one inside the other
# Kinds of marks that name a host, and how far the name may be another than the machine's.
_HOSTS = {"label": 0, "syslog": 0, "pod": 1, "compose": 2}
_ADDRESS = 3
_OF_A_NODE = {"n_local", "n_nodes"}
_Key = tuple[str, str | int | None, int | None]


@dataclass
class Survey:
    """What the beginning of a log says about all of it."""

    labels: Labels
    kernel: bool = False
    scheduler_table: bool = False
    cluster: bool = False  # Kubernetes tells of its objects
    several_nccl: bool = False  # NCCL writes for several processes
    told_apart: frozenset[str] = frozenset()  # kinds of marks that name several hosts


def survey(text: str, clock: Clock) -> Survey:
    wordings = text.encode("utf-8", "replace").translate(None, b"0123456789").decode().splitlines()
    worded = [(a, b) for a, b in zip(text.splitlines()[:SURVEY_LINES], wordings, strict=False) if a and not a.isspace()]
    found = Survey(_labels([line for line, _ in worded]))
    found.scheduler_table = any(word in text for word in _SCHEDULER_WORDS) and _SCHEDULER_TABLE.search(text) is not None
    found.cluster = any(word in text for word in CLUSTER_WORDS)
    stamps: list[Stamp] = []
    n_kernel = 0
    writers: set[tuple[str | None, int | None]] = set()
    hosts: dict[str, set[str]] = {}
    # Lines of the same words have the same kind of prefixes: after some of them the others are not looked at.
    alike: dict[str, tuple[int, Line, bool]] = {}
    for raw, words in worded:
        n, line, is_kernel = alike.get(words, (0, None, False))
        places = line is not None and (line.host or line.place) is not None
        differing = line is not None and (places or (line.stamp and line.stamp.kind in {"yearless", "dayless"}))
        if line is None or n < _LOOKED_AT or differing or found.labels.hosts:
            line = parse(raw[:2000], found.labels)
            is_kernel = line.writer == "kernel" or _KERNEL_TEXT.match(line.text) is not None
        alike[words] = n + 1, line, is_kernel
        if line.stamp is not None:
            stamps.append(line.stamp)
        n_kernel += is_kernel
        if line.writer == "nccl":
            writers.add((line.place, line.pid))
        for kind, name in line.marks if line.rank is None else ():
            hosts.setdefault(kind, set()).add(name)
    dated = any(stamp.kind in {"local", "epoch"} for stamp in stamps)
    clock.survey(stamps, [] if dated else list(_moments(text)), timed=found.labels.timed)
    found.kernel = n_kernel * 2 > len(worded) > 0
    found.several_nccl = len(writers) > 1
    found.told_apart = frozenset(kind for kind in _HOSTS if len(hosts.get(kind, ())) > 1)
    return found


def _moments(text: str) -> Iterator[Stamp]:
    """Dates with a time that a text names anywhere."""
    for m in _DATE.finditer(text):
        stamp = full_stamp(int(m[1]), int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6] or "0", None), None)
        if stamp is not None:
            yield stamp
    for m in _PRINTED_DATE.finditer(text):
        month, day = MONTHS.get(m["month"] or m["month2"]), int(m["day"] or m["day2"])
        hour = int(m["hour"]) % 12 + 12 * (m["half"] == "PM") if m["half"] else int(m["hour"])
        if month is not None:
            stamp = full_stamp(int(m["year"]), month, day, time_ns(str(hour), m["minute"], m["second"], None), None)
            if stamp is not None:
                yield stamp


def _is_timed(lines: list[str]) -> bool:
    """Whether most lines begin with a time of day, as whatever follows: in order, and not counted from a start."""
    begun = [line for line in lines if not line[0].isspace()]
    found = [m for line in begun if (line[0] == "[" or line[0].isdigit()) and (m := TIMED.match(line))]
    if len(found) < _LEAST_TIMED or len(found) * 2 <= len(begun):
        return False
    stamps = [dayless_stamp(*(m.groups()[:4] if m[1] else m.groups()[4:8])) for m in found]
    times = [stamp.ns for stamp in stamps if stamp is not None]
    n_back = sum(later < earlier for earlier, later in pairwise(times))
    return bool(times) and times[0] >= _LEAST_TIMED_NS and n_back * 10 <= len(times)


def _labels(lines: list[str]) -> Labels:
    """Which ambiguous prefixes lines have, below those that are known for what they are."""
    labels = Labels()
    for _ in range(_MAX_LABELS):
        parsed = [parse(line[:2000], labels) for line in lines]
        texts = [line.text for line in parsed if line.text]
        here, below = _labels_of(lines), _labels_of(texts)
        ranked = any(line.rank is not None or line.local_rank is not None for line in parsed)
        found = Labels(
            srun=labels.srun or here.srun or (below.srun and not ranked),
            compose=here.compose,
            hosts=labels.hosts | here.hosts | below.hosts,
            timed=labels.timed or here.timed or below.timed,
            rich=here.rich,
        )
        if found == labels:
            break
        labels = found
    labels.carried = _is_carried(parsed)
    return labels


def _is_carried(lines: list[Line]) -> bool:
    """Whether every line has a time: loggers put none before the frames of a traceback."""
    framed = any(FRAME.match(line.text) and line.stamp and line.level is None for line in lines)
    return framed and all(line.stamp is not None for line in lines)


def _labels_of(lines: list[str]) -> Labels:
    numbers = [m[1] for line in lines if line[0] in " 0123456789" and (m := _SRUN.match(line))]
    named = [(m[1], line[m.end() :]) for line in lines if line[0].isalpha() and (m := _HOST.match(line))]
    names = Counter(name for name, text in named if _is_host(name) and not text[:1].isspace())
    # A label of nearly all lines, those of tracebacks among them, is one whatever it looks like.
    framed = {name for name, text in named if FRAME.match(text) or text.startswith(HEADER)}
    common = Counter(name for name, _ in named if name in framed or _is_host(name))
    names.update({name: n for name, n in common.items() if n * 5 > len(lines) * 4})
    n_compose = sum("|" in line and COMPOSE.match(line) is not None for line in lines)
    return Labels(
        compose=n_compose * 5 > len(lines) * 4 and n_compose > 1,
        srun=len(numbers) * 5 > len(lines) * 4 and len(numbers) > 1,
        hosts={name for name, n in names.items() if n > 1},
        timed=_is_timed(lines),
        rich=any(line[0] == "[" and RICH.match(line) for line in lines),
    )


def _is_host(name: str) -> bool:
    """A name with a digit, and a hyphen or one of the usual beginnings: `gpu-a01`, `node17`, `ip-10-0-0-3`."""
    if not any(letter.isdigit() for letter in name):
        return False
    return re.match(r"(?:node|host|gpu|worker|compute|ip-|dgx|nid|cn|gn|pod|train-|n|c)[\w.-]*\d", name) is not None


class Processes:
    """Numbers processes; 0 is the writer of lines without a mark of their own, and the file as a whole."""

    def __init__(self, found: Survey) -> None:
        self._survey = found
        self._numbers: dict[_Key, int] = {}
        self._known: dict[int, dict[str, int | str]] = {}
        self._local_of: dict[int, int] = {}
        self._doubt: dict[int, int] = {}  # how far the host of a process is only a name of something
        self.seen: set[int] = set()
        self._no_rank: str | None = None  # the first rank in a mark that no job has
        self._prefixed: set[int] = set()  # whose rank only a launcher's mark before their lines tells

    def number(self, line: Line) -> int:
        number = self._number(line)
        self.seen.add(number)
        self._no_rank = self._no_rank or line.no_rank
        return number

    def _number(self, line: Line) -> int:
        if not line.names_a_process:
            return 0
        key = self._key(line)
        number = 0 if key is None else self._get(key)
        if line.rank is not None:
            if "rank" not in self._known.get(number, ()):
                self._prefixed.add(number)
            self._learn(number, rank=line.rank, pid=line.pid, device=line.device)
            if line.local_rank is not None:
                self._local_of[line.local_rank] = line.rank
        elif line.local_rank is None:
            self._learn(number, pid=line.pid, device=line.device)
        self._learn(number, local_rank=line.local_rank)
        self._learn_host(number, line)
        return number

    def _key(self, line: Line) -> _Key | None:
        """What a line's process is known by; None for the writer of the file."""
        if line.rank is not None:
            return "rank", line.rank, None
        host = "/".join(name for kind, name in line.marks if kind in self._survey.told_apart) or None
        if line.local_rank is not None:
            return "local", host, line.local_rank
        if line.actor is not None and line.pid is not None:
            return "pid", line.host, line.pid
        if line.writer == "nccl" and self._survey.several_nccl:
            return "pid", line.place, line.pid
        return None if host is None else ("host", host, None)

    def _learn_host(self, number: int, line: Line) -> None:
        """Machines' names count before those of pods and addresses."""
        named = [(_HOSTS[kind], name) for kind, name in line.marks if kind in _HOSTS]
        if line.place is not None:
            named.append((0, line.place))
        elif line.host is not None and not named:
            named.append((_ADDRESS, line.host))
        for doubt, name in named:
            facts = self._known.setdefault(number, {})
            if "host" not in facts or doubt < self._doubt.get(number, 0):
                facts["host"], self._doubt[number] = name, doubt

    def find(self, line: Line) -> int | None:
        """The process of a line, if it has been met before; learns nothing."""
        key = self._key(line)
        return 0 if key is None else self._numbers.get(key)

    def of_rank(self, rank: int, **known: int | str | None) -> int:
        """The process of a rank that a line of another process tells of."""
        number = self._get(("rank", rank, None))
        self._prefixed.discard(number)
        self._learn(number, rank=rank, **known)
        return number

    def of_pid(self, pid: int) -> int | None:
        """The process that is known to have an id, if only one is."""
        found = [number for number, facts in self._known.items() if facts.get("pid") == pid]
        return found[0] if len(found) == 1 else None

    def new_of_pid(self, pid: int) -> int:
        """A process of which only its id is known."""
        number = self._get(("pid", None, pid))
        self._learn(number, pid=pid)
        return number

    def learn_from(self, number: int, match: Match) -> None:
        """What a line of the process says of its rank, or of how many processes the job has."""
        said = {name: value for name, value in match.fields.items() if isinstance(value, int)}
        if match.name == "nccl-init" and {"nccl_rank", "world_size"} <= said.keys():
            self._prefixed.discard(number)
            self._learn(number, rank=said["nccl_rank"], world_size=said["world_size"])
        elif match.cls == "job.size":
            named = [size for name, size in said.items() if name not in _OF_A_NODE]
            self._learn(
                number, world_size=max(named, default=0) or said.get("n_local", 0) * said.get("n_nodes", 1) or None
            )

    def learn(self, number: int, **known: int | str | None) -> None:
        """What a process said of itself, where nothing else is known."""
        if "rank" not in self._known.get(number, ()) or self._known[number]["rank"] == known.get("rank"):
            self._prefixed.discard(number)
            self._learn(number, **known)

    def _get(self, key: _Key) -> int:
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
        if self._no_rank is not None:
            found = f"lines are marked with a rank that no job has, first {self._no_rank}"
            sink.warn("impossible-rank", f"{found}; taken as of no known rank", "whose these lines are")
        one_node = all(local == rank for local, rank in self._local_of.items())
        hosts = {str(facts["host"]) for facts in self._known.values() if "host" in facts}
        for number, facts in sorted(self._known.items()):
            local = facts.get("local_rank")
            if "rank" not in facts and isinstance(local, int) and one_node and len(hosts) < 2:
                facts["rank"] = local
                self._prefixed.add(number)
            origin = "none" if "rank" not in facts else "prefix" if number in self._prefixed else "content"
            sink.proc(number, rank_origin=origin, **facts)  # type: ignore[arg-type]
