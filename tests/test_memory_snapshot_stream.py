"""Large, cut and damaged snapshots: what is read as columns equals what is read opcode by opcode."""

from __future__ import annotations

import pickle
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError, Untrusted
from forensics.formats import _memory_events, memory_snapshot
from forensics.formats._pickle_stream import Opcodes

BASE = 0x7F00_0000_0000
T0_US = 1_700_000_000_000_000
TABLES = ("memory_event", "memory_segment", "memory_block", "stack", "step")


def era(name: str, n_events: int = 3000, seed: int = 1, spacing: int = 20) -> dict[str, Any]:
    """A snapshot as a generation of PyTorch writes it: which keys its events, segments and blocks have.

    Blocks lie at multiples of 2 to the power of `spacing`.
    """
    dice = random.Random(seed)
    frames = [{"name": f"f{i}", "filename": f"/job/m{i % 7}.py", "line": i} for i in range(60)]
    stacks = [[dice.choice(frames) for _ in range(dice.randrange(1, 30))] for _ in range(40)]
    trace: list[dict[str, Any]] = []
    alive: dict[int, int] = {}
    at_us = T0_US

    def add(action: str, addr: int, size: int, **more: Any) -> None:
        nonlocal at_us
        at_us += dice.randrange(50)
        event = {"action": action, "addr": addr, "size": size, "stream": dice.choice((0, 0, 94_000_000_000_000))}
        if name != "2.0":
            event["time_us"] = at_us
        if name >= "2.7":
            event["compile_context"] = dice.choice(("N/A", "0/0", "1/0"))
        if name >= "2.11":
            event["user_metadata"] = dice.choice(("", "", "phase a"))
            event["pool_id"] = dice.choice(((0, 0), (0, 0), (0, 700), (70_000, 0)))
        stack = dice.choice(stacks)
        trace.append(event | {"frames": list(stack) if dice.random() < 0.3 else stack} | more)

    add("segment_alloc", BASE, 1 << 40)
    while len(trace) < n_events:
        if alive and dice.random() < 0.45:
            addr = dice.choice(list(alive))
            add("free_requested", addr, alive[addr])
            add("free_completed", addr, alive.pop(addr))
        elif (addr := BASE + (dice.randrange(4000) << spacing)) not in alive:
            alive[addr] = dice.choice((512, 70_000, 1 << 20))
            add("alloc", addr, alive[addr])
        if dice.random() < 0.002:
            trace.append({"action": "oom", "size": 1 << 33, "stream": 0, "device_free": 5 << 20, "time_us": at_us})
    blocks, end = [], BASE
    for addr, size in sorted(alive.items()):
        if addr > end:
            blocks.append({"address": end, "size": addr - end, "requested_size": 0, "state": "inactive", "frames": []})
        blocks.append({"address": addr, "size": size, "requested_size": size, "state": "active_allocated"})
        end = addr + size
    whole = {"device": 0, "address": BASE, "total_size": end - BASE, "stream": 0, "segment_type": "large"}
    if name == "2.0":
        for block in blocks:
            del block["address"]
    else:
        whole |= {"segment_pool_id": (0, 0), "is_expandable": name >= "2.13", "frames": stacks[0]}
    marks = [
        {
            "stage": stage,
            "name": f"ProfilerStep#{i}",
            "device": 0,
            "time_us": T0_US + i * 9000 + 8000 * (stage == "END"),
        }
        for i in range(4)
        for stage in ("START", "END")
    ]
    return {
        "segments": [whole | {"blocks": blocks}],
        "device_traces": [trace, [], [dict(e, addr=e.get("addr", 0) + 1) for e in trace[:50]]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "external_annotations": marks,
    }


ERAS = ("2.0", "2.1", "2.7", "2.11", "2.13")


def torch_pickled(value: Any) -> bytes:
    """The value as torch's own C++ pickler writes it: protocol 2, one batch a list, memoised behind the value."""
    out, memo, texts = bytearray(b"\x80\x02"), {}, {}

    def put(known: dict[Any, int], key: Any) -> None:
        known[key] = len(memo) + len(texts)
        out.extend(b"q" + bytes([known[key]]) if known[key] < 256 else b"r" + struct.pack("<I", known[key]))

    def get(index: int) -> None:
        out.extend(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))

    def write(part: Any) -> None:
        if isinstance(part, str):
            if part in texts:
                get(texts[part])
            else:
                out.extend(b"X" + struct.pack("<I", len(part.encode())) + part.encode())
                put(texts, part)
        elif isinstance(part, bool):
            out.extend(b"\x88" if part else b"\x89")
        elif isinstance(part, int):
            wide = part.to_bytes(9, "little").rstrip(b"\0") or b"\0"
            wide += b"\0" if wide[-1] > 127 else b""
            if part < 256:
                out.extend(b"K" + bytes([part]))
            else:
                out.extend(b"J" + struct.pack("<i", part) if part < 1 << 31 else b"\x8a" + bytes([len(wide)]) + wide)
        elif isinstance(part, tuple):
            for item in part:
                write(item)
            out.extend(b"\x86")
        elif id(part) in memo:
            get(memo[id(part)])
        else:
            out.extend(b"](" if isinstance(part, list) else b"}(")
            for item in part if isinstance(part, list) else (x for pair in part.items() for x in pair):
                write(item)
            out.extend(b"e" if isinstance(part, list) else b"u")
            if isinstance(part, list) or "filename" in part:
                put(memo, id(part))

    write(value)
    return bytes(out) + b"."


