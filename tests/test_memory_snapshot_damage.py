"""Memory snapshots that are cut, hostile or no snapshots."""

from __future__ import annotations

import copy
import gzip
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from memory_snapshots import (
    BASE,
    MIB,
    block,
    codes,
    covered,
    event,
    loaded,
    recognised,
    segment,
    snapshot,
)
from support import MemorySink

from forensics.artifact import Source
from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats import memory_snapshot


def test_compressed_snapshots_load_and_cut_ones_keep_their_beginning(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0] += [event("alloc", BASE + i, i, i) for i in range(40_000)]
    data = gzip.compress(pickle.dumps(content), 1)
    assert len(loaded(tmp_path, data).rows("memory_event")) == 40_008
    sink = loaded(tmp_path, data[:-200])
    assert codes(sink) == ["truncated"]
    assert "compressed" in sink.warnings[0]["message"]
    assert len(sink.rows("memory_segment")) == 1
    assert len(sink.rows("memory_event")) > 10_000


WRONG: tuple[Any, ...] = (
    *("text", -5, 1 << 70, 1.5, True, None, b"bytes", [], {}, (1, 2, 3), [[["deep"]]], {"a": {"b": 1}}),
    *("\ud800", (1, "2"), (-1, 0), (1 << 80, 0), [None] * 3, float("nan")),
)


@pytest.mark.parametrize("protocol", range(6))
def test_a_cut_snapshot_keeps_its_segments_and_the_events_before_the_cut(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps(snapshot(), protocol)
    seen = []
    for cut in range(60, len(data), 29):
        sink = loaded(tmp_path, data[:cut])
        assert codes(sink) == ["truncated"]
        assert sink.quality == "partial" and sink.bad_byte is not None and sink.bad_byte <= cut
        assert "memory_event.complete" not in covered(sink)
        assert not covered(sink)["memory_segment"]
        assert not covered(sink).get("memory_event")
        seen.append((len(sink.rows("memory_block")), len(sink.rows("memory_event"))))
    assert seen == sorted(seen)
    assert seen[-1] == (3, 8)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 12])
def test_a_file_with_nothing_in_it_raises(tmp_path: Path, size: int) -> None:
    with pytest.raises(Truncated, match=r"snapshot\.pickle: "):
        loaded(tmp_path, pickle.dumps(snapshot())[:size])


def test_other_pickles_raise_and_are_not_recognised(tmp_path: Path) -> None:
    recorder = {"version": "2.10", "entries": [{"frames": [], "pg_id": 0}], "pg_config": {}, "segments": []}
    others = (recorder, [{"record_id": 0, "frames": []}], {"segments": [{"start": 0.0, "end": 1.0, "text": "hi"}]})
    for other in (*others, {"segments": 5}, {"segments": []}, [], 5, "segments", {"a": b"segments device_traces"}):
        assert recognised(other) == 0
        with pytest.raises(ArtifactError):
            loaded(tmp_path, other)


@pytest.mark.parametrize("protocol", range(6))
def test_snapshots_are_recognised_by_their_beginning(protocol: int) -> None:
    content = snapshot()
    assert recognised(content, protocol) == 95
    assert recognised(content["segments"], protocol) == 95
    swapped = {"device_traces": [content["device_traces"][0] * 2000], "segments": content["segments"]}
    assert recognised(swapped, protocol) == 95
    assert recognised(pickle.dumps(content, protocol)[:200]) == 95


def test_text_is_not_recognised() -> None:
    for text in (b'{"segments": []}', b"(segments device_traces total_size)\n", b"}segments", b"", b"\x80segments"):
        assert recognised(text) == 0


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/should-not-exist-forensics",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_snapshot_with_a_call_is_recognised_refused_and_kept_up_to_it(tmp_path: Path, protocol: int) -> None:
    content = snapshot()
    content["allocator_settings"] = Evil()
    assert recognised(content, protocol) == 95
    sink = MemorySink()
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(Untrusted) as caught:
        memory_snapshot.load(Source(path, "x.pickle"), sink)
    assert caught.value.byte == sink.bad_byte is not None
    assert len(sink.rows("memory_event")) == 8
    assert not Path("/tmp/should-not-exist-forensics").exists()
    assert recognised(pickle.dumps(Evil(), 2) + b"device_traces") == 30


