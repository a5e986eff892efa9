"""Metrics a line a step, as the recorders write them: `forensics.steps/1`.

The first line is a header (format, rank, world_size, local_rank, host, pid, attempt, torch), every other line a step:

    {"step": 12, "time": 1795981131.412, "step_seconds": 0.0957, "loss": 0.6351, "lr": 0.1, "rss_bytes": 812345344}

`time` is in seconds since the epoch at the end of the step; names and units of the other keys are as in
`_metric_rows`. A line may end anywhere when the job dies. `{"recorder": "lines lost", "n": 3}` stands for lines that
could not be written.
"""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.formats._bad_fields import BadFields
from forensics.formats._metric_rows import MetricRows
from forensics.formats._recorder_lines import check_version, describe_process, json_objects, sure_of_format
from forensics.formats._text_lines import BadLines

VERSION = 3
TITLE = "Steps of a run (forensics.steps)"
PROVIDES = ("sample",)

FORMAT = "forensics.steps/1"
_MAX_KEYS = 512


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.steps")


def load(source: Source, sink: Sink) -> None:
    bad = BadLines(sink, "bad-json", "the metrics of that step")
    lines = json_objects(source, bad)
    _, header = next(lines, (0, {}))
    check_version(source, header, FORMAT)
    odd = BadFields()
    describe_process(sink, header, odd, facts=True)
    rows = MetricRows(sink, odd)
    n_read = n_lost = 0
    for number, line in lines:
        n_read += 1
        if "recorder" in line:
            n_lost += line["n"] if isinstance(line.get("n"), int) else 1
            continue
        odd.line = number
        given = dict(list(line.items())[:_MAX_KEYS])
        at = {"step": odd.whole(given, "step"), "time": odd.number(given, "time")}
        rows.add({**given, **{key: value for key, value in at.items() if key in given}}, number)
    bad.close()
    is_odd = odd.tell(sink)
    if n_lost:
        sink.warn("recorder-lost-lines", f"{n_lost} lines could not be written by the recorder", "what these steps did")
        sink.damaged("partial")
    rows.finish(n_read, complete=not is_odd and bad.count == 0 and not n_lost and source.damage is None)
