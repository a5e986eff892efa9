"""What other tools printed into a log: their own readers take it, and it is no message of the log's writers."""

from __future__ import annotations

from collections.abc import Callable

from forensics.artifact import Sink
from forensics.formats._log_cluster import ClusterTimes
from forensics.formats._log_devices import DeviceText
from forensics.formats._log_dumps import MAX_ABOVE, DumpTexts
from forensics.formats._log_lines import Block, Piece
from forensics.formats._log_marks import Line
from forensics.formats._log_outcomes import Outcomes
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes, Survey
from forensics.formats._log_settings import SettingTexts
from forensics.formats._log_time import Clock

_TIMES_ABOVE = 2  # lines that may tell when a tool was called


class QuotedText:
    """Feed it lines while `is_open`, and those that may begin something."""

    def __init__(self, sink: Sink, survey: Survey, clock: Clock, processes: Processes, outcomes: Outcomes) -> None:
        self._labels = survey.labels
        self._clock = clock
        self._outcomes = outcomes
        self._cluster = outcomes.cluster = ClusterTimes() if survey.cluster else None
        self._devices = DeviceText(sink, survey.labels, clock)
        self._dumps = DumpTexts(sink, processes)
        self._settings = SettingTexts(sink, survey.labels, processes)

    @property
    def is_open(self) -> bool:
        return self._devices.is_open or self._dumps.is_open

    def read(self, block: Block) -> None:
        """Reads what is told by whole runs of lines; these stay the log's own as well."""
        self._settings.read(block)
        self._devices.rows.read(block)
        if self._cluster is not None:
            self._cluster.read(block.pieces, block.numbers)

    def take(self, proc: int, line: Line, number: int, above: Callable[[int], list[Piece]]) -> bool:
        """Whether a line is of another tool. `above(n)`: at most n lines before it."""

        def times() -> list[str]:
            known = self._clock.kind in {"none", "local"}
            return [piece.text for piece in above(_TIMES_ABOVE)] if known else []

        def texts() -> list[tuple[int, str]]:
            return [(piece.number, parse(piece.text, self._labels).text) for piece in above(MAX_ABOVE)]

        def ts_ns() -> int | None:
            """The time of the line, or of the last one above that has one."""
            if line.stamp is not None:
                return self._clock.ns(line.stamp, number)
            for piece in reversed(above(MAX_ABOVE)):
                if (stamp := parse(piece.text, self._labels).stamp) is not None:
                    return self._clock.ns(stamp, piece.number)
            return None

        if self._devices.is_open:
            return self._devices.take(proc, line.text, number, times)
        if self._dumps.take(proc, line.text, number, texts, ts_ns):
            return True
        return self._devices.take(proc, line.text, number, times)

    def close(self, first_row: int, *, n_read: int) -> int:
        """Emits what was read, samples numbered from `first_row` on; gives the number after the last one."""
        self._dumps.close(self._outcomes.add_thread)
        self._settings.close(n_read=n_read)
        return self._devices.close(first_row)