def every_place(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in items for p in every_place(v, (*path, k)))]


def test_values_of_any_kind_in_any_place_raise_no_traceback(tmp_path: Path) -> None:
    places = every_place(snapshot())
    for number, place in enumerate(places[1:]):
        for wrong in WRONG[number % 6 :: 6]:
            content = copy.deepcopy(snapshot())
            holder: Any = content
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = wrong
            sink = MemorySink()
            path = tmp_path / "x.pickle"
            path.write_bytes(pickle.dumps(content))
            try:
                memory_snapshot.load(Source(path, "x.pickle"), sink)
            except ArtifactError:
                assert place[0] == "segments"
            needed = {"memory_event": "action", "memory_segment": "addr", "memory_block": "size_bytes"}
            for table, column in needed.items():
                assert all(r[column] is not None for r in sink.rows(table))


def test_wrong_values_are_counted_by_field(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0][1]["addr"] = "0x7f"
    content["device_traces"][0][2]["size"] = -1
    content["device_traces"][0].append({"action": "explode"})
    content["segments"][0]["blocks"][1]["size"] = -4
    content["segments"].append(7)
    sink = loaded(tmp_path, content)
    (text,) = [w["message"] for w in sink.warnings if w["code"] == "bad-values"]
    for field in ("block (1)", "block.size (1)", "event.action (1)", "event.addr (1)", "event.size (1)", "segment (1)"):
        assert field in text
    assert [e["row"] for e in sink.rows("memory_event")] == list(range(8))
    assert not covered(sink)["memory_event"] and not covered(sink)["memory_segment"]


def test_content_that_denotes_more_than_fits_takes_no_time(tmp_path: Path) -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(9):
        laughs = [laughs] * 10
    content = snapshot()
    content["segments"][0]["frames"] = content["segments"][0]["blocks"][0]["frames"] = laughs
    content["device_traces"][0][0]["frames"] = laughs
    content["device_traces"][0][1]["pool_id"] = laughs
    content["allocator_settings"]["x"] = laughs
    content["external_annotations"] += laughs
    start = time.process_time()
    for protocol in (0, 2, 4):
        loaded(tmp_path, content, protocol)
    assert time.process_time() - start < 3


def listed_twice(content: dict[str, Any]) -> None:
    content["segments"].append(copy.deepcopy(content["segments"][0]))


def overlapping(content: dict[str, Any]) -> None:
    content["segments"].append(segment(BASE + 15 * MIB, 20 * MIB, [block(BASE + 15 * MIB, 20 * MIB, "inactive")]))


def overfull(content: dict[str, Any]) -> None:
    content["segments"][0]["allocated_size"] = 21 * MIB


def blocks_inside_others(content: dict[str, Any]) -> None:
    content["segments"][0]["blocks"][1]["address"] -= MIB


def smaller_than_asked(content: dict[str, Any]) -> None:
    content["segments"][0]["blocks"][0]["requested_size"] = 5 * MIB


def freer_than_a_device(content: dict[str, Any]) -> None:
    content["device_traces"][0][-1]["device_free"] = 1 << 50


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (listed_twice, "1 segments are listed again, and were left out"),
        (overlapping, "1 segments begin inside another one"),
        (overfull, "1 segments have more allocated than they reserve"),
        (blocks_inside_others, "1 blocks begin inside another one"),
        (smaller_than_asked, "1 allocated blocks are smaller than what was requested"),
        (freer_than_a_device, "more free memory than any device has is recorded beside 1 failed allocations"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_counts_as_complete(tmp_path: Path, spoil: Any, said: str) -> None:
    content = snapshot()
    content["device_traces"][0][-1]["device_free"] = 5 * MIB
    assert loaded(tmp_path, content).quality == "complete"
    spoil(content)
    sink = loaded(tmp_path, content)
    (warning,) = (w for w in sink.warnings if w["code"] == "impossible-state")
    assert said in warning["message"] and warning["hides"]
    assert sink.quality == "partial"
    assert not [
        c for c in sink.coverage if c["capability"] in ("memory_segment", "memory_event.complete") and c["complete"]
    ]
    assert sum(row["total_bytes"] for row in sink.rows("memory_segment")) == (40 if spoil is overlapping else 20) * MIB
