"""Real logs against lists that a careful reader made of them first, and labelled cases against their exceptions."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support import ARTIFACTS, SHARED, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.discovery import _recognise
from forensics.formats import log

pytestmark = needs_artifacts
LOGS = ARTIFACTS / "crash_log"

# file → {(line, class): how many events there}; lines that say nothing of a fault are not listed.
READ_BY_EYE: dict[str, dict[tuple[int, str], int]] = {
    "dlrover__training.log": {(37, "comm.timeout"): 1, (38, "line.error"): 1},
    "dlrover__training_events_events_0.log": {},
    "dlrover__xpu_timer_normal_xpu_timer_metric_0": {},
    "gpud__nvidia_error_xid_dmesg-with-xid-119.log": {
        (1, "hw.identity"): 1,
        **{(line, "hw.gpu-firmware"): 1 for line in (3, 38, 40, 42, 43)},
        (41, "hw.gpu"): 1,
    },
    "gpud__nvidia_fabric-manager_fabricmanager.log": {(100, "hw.nvswitch"): 1},
    "gpud__nvidia_nccl_dmesg.decode.iso.log": {(1, "crash.native"): 1, (2, "crash.native"): 1},
    "gpud__pkg_dmesg_dmesg-time-format-short-iso.log": {},
    "gpud__pkg_kmsg_kmsg.1.log": {},
}


@pytest.mark.parametrize("name", READ_BY_EYE)
def test_a_real_log_gives_the_events_that_a_careful_reader_lists(name: str) -> None:
    rows = load(log, LOGS / name).rows("log_event")
    found = Counter((row["line"], row["class"]) for row in rows)
    assert dict(found) == READ_BY_EYE[name]


def test_every_xid_of_a_long_kernel_log_is_told_with_its_code_and_device() -> None:
    path = LOGS / "gpud__pkg_dmesg_dmesg.decode.iso.log.0"
    said = [line for line in path.read_text().split("\n") if "NVRM: Xid" in line]
    rows = load(log, path).rows("log_event")
    assert len(rows) == len(said)
    fields = [json.loads(row["fields"]) for row in rows]
    written = Counter(int(re.search(r"\): (\d+),", line)[1]) for line in said)  # type: ignore[index]
    assert Counter(f["xid"] for f in fields) == written
    assert {f["pci"] for f in fields} == set(re.findall(r"Xid \(PCI:([\d:a-f]+)", "\n".join(said)))
    assert all(row["ts_ns"] for row in rows)


NAMED = re.compile(r"(?<![\w.'\"`(])([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?::\s|$)")


def test_no_line_of_a_labelled_case_that_names_an_exception_is_left_unlocated() -> None:
    n_named, lost = 0, []
    for path in sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/*")):
        if not path.is_file() or _recognise(Source(path, path.name).head()) != "log":
            continue
        rows = load(log, path).rows("log_event")
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            named = NAMED.search(line)
            if named is None:
                continue
            n_named += 1
            near = [r for r in rows if r["line"] == number or (r["line"] and abs(r["line"] - number) < 60)]
            if not any(r["line"] == number or named[1] in f"{r['exception']}{r['message']}" for r in near):
                lost.append(f"{path}:{number}: {line[:100]}")
    assert n_named > 50
    assert lost == []


def test_every_event_of_the_labelled_cases_has_a_class_and_a_place() -> None:
    for path in sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/*.log")):
        sink: MemorySink = load(log, path)
        assert all(row["class"] and row["line"] and row["byte"] is not None for row in sink.rows("log_event")), Path(
            path
        )
