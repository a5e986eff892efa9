"""Times of what Kubernetes tells: of events and containers as YAML, JSON and text, and in tables of ages."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.artifact import Head
from forensics.formats import log

TWO = 1_795_960_800 * 10**9  # 2026-11-29 14:00:00 UTC
SECOND = 10**9
YAML = """\
apiVersion: v1
items:
- apiVersion: v1
  count: 1
  firstTimestamp: "2026-11-29T13:00:00Z"
  involvedObject:
    kind: Pod
    name: train-0
  kind: Event
  lastTimestamp: "2026-11-29T13:00:01Z"
  message: Started container main
  reason: Started
  type: Normal
- apiVersion: v1
  count: 1
  involvedObject:
    kind: Pod
    name: train-0
  kind: Event
  lastTimestamp: "2026-11-29T14:00:05Z"
  message: 'The node was low on resource: memory. Threshold quantity: 100Mi, available: 88Mi.'
  reason: Evicted
  type: Warning
"""
STATUS = """\
status:
  containerStatuses:
  - containerID: containerd://4f1c
    lastState:
      terminated:
        containerID: containerd://4f1c
        exitCode: 137
        finishedAt: "2026-11-29T14:00:05Z"
        reason: OOMKilled
        startedAt: "2026-11-29T13:10:00Z"
    name: main
    ready: false
"""
DESCRIBED = """\
Name:             train-0
Namespace:        ml
Containers:
  main:
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Sun, 29 Nov 2026 13:10:00 +0000
      Finished:     Sun, 29 Nov 2026 15:00:05 +0100
    Ready:          False
"""
AGES = """\
$ date -u +%FT%TZ; kubectl get events
2026-11-29T14:05:17Z
LAST SEEN   TYPE      REASON      OBJECT         MESSAGE
62m         Normal    Started     pod/train-0    Started container main
5m12s       Warning   Evicted     pod/train-0    The node was low on resource: memory.
"""
EVENTS = """\
printed at 2026-11-29 14:05:17+00:00
Name:             train-0
Events:
  Type     Reason     Age                From     Message
  ----     ------     ----               ----     -------
  Normal   Started    62m                kubelet  Started container main
  Warning  Evicted    5m12s (x3 over 9m) kubelet  The node was low on resource: memory.
"""


def read(tmp_path: Path, text: str) -> MemorySink:
    (tmp_path / "cluster.txt").write_text(text)
    return load(log, tmp_path / "cluster.txt")


def told(sink: MemorySink) -> list[int | None]:
    rows = sink.rows("log_event")
    return [row["ts_ns"] for row in rows if row["source"] == "kubernetes" and row["signature"] != "container-started"]


@pytest.mark.parametrize("text", [YAML, STATUS, DESCRIBED])
def test_an_event_has_the_stamp_of_its_own_object(tmp_path: Path, text: str) -> None:
    sink = read(tmp_path, text)
    assert sink.clock_kind == "epoch"
    assert set(told(sink)) == {TWO + 5 * SECOND}


def test_events_printed_as_json_are_read_line_by_line(tmp_path: Path) -> None:
    text = """\
{
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "v1",
            "involvedObject": {
                "kind": "Pod"
            },
            "lastTimestamp": "2026-11-29T14:00:05Z",
            "message": "The node was low on resource: memory.",
            "reason": "Evicted"
        }
    ]
}
"""
    (tmp_path / "events.json").write_text(text)
    assert log.recognise(Head("events.json", text.encode(), len(text))) > 0
    assert set(told(load(log, tmp_path / "events.json"))) == {TWO + 5 * SECOND}


@pytest.mark.parametrize("text", [AGES, EVENTS])
def test_ages_are_times_where_a_line_above_tells_when_the_table_was_printed(tmp_path: Path, text: str) -> None:
    sink = read(tmp_path, text)
    assert told(sink)[-1] == TWO + 5 * SECOND
    assert sink.clock_error_ns == 60 * SECOND  # of `62m`


@pytest.mark.parametrize("text", [AGES.partition("\n")[2].partition("\n")[2], EVENTS.partition("\n")[2]])
def test_ages_alone_are_no_times(tmp_path: Path, text: str) -> None:
    sink = read(tmp_path, text)
    assert (sink.clock_kind, set(told(sink))) == ("none", {None})


def test_a_stamp_of_another_object_is_not_taken(tmp_path: Path) -> None:
    text = YAML.replace('  lastTimestamp: "2026-11-29T14:00:05Z"\n', "")
    assert set(told(read(tmp_path, text))) == {None}


def test_each_row_of_a_table_is_an_event_at_its_own_time(tmp_path: Path) -> None:
    text = """\
LAST SEEN   TYPE      REASON     OBJECT         MESSAGE
21:14:05    Normal    Started    pod/train-0    Started container main
22:01:27    Warning   SystemOOM  node/gpu-9     System OOM encountered, victim process: python, pid: 81422
22:01:33    Warning   Evicted    pod/train-0    The node was low on resource: memory.
22:05:32    Normal    Killing    pod/train-0    Stopping container main
"""
    rows = read(tmp_path, text).rows("log_event")
    oom, killed = [next(r for r in rows if word in r["message"]) for word in ("SystemOOM", "Killing")]
    assert (oom["line"], killed["line"]) == (3, 5)
    assert killed["ts_ns"] - oom["ts_ns"] == 245 * SECOND