def written(data: bytes, folder: Path) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(data)
    return path


def rows(sink: MemorySink) -> dict[str, list[dict[str, Any]]]:
    return {table: sorted(sink.rows(table), key=lambda r: r.get("id", 0)) for table in TABLES}


def one_by_one(module: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> MemorySink:
    with monkeypatch.context() as patch:
        patch.setattr(memory_snapshot._Loader, "columns", lambda self, place: None)
        return load(module, path)


PICKLERS: dict[str, Callable[[Any], bytes]] = {
    **{f"protocol {n}": (lambda value, n=n: pickle.dumps(value, n)) for n in (1, 2, 3, 4, 5)},
    "torch": torch_pickled,
}


@pytest.mark.parametrize("pickler", PICKLERS)
@pytest.mark.parametrize("name", ERAS)
def test_columns_equal_items_for_every_writer_and_generation(
    name: str, pickler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(PICKLERS[pickler](era(name)), tmp_path)
    found, expected = load(memory_snapshot, path), one_by_one(memory_snapshot, path, monkeypatch)
    assert rows(found) == rows(expected)
    assert (found.warnings, found.coverage, found.procs) == (expected.warnings, expected.coverage, expected.procs)
    assert {e["device"] for e in found.rows("memory_event")} == {0, 2}


@pytest.mark.parametrize("protocol", (2, 4))
def test_nearly_all_events_are_read_as_columns(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_items = 0
    read = _memory_events.EventReader.read

    def counted(reader: Any, device: int, items: list[Any]) -> None:
        nonlocal n_items
        n_items += len(items)
        read(reader, device, items)

    monkeypatch.setattr(_memory_events.EventReader, "read", counted)
    sink = load(memory_snapshot, written(pickle.dumps(era("2.11", 30_000), protocol), tmp_path))
    assert len(sink.rows("memory_event")) > 30_000
    assert n_items < 1500


@needs_artifacts
@pytest.mark.parametrize("folder", ("memory_snapshot", "allocator"))
def test_columns_equal_items_in_real_snapshots(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted((ARTIFACTS / folder).glob("*"))[:: 1 if folder == "memory_snapshot" else 9]:
        assert rows(load(memory_snapshot, path)) == rows(one_by_one(memory_snapshot, path, monkeypatch))


def test_rows_that_wait_in_a_file_are_those_that_wait_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(pickle.dumps(era("2.11", 30_000)), tmp_path)
    expected = rows(load(memory_snapshot, path))
    monkeypatch.setattr(_memory_events, "_HELD_BYTES", 0)
    assert rows(load(memory_snapshot, path)) == expected


def test_a_growing_history_takes_little_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory_events, "_HELD_BYTES", 1 << 20)
    content, peaks = era("2.11", 20_000), []
    trace = content["device_traces"][0]
    content["device_traces"] = [trace]
    for times in (1, 8):
        content["device_traces"][0] = [dict(event) for event in trace * times]
        path = written(pickle.dumps(content), tmp_path)
        tracemalloc.start()
        memory_snapshot.load(Source(path, "x"), _Discard())
        peaks.append(tracemalloc.get_traced_memory()[1] / path.stat().st_size)
        tracemalloc.stop()
    assert peaks[1] < 10


class _Discard(MemorySink):
    def emit(self, table: str, data: Any) -> None:
        pass


@pytest.mark.parametrize("name", ERAS)
@pytest.mark.parametrize("pickler", ("protocol 2", "protocol 4", "torch"))
def test_a_cut_anywhere_keeps_every_complete_event_and_more_bytes_never_give_less(
    name: str, pickler: str, tmp_path: Path
) -> None:
    content = era(name, 250)
    data = PICKLERS[pickler](content)
    whole = load(memory_snapshot, written(data, tmp_path))
    expected = whole.rows("memory_event")
    dice = random.Random(name + pickler)
    kept = []
    for cut in sorted(dice.sample(range(150, len(data) - 1), 200)):
        try:
            sink = load(memory_snapshot, written(data[:cut], tmp_path))
        except ArtifactError:
            assert not kept
            continue
        events = sink.rows("memory_event")
        without_step = [{**e, "step": None} for e in expected[: len(events)]]
        assert [{**e, "step": None} for e in events] == without_step
        assert events or len(sink.rows("memory_segment")) == 1
        (warning,) = sink.warnings
        assert warning["code"] == "truncated" and "are lost" in warning["message"] and warning["hides"]
        kept.append((len(sink.rows("memory_block")), len(events)))
    assert kept == sorted(kept)
    assert kept[-1][1] > 240


def test_the_last_time_seen_is_said(tmp_path: Path) -> None:
    data = pickle.dumps(era("2.1", 2000))
    cut = data.index(b"allocator_settings") - 9000
    sink = load(memory_snapshot, written(data[:cut], tmp_path))
    assert "2023-11-14 22:13:20 UTC" in sink.warnings[0]["hides"]


def test_damage_is_placed_in_the_file_although_frames_are_taken_out(tmp_path: Path) -> None:
    data = bytearray(pickle.dumps(era("2.11", 20_000)))
    assert len(data) > 10 * 65536
    at = data.index(b"allocator_settings") - 2
    data[at] = 0xFF
    sink = load(memory_snapshot, written(bytes(data), tmp_path))
    assert sink.bad_byte == at
    assert sink.warnings[0]["code"] == "damaged-pickle"
    assert len(sink.rows("memory_event")) > 20_000


def test_opcodes_without_frames_are_those_of_the_file(tmp_path: Path) -> None:
    data = pickle.dumps([["x" * 70_000, i, str(i)] for i in range(300)])
    with written(data, tmp_path).open("rb") as stream:
        opcodes = Opcodes(stream)
        parts = []
        while part := opcodes.read():
            parts.append(part)
    joined = b"".join(parts)
    for at in random.Random(1).sample(range(len(joined)), 500):
        assert data[opcodes.offset(at)] == joined[at]


class Evil:
    def __reduce__(self) -> Any:
        return print, ("called",)


def test_a_call_amid_columns_is_refused_and_what_came_before_is_kept(tmp_path: Path) -> None:
    content = era("2.11", 5000)
    content["device_traces"][0][4000]["user_metadata"] = Evil()
    sink = MemorySink()
    path = written(pickle.dumps(content), tmp_path)
    with pytest.raises(Untrusted):
        memory_snapshot.load(Source(path, "x"), sink)
    assert len(sink.rows("memory_event")) == 4000


_SMALL = [pickle.dumps(era(name, 120), protocol) for name in ("2.0", "2.11") for protocol in (2, 4)]
_SMALL.append(torch_pickled(era("2.13", 120)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_end_no_load_and_fill_no_memory(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(_SMALL)))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = written(bytes(content), tmp_path)
    tracemalloc.start()
    try:
        load(memory_snapshot, path)
    except ArtifactError as error:
        assert str(error).startswith("snapshot.pickle: ")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20


Flip = tuple[int, str, str, int, int]  # spacing, era, writer, place, byte there


def drawn_flips(spacing: int, n: int, seed: int) -> list[Flip]:
    dice = random.Random(seed)
    writers = [(name, f"protocol {protocol}") for name in ("2.0", "2.11") for protocol in (2, 4)] + [("2.13", "torch")]
    return [(spacing, *dice.choice(writers), dice.randrange(1 << 20), dice.randrange(256)) for _ in range(n)]


@pytest.mark.parametrize(
    "flips",
    [
        drawn_flips(20, 50, 3),
        drawn_flips(22, 50, 4),
        # An action that is a frame; a key that is an item, handed over before; an event without an action.
        [(20, "2.11", "protocol 4", 6893, 21), (21, "2.0", "protocol 2", 10123, 237), (20, "2.13", "torch", 3975, 17)],
    ],
    ids=["drawn", "drawn, 4 MiB apart", "found"],
)
def test_a_flipped_byte_reads_alike_as_columns_and_one_by_one(
    flips: list[Flip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spacing, name, writer, at, byte in flips:
        content = bytearray(PICKLERS[writer](era(name, 120, spacing=spacing)))
        content[at % len(content)] = byte
        path = written(bytes(content), tmp_path)
        results: list[Any] = []
        for read in (load, lambda module, path: one_by_one(module, path, monkeypatch)):
            try:
                sink = read(memory_snapshot, path)
                found = rows(sink)
                del found["stack"]  # items take stacks from an event that damage then leaves incomplete
                results.append((found, [warning["code"] for warning in sink.warnings]))
            except ArtifactError as error:
                results.append(str(error))
        assert results[0] == results[1], (spacing, name, writer, at, byte)
