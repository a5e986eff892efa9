"""Loads one log: lines to processes, messages to events, metric lines to samples."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice

from forensics.artifact import Sink, Source
from forensics.formats import _log_judge as judge
from forensics.formats._log_blocks import Block, record_of_traceback
from forensics.formats._log_catalogue import catalogue
from forensics.formats._log_compile import CompileLines
from forensics.formats._log_coverage import tell_coverage, tell_losses
from forensics.formats._log_encodings import LineDecoder
from forensics.formats._log_last_words import tell_last_words
from forensics.formats._log_lines import Block as LineBlock
from forensics.formats._log_lines import Piece, decoded, read_blocks
from forensics.formats._log_marks import Line
from forensics.formats._log_memory import SummaryLines
from forensics.formats._log_metrics import has_metric_word, may_count
from forensics.formats._log_numbers import Numbers
from forensics.formats._log_outcomes import Outcomes
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes, survey
from forensics.formats._log_quiet import Quiet
from forensics.formats._log_quoted import QuotedText
from forensics.formats._log_rows import EventRows
from forensics.formats._log_samples import SampleRows
from forensics.formats._log_scan import Pattern, Scan
from forensics.formats._log_sequences import Run, Sequences
from forensics.formats._log_standing import LOG, standing
from forensics.formats._log_tables import Table, starts_table
from forensics.formats._log_threads import THREAD, Dump
from forensics.formats._log_time import Clock
from forensics.formats._log_torn import Torn
from forensics.formats._log_tracebacks import MAX_FOREIGN, Tracebacks

# What makes a line worth looking at apart from the catalogue's hints, in RE2 syntax.
_STRUCTURE = (
    r"Traceback \(most recent call last\)|File \"[^\"]+\", line \d|"
    r"(?:Error|Exception|Group|Interrupt|Exit|Timeout|Failure|Abort|Refused|Signal)\d?(?:\(|: |:?$)"
    r"|ERROR|FATAL|CRITICAL|[Ff]atal|[Ee]rror:|Killed|core dumped|[ \[\]][EF]\d{3,4} \d\d:|^[EF]\d{4} |\[[EF] \w"
    r"|\d [EF] |^[0-3],\d+,\d+,|^kern +:(?:err|crit|alert|emerg)|(?:Root Cause|Failures)[ :(]|Exception i"
    r"|Process [\w-]+:|Logging error|\.py:\d+: \w*Warning: |nranks \d|(?:stdout|stderr) P |={3,} [A-Za-z0-9]|::test"
    # A prefix within a line: another process cut it.
    r"|^\[\d{1,6},\d{1,6}\]<\w+>: ?\[\d|^\[rank\d+\]: ?\[rank|^\[default\d+\]:(?:\[rank\d+\]:)? ?\[default"
    r"|[a-z.,)\"']\[(?:rank\d|default\d|\d+,\d+\]<std)"
    r"|NVIDIA-SMI \d|NVSMI LOG|(?:memory|temperature|utilization|power)\.(?:gpu|used|total|free|draw)\b"
    r"|above exception|not found$|command not found|: (?:line )?\d{1,6}: "
    r"|Thread [\da-fx]{1,18} \((?:active|idle|Thread |LWP|process )|TID \d{1,10}:"
    r"|\.\.\. ?(?:ok|FAIL|ERROR|skipped)?$|PASSED|FAILED|most recent call first\):"
)
_METRIC = (
    r"(?i:step|\biter|loss|\bep(?:och)?\b)[^\n]{0,40}\d|'(?:loss|eval_\w+|train_\w+)': "
    r"|throughput[^\n]{0,20}: \d|token usage: "
)
_WRITERS = re.compile(rb"\[(?:rank|default|trainer)\d{1,6}\]:")
_TAGS = re.compile(rb"\[\d{1,4},\d{1,4}\]<std")  # of Open MPI
_ECHOED = re.compile(r"\.py:\d+: \w*Warning: ")
_MANY_LEFT = 4000  # notable lines for which a block is looked at again
_MAX_WORDS = 20_000
_SURVEY_BYTES = 256 * 1024
_PARTIAL_CHARACTERS = 64 * 1024


@lru_cache(maxsize=1)
def scan() -> Scan:
    """What to look for in lines; it remembers the words of all logs of a job, which are alike."""
    return Scan(Pattern(_STRUCTURE, catalogue().hints), Pattern(_METRIC))


class Session:
    def __init__(self, source: Source, sink: Sink) -> None:
        self._source = source
        self._sink = sink
        self._catalogue = catalogue()
        self._clock = Clock()
        self._decoder = LineDecoder()
        beginning = decoded(source.head(_SURVEY_BYTES).data)
        self._survey = survey(beginning, self._clock)
        self._standing = standing(source.name, beginning, self._survey.labels)
        self._processes = Processes(self._survey)
        self._events = EventRows(sink)
        self._samples = SampleRows(sink)
        self._tests = judge.TestRun()
        sequences = Sequences(self._catalogue, self._survey.labels, self._processes, self._events)
        self._outcomes = Outcomes(sink, self._events, self._processes, self._clock, self._tests, sequences)
        self._tracebacks = Tracebacks(self._outcomes.finish)
        self._tables: dict[int, Table] = {}
        self._partial: dict[int, tuple[Line, Piece]] = {}  # what a container's runtime wrote in parts, so far
        self._numbers = Numbers(self._survey.labels, self._clock, self._processes, self._samples)
        self._events.steps = self._numbers.steps
        self._quiet = Quiet(self._catalogue, self._survey.labels, self._processes, self._events, sequences)
        self._compile = CompileLines(sink, self._survey.labels, self._clock, self._processes)
        self._memory = SummaryLines(sink, self._survey.labels, self._clock, self._processes)
        self._quoted = QuotedText(sink, self._survey, self._clock, self._processes, self._outcomes)
        self._torn = Torn(self._survey.labels, self._is_in_traceback)
        self._plain: set[bytes] = set()
        self._last_text = ""  # of the block before
        self._is_notable = True
        self._echo_line = 0
        self._n_lines = self._n_zeros = 0

    def run(self) -> None:
        with self._source.open() as stream:
            for block in read_blocks(stream, self._decoder):
                self._n_zeros += block.n_zeros
                if self._clock.days is not None:
                    self._clock.days.read(block.pieces, block.numbers)
                self._compile.read(block)
                self._memory.read(block)
                self._quoted.read(block)
                if block.is_last and len(block):
                    self._events.begin_last_part(block.number(0))
                rest: LineBlock | None = block
                while rest is not None:
                    rest = self._read(rest)
        for text, piece in self._torn.rest():
            self._is_notable = True
            self._take_line(parse(text, self._survey.labels), piece)
        while self._partial:  # the log ends inside a line
            line, piece = self._partial.pop(min(self._partial))
            line.partial, self._is_notable = False, True
            self._take_line(line, piece)
        tell_last_words(self._sink, self._source.name, self._tracebacks.open_blocks, self._n_lines)
        self._tracebacks.end_all()
        for proc in list(self._tables):
            self._end_table(proc)
        self._events.close()
        self._samples.close()
        n_rows = self._quoted.close(self._samples.n_rows, n_read=self._n_lines)
        self._compile.close(n_read=self._n_lines)
        self._memory.close(first_row=n_rows, n_read=self._n_lines)
        self._outcomes.close(complete=not self._source.damage, n_read=self._n_lines)
        self._describe()
        del self._numbers, self._tracebacks  # they refer back: blocks would stay until the garbage collector comes

    @property
    def _busy(self) -> bool:
        return self._tracebacks.is_open or bool(self._tables) or bool(self._partial) or self._reads_on

    @property
    def _reads_on(self) -> bool:
        """Whether the next line may belong to something open that is of no one process."""
        return self._torn.is_open or self._quoted.is_open

    def _read(self, block: LineBlock) -> LineBlock | None:
        """Reads a block; gives back what is left when many of its messages turn out not to be kept any more."""
        self._lines = block
        index, n = 0, len(block)
        writers = block.starts(_WRITERS)
        self._torn.active = bool(writers or block.starts(_TAGS))
        marks = scan().mark(block, self._quiet)
        self._flood = marks.notable.flood
        self._numbers.begin(block, scan(), marks.counting, marks.notable.taken)
        notable, passed = [*marks.notable.taken, n], bytearray(n)
        at, n_full, rest = 0, self._events.n_full, None
        while index < n:
            while notable[at] < index:
                at += 1
            left = len(notable) - at
            if self._events.n_full > n_full and _MANY_LEFT < left < at * 8 and passed.find(1, index) < 0:
                if (rest := block.rest(index)) is not None:
                    break
                n_full = self._events.n_full
            if passed[index] or self._passes(marks.notable.runs.get(index), passed):
                index += 1
                continue
            jump = notable[at] if not self._busy else self._calm_until(index, notable[at])
            if jump > index:
                if not self._busy:
                    self._numbers.read(index, jump)
                index = jump
                continue
            self._is_notable = notable[at] == index and index not in marks.notable.quiet
            if self._is_notable or not self._skips(index):
                self._take_at(index)
            index += 1
        if index:
            self._n_lines, self._last_text = block.number(index - 1), block[index - 1].text[:1000]
        for prefix in writers:
            self._processes.number(parse(prefix, self._survey.labels))
        self._count_flood(index)
        self._numbers.end()
        self._events.settle(self._tracebacks.first_open_line(), held=self._tests.holding)
        return rest

    def _skips(self, index: int) -> bool:
        """Whether a piece that is not notable has words of which it is known that they say nothing of a process."""
        if self._lines.words_of(index) not in self._plain or self._tests.holding or 0 in self._tables:
            return False
        if self._reads_on:
            return False
        return 0 not in self._partial and self._tracebacks.leaves_alone(0, self._lines.number(index))

    def _passes(self, run: Run | None, passed: bytearray) -> bool:
        """Passes over the lines of an exception of which no more rows are kept, where nothing else is open."""
        if run is None or self._tests.holding or self._reads_on or {run.proc} & (self._tables.keys() | self._partial):
            return False
        first = self._lines[run.pieces[0]]
        if not self._tracebacks.leaves_alone(run.proc, first.number):
            before = self._tracebacks.message_above(run.proc, first.number)
            if before is None or not self._quiet.sequences.ends(before, first.words):
                return False
            before.next_words = first.words
            self._tracebacks.end(before, parse(first.text, self._survey.labels).text)
        for index in run.pieces:
            passed[index] = 1
        number = self._lines.number(run.decisive)
        self._events.drop(run.proc, run.kinds, number)
        self._tracebacks.note_passed(run.proc, run.message, number)
        return True

    def _calm_until(self, index: int, until: int) -> int:
        """The first piece from one on of which it is not known that it is nothing to what is open."""
        codes, plain, flood, words = self._lines.codes_view, self._plain, self._flood, self._lines.words
        if words[codes[index]] not in plain and index not in flood:
            return index
        if self._tests.holding or 0 in self._tables or 0 in self._partial or self._reads_on:
            return index
        if not self._tracebacks.leaves_alone(0, self._lines.number(index)):
            return index
        while index < until and (words[codes[index]] in plain or ((f := flood.get(index)) and f.calm)):
            index += 1
        return index

    def _count_flood(self, before: int) -> None:
        """Counts the events before a piece of which no rows are kept."""
        told: dict[tuple[int, tuple[str, ...]], tuple[int, int]] = {}
        for piece, flood in self._flood.items():
            if piece < before:
                n, last = told.get(flood.key, (0, 0))
                told[flood.key] = n + 1, max(last, piece)
        for (proc, kinds), (n, last) in told.items():
            self._events.drop(proc, kinds, self._lines.number(last), n)

    def _take_at(self, index: int) -> None:
        """Takes a piece of the block."""
        piece = self._lines[index]
        self._at = index
        for text, at in self._torn.mend(piece):
            mended = text is not piece.text
            self._is_notable |= mended
            self._take_line(parse(text, self._survey.labels), at._replace(words=b"") if mended else at)

    def _is_in_traceback(self, line: Line) -> bool:
        proc = self._processes.find(line)
        return proc is not None and self._tracebacks.is_open_of(proc)

    def _take_line(self, line: Line, piece: Piece) -> None:
        proc = self._processes.number(line)
        if (line.partial or proc in self._partial) and not self._join_parts(proc, line, piece):
            return
        if self._quoted.take(proc, line, piece.number, self._above):
            self._flood.pop(self._at, None)
            return
        if not self._is_notable and proc not in self._tables and self._is_nothing(proc, line, piece):
            return
        if proc in self._tables:
            if self._tables[proc].feed(line.text, piece.number, piece.byte):
                self._flood.pop(self._at, None)
                return
            self._end_table(proc)

        if starts_table(line.text):
            self._tracebacks.end_messages()
            self._tables[proc] = Table()
            self._tables[proc].feed(line.text, piece.number, piece.byte)
            return

        def make(kind: str) -> Block:
            return self._block(proc, kind, line, piece)

        if self._tracebacks.feed(proc, line, piece, make):
            self._flood.pop(self._at, None)
        elif self._is_flood(proc):
            if may_count(line.text):
                self._numbers.take(self._at, proc, line, piece.number)
        elif self._is_notable or self._tests.holding:
            self._take_ordinary(proc, line, piece)
        elif may_count(line.text):
            self._numbers.take(self._at, proc, line, piece.number)

    def _join_parts(self, proc: int, line: Line, piece: Piece) -> bool:
        """Adds a part of a line to those before it; whether the line is whole now."""
        if proc in self._partial:
            line.text = (self._partial.pop(proc)[0].text + line.text)[:_PARTIAL_CHARACTERS]
        if line.partial:
            self._partial[proc] = line, piece
            return False
        self._is_notable = True
        return True

    def _is_flood(self, proc: int) -> bool:
        """Whether the piece at hand is only counted; inside of something open it is not."""
        if self._at not in self._flood:
            return False
        if self._tracebacks.has_open(proc):
            del self._flood[self._at]
            self._is_notable = True
            return False
        return True

    def _is_nothing(self, proc: int, line: Line, piece: Piece) -> bool:
        """Whether a line that is not notable has no part in what is open; its numbers are read."""
        if self._tests.holding or "xception" in line.text or not self._tracebacks.leaves_alone(proc, piece.number):
            return False
        if may_count(line.text):
            self._numbers.take(self._at, proc, line, piece.number)
        elif not line.names_a_process and not self._survey.labels.by_digits and not has_metric_word(line.text):
            if len(self._plain) >= _MAX_WORDS:
                self._plain.clear()
            self._plain.add(self._lines.words_of(self._at))
        return True

    def _above(self, n: int) -> list[Piece]:
        """The lines before the one at hand."""
        return [self._lines[index] for index in range(max(self._at - n, 0), self._at)]

    @property
    def _previous(self) -> str:
        """The text of the line before the one at hand."""
        return self._lines[self._at - 1].text if self._at else self._last_text

    def _block(self, proc: int, kind: str, line: Line, piece: Piece) -> Block:
        return Block(
            proc,
            kind,
            *(piece.number, piece.number, piece.byte),
            self._clock.ns(line.stamp, piece.number)
            if line.stamp or kind != "exception"
            else self._record_time(line.marks),
            self._numbers.steps.get(proc),
            line.level,
            line.writer,
            line.prefixed,
            line.marks,
            lead=self._previous[:1000],
            facts=judge.line_facts(line),
            words=[piece.words],
        )

    def _record_time(self, marks: tuple[tuple[str, str], ...]) -> int | None:
        """The time of the record that a traceback at the line at hand is part of; both have the same marks."""
        above = islice((self._lines[index] for index in range(self._at - 1, -1, -1)), MAX_FOREIGN)
        lines = ((parse(piece.text, self._survey.labels), piece.number) for piece in above)
        record = record_of_traceback((line, number) for line, number in lines if line.marks == marks)
        return None if record is None else self._clock.ns(record[0].stamp, record[1])

    def _take_ordinary(self, proc: int, line: Line, piece: Piece) -> None:
        text = line.text
        if piece.number == self._echo_line and text[:1].isspace():
            return  # the source line that warnings.warn shows
        if "Warning: " in text and _ECHOED.search(text):
            self._echo_line = piece.number + 1
        verdict = self._tests.note(text, piece.number)
        if verdict is not None:
            self._events.mark_noise(verdict, "test-output")
        if may_count(text):
            self._numbers.take(self._at, proc, line, piece.number)
        matches = self._catalogue.match(text, self._events.full(proc))
        if not matches and self._open_dump(proc, line, piece):
            return
        if not matches and not judge.looks_like_error(line):
            return
        block = self._block(proc, "line", line, piece)
        names = {match.name for match in matches}
        if names & {"fatal-python-error", "faulthandler-timeout"}:
            block.kind, block.dump = "fault", Dump(fatal="fatal-python-error" in names)
        elif names & {"anomaly-forward", "anomaly-induced"} and "Traceback" in text:
            block.kind = "anomaly"
        else:
            block.state = "message"
        block.append(text)
        block.matches = matches
        for match in matches:
            self._processes.learn_from(proc, match)
        self._tracebacks.open(block)

    def _open_dump(self, proc: int, line: Line, piece: Piece) -> bool:
        """Opens a dump of threads that nothing introduces, as faulthandler.register and dump_traceback write it."""
        thread = THREAD.match(line.text.strip()) if "most recent call first" in line.text else None
        if thread is None:
            return False
        block = self._block(proc, "fault", line, piece)
        block.dump = Dump()
        block.dump.start(thread, piece.number)
        self._tracebacks.open(block)
        return True

    def _end_table(self, proc: int) -> None:
        for entry in self._tables.pop(proc).entries:
            self._outcomes.add_entry(proc, entry)

    def _describe(self) -> None:
        self._processes.describe(self._sink)
        cluster = self._outcomes.cluster
        self._sink.clock(self._clock.kind, error_ns=cluster.error_ns or None if cluster else None)
        if self._standing != LOG:
            self._sink.fact("standing", self._standing, scope="note")
        self._decoder.tell(self._sink)
        tell_losses(self._source, self._sink, self._clock, self._events, self._samples, n_zeros=self._n_zeros)
        tell_coverage(
            self._sink, self._survey, self._processes, self._events, self._samples,
            scheduled=self._outcomes.scheduled, stamped=self._clock.kind != "none",
            complete=not self._source.damage, n_read=self._n_lines,
        )  # fmt: skip
