"""What a log's reader tells of the log as a whole: its processes and clock, what was lost, what it covers."""

from __future__ import annotations

from forensics.artifact import Sink, Source
from forensics.formats._log_processes import Processes, Survey
from forensics.formats._log_rows import MAX_SAME, EventRows
from forensics.formats._log_samples import MAX_SAMPLES, SampleRows
from forensics.formats._log_time import Clock


def tell_losses(
    source: Source, sink: Sink, clock: Clock, events: EventRows, samples: SampleRows, *, n_zeros: int
) -> None:
    if clock.found_year is not None:
        sink.fact("year", str(clock.found_year), scope="note", number=clock.found_year)
    if clock.days is not None and clock.days.found is not None:
        sink.fact("day", clock.days.found.isoformat(), scope="note", number=clock.days.found.toordinal())
    if source.damage:
        sink.warn("truncated", source.damage, "what the log said after this point")
        sink.damaged("partial")
    if n_zeros:
        sink.warn(
            "zeros", f"{n_zeros} bytes inside are zeros, as a crash or a full disk leaves", "what was written there"
        )
        sink.damaged("partial")
    if events.n_dropped:
        sink.warn(
            "too-many-events",
            f"{events.n_dropped} further events of kinds that occur very often were counted, not kept: after the "
            f"first {MAX_SAME} and before the end of the log, one row tells how many (n_repeats, last_line)",
            "when each of the most frequent messages came in the middle of the log, and its figures",
        )
    if samples.n_dropped:
        sink.warn(
            "too-many-samples",
            f"{samples.n_dropped} metric values were counted, not kept: after the first {MAX_SAMPLES}, only "
            "those of one step in 2, later in 4 and so on, and those of lines with a value that is not finite",
            "changes of metrics that lasted few steps, other than NaN and infinity, in the later part of the log",
        )
    if clock.n_foreign:
        sink.warn(
            "mixed-clocks",
            f"{clock.n_foreign} stamps follow another clock than most; their events have no time",
            "the order in time of those events",
        )


def tell_coverage(
    sink: Sink, found: Survey, processes: Processes, events: EventRows, samples: SampleRows,
    *, scheduled: bool, stamped: bool, complete: bool, n_read: int,
) -> None:  # fmt: skip
    kept = events.kept
    if found.kernel:
        sink.cover("log_event.kernel", job=True, n_read=n_read, n_kept=kept.total())
        return
    if found.scheduler_table:
        sink.cover("log_event.scheduler", job=True, n_read=n_read, n_kept=kept.total())
        return
    if scheduled:
        sink.cover("log_event.scheduler", job=True, complete=False, n_read=n_read, n_kept=kept.total())
    # A text without a stamp, a rank, a metric or an event may be anything: its silence rules nothing out.
    told = stamped or bool(processes.seen) or kept.total() > 0 or any(samples.kept.values())
    for proc in sorted(processes.seen or {0}) if told else ():
        sink.cover("log_event", proc=proc, complete=complete, n_read=n_read, n_kept=kept[proc])
    for proc, n in sorted(samples.kept.items()):
        sink.cover("sample", proc=proc, complete=complete, n_read=n_read, n_kept=n)
