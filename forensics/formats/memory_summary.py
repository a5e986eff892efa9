"""Tables of `torch.cuda.memory_summary()`, one or several, alone in a file.

They have neither time nor step; one in a log is read with the log.
"""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._memory_contradictions import contradictions_of_counters, contradictory
from forensics.formats._memory_summary import Summary, is_part_of_table, starts_summary
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines

VERSION = 3
TITLE = "CUDA memory summary (text table)"
PROVIDES = ("sample.allocator",)

_MAX_LINE = 1000


def recognise(head: Head) -> int:
    lines = [line for line in head_lines(decode_text(head.data), whole=head.whole) if line.strip()]
    # One line of anything else may be what the job ended with: that is a log, which reads such tables too.
    is_table = bool(lines) and all(is_part_of_table(line[:_MAX_LINE]) for line in lines)
    is_table = is_table and any(starts_summary(line[:_MAX_LINE]) for line in lines)
    return 85 if is_table else 0


def load(source: Source, sink: Sink) -> None:
    samples = SampleRows(sink, "gauge")
    tables: list[Summary] = []
    open_table: Summary | None = None
    n_lines = n_other = 0
    for number, text, _ in numbered_lines(source, max_chars=_MAX_LINE):
        n_lines += bool(text.strip())
        if (begun := starts_summary(text)) is not None:
            open_table = begun
            tables.append(begun)
        elif open_table is None or not open_table.feed(text, number):
            n_other += bool(text.strip()) and not is_part_of_table(text)
    for table in tables:
        for figure in table.figures:
            samples.add(figure.name, figure.value, line=figure.line, device=table.device, unit=figure.unit)
    samples.flush()
    if not samples.count:
        raise ArtifactError(
            f"{source.name}: no row of a memory summary; expected the table that PyTorch prints", byte=0
        )
    whole = all(table.whole and not table.n_bad for table in tables) and source.damage is None
    if not whole:
        n_cut = sum(not table.whole for table in tables)
        text = (
            f"{n_cut} of {len(tables)} tables are not whole, {sum(t.n_bad for t in tables)} rows have unreadable cells"
        )
        sink.warn("truncated", text, "the figures of the missing rows and cells")
        sink.damaged("partial")
    impossible = [text for t in tables for text in contradictory({f.name: float(f.value) for f in t.figures})]
    if impossible:
        sink.warn(*contradictions_of_counters(impossible))
        sink.damaged("partial")
        whole = False
    if n_other:
        sink.warn("other-lines", f"{n_other} lines are no part of a table", "what they say")
    devices = {table.device for table in tables}
    sink.proc(0, device=devices.pop() if len(devices) == 1 else None)
    sink.cover("sample.allocator", complete=whole, n_read=n_lines, n_kept=n_lines - n_other)
