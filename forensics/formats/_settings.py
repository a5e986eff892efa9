"""Settings on their way into facts: bounded, masked, with their numbers, and what they say of the process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.artifact import Sink
from forensics.formats._lenient_json import as_int
from forensics.formats._quantities import parse_quantity, parse_size
from forensics.formats._text_lines import clean_text
from forensics.redact import masked_text, masked_value

_MAX_FACTS = 20_000
_MAX_KEY = 500
_MAX_VALUE = 4096
_INT32_MAX = 2**31 - 1
_HOLDS_A_SIZE = re.compile(r"(?:^|[^a-z])(?:mem|memory|shm|ram|swap|size)(?:[^a-z]|$)")
_COMMAND_SCOPES = {"command", "note"}

# Variables and options that name the process itself.
_RANK = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "rank"}
_WORLD = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "world_size"}
_LOCAL_RANK = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "local_rank"}
_HOST = {"HOSTNAME", "SLURMD_NODENAME", "hostname"}


@dataclass(frozen=True)
class Setting:
    key: str
    value: str
    scope: str
    line: int | None = None
    number: float | None = None


def number_of(key: str, value: str) -> float | None:
    """The value as a number, sizes in bytes; `1024m` is a size only where the key says so."""
    number = parse_quantity(value)
    if number is None and _HOLDS_A_SIZE.search(key.lower()):
        size = parse_size(value)
        number = None if size is None else float(size)
    return number


class SettingFacts:
    """Hands settings to the sink; held back until the end, when it is known whose they are."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._settings: list[Setting] = []
        self._known: dict[str, int | str] = {}
        self.n_dropped = 0

    def add(self, setting: Setting) -> None:
        if len(self._settings) >= _MAX_FACTS:
            self.n_dropped += 1
            return
        self._settings.append(setting)
        self._note_process(setting)

    def _note_process(self, setting: Setting) -> None:
        value = setting.value.strip()
        if setting.scope == "outcome" and setting.number is not None:
            self._remember("exit_code", as_int(setting.number, -(2**31), _INT32_MAX))
        elif setting.key == "pid":
            self._remember("pid", as_int(value, 1))
        elif setting.scope in {"variable", "distributed", "host"}:
            for names, known in ((_RANK, "rank"), (_WORLD, "world_size"), (_LOCAL_RANK, "local_rank")):
                if setting.key in names:
                    self._remember(known, as_int(value, 0, _INT32_MAX))
            if setting.key in _HOST and value and len(value.split()) == 1:
                self._remember("host", clean_text(value)[:255])

    def _remember(self, name: str, value: int | str | None) -> None:
        if value is not None:
            self._known.setdefault(name, value)

    def finish(self, *, n_read: int, complete: bool) -> int:
        """Emits the facts; those of one rank's environment belong to its process, others to the job. How many."""
        proc = 0 if "rank" in self._known else None
        if self._known:
            origin = {"rank_origin": "environment"} if proc == 0 else {}
            self._sink.proc(0, **origin, **self._known)  # type: ignore[arg-type]
        for setting in self._settings:
            key, value = clean_text(setting.key)[:_MAX_KEY], clean_text(setting.value)
            masked = masked_text(value) if setting.scope in _COMMAND_SCOPES else masked_value(key, value)
            number = setting.number if masked == value else None
            self._sink.fact(
                masked_text(key), masked[:_MAX_VALUE], scope=setting.scope, line=setting.line, number=number, proc=proc
            )
        if self.n_dropped:
            self._sink.warn("too-many", f"{self.n_dropped} settings above {_MAX_FACTS} were left out", "their values")
        if self._settings:
            self._sink.cover("fact", job=proc is None, complete=complete, n_read=n_read, n_kept=len(self._settings))
        return len(self._settings)
