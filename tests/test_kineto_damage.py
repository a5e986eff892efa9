"""Profiler traces broken in the ways that profilers, crashes and attackers break them."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from kineto_traces import BASE_NS, covered, many, names, op, reader, trace
from support import ARTIFACTS, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import _json_events, _kineto_trace, kineto

read = reader


def codes(sink: Any) -> list[str]:
    return [warning["code"] for warning in sink.warnings]


def test_an_empty_list_of_events_is_a_complete_trace(read: Any) -> None:
    sink = read(trace([]))
    assert covered(sink)["n_read"] == 0
    assert sink.quality == "complete"


@pytest.mark.parametrize(
    "data", [b"", b"   \n", b"{", b'{"schemaVersion": 1, "deviceProperties": [', b"\x1f\x8b\x08", b"null"]
)
def test_a_file_without_events_raises_an_artifact_error(read: Any, data: bytes) -> None:
    with pytest.raises(ArtifactError):
        read(data)


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_cut_anywhere_keeps_every_complete_event(read: Any, packed: bool) -> None:
    data = trace(many(6))
    start = data.index(b"[", data.index(b"traceEvents")) + 1
    ends = []
    at = start
    for _ in range(6):
        at = _json_events.event_end(data, data.index(b"{", at), len(data))
        ends.append(at)
    for cut in [*range(start, len(data) - 1, 83), *ends, *(end - 1 for end in ends)]:
        sink = read(gzip.compress(data[:cut]) if packed else data[:cut])
        n = sum(end <= cut for end in ends)
        assert names(sink) == [f"aten::op{number}" for number in range(n)], cut
        closing = data.index(b"]", ends[-1]) + 1
        if cut < closing:
            assert codes(sink) == ["truncated"]
            assert sink.quality == "partial"
            assert not covered(sink)["complete"]
            assert start <= sink.bad_byte <= cut


def test_a_compressed_trace_cut_anywhere_keeps_what_unpacks(read: Any) -> None:
    packed = gzip.compress(trace(many(400)))
    counts = []
    for cut in range(len(packed) // 3, len(packed), len(packed) // 9):
        try:
            sink = read(packed[:cut], "trace.json.gz")
        except ArtifactError:
            counts.append(0)
            continue
        counts.append(len(names(sink)))
        assert names(sink) == [f"aten::op{number}" for number in range(counts[-1])]
        assert sink.quality == "partial"
    assert counts == sorted(counts)
    assert counts[-1] > 200


@needs_artifacts
def test_a_real_trace_cut_anywhere_gives_the_rows_of_its_beginning(tmp_path: Path) -> None:
    whole_path = ARTIFACTS / "chrome_trace" / "hta__amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    data = gzip.decompress(whole_path.read_bytes())
    whole = {row["row"]: row for row in load(kineto, whole_path).rows("slice")}
    path = tmp_path / "cut.json"
    for cut in range(5_000, len(data), 6_007):
        path.write_bytes(data[:cut])
        rows = load(kineto, path).rows("slice")
        kept = [row["name"] for row in rows]
        assert kept == [row["name"] for row in whole.values()][: len(kept)]
        assert all(row["dur_ns"] == whole[row["row"]]["dur_ns"] for row in rows)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('step "quoted" / back', 'step "quoted" / back'),
        ('5" disk', '5" disk'),
        ("C:\\Users\\x", "C:/Users/x"),
        ("tab\there", "tab here"),
        ("line\nbreak", "line break"),
        ("\x01\x02bell", "  bell"),
        ('Call("a", {b})', 'Call("a", {b})'),
        ("\\ud800 half", "? half"),
    ],
)
def test_names_that_break_the_json_are_mended(read: Any, written: str, name: str) -> None:
    sink = read(trace([*many(2), op(written, 500, 5, Sequence_number=3), op("last", 600)]))
    assert names(sink) == ["aten::op0", "aten::op1", name, "last"]
    assert sink.rows("slice")[2]["sequence"] == 3
    assert (sink.quality, codes(sink)) == ("repaired", ["bad-json"])
    assert covered(sink)["complete"]


def test_invalid_utf8_becomes_replacement_characters(read: Any) -> None:
    sink = read(trace([*many(1), op("NAME", 500)]).replace(b"NAME", b"\xff\xfe op"))
    assert names(sink) == ["aten::op0", "\ufffd\ufffd op"]


@pytest.mark.parametrize(
    "value", ["nan", "-nan", "inf", "-inf", "NaN", "Infinity", "-Infinity", "-nan(ind)", "", '"inf"', "[", "1e999"]
)
def test_values_that_are_no_json_leave_the_rest_of_the_event(read: Any, value: str) -> None:
    broken = op("gemm", 70, cat="kernel", External_id=5, correlation=8, device=1, stream=7).replace(
        '"device"', f'"blocks per SM": {value}, "device"'
    )
    sink = read(trace([*many(1), broken, op("last", 600)]))
    rows = sink.rows("slice")
    assert [row["name"] for row in rows] == ["aten::op0", "gemm", "last"]
    assert rows[1]["dur_ns"] == 5_000
    assert value == "[" or (rows[1]["device"], rows[1]["correlation"]) == (1, 8)


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", ["nan", '""', '"x"', "1e30", "{}"])
def test_a_time_that_is_no_number_is_unknown(read: Any, field: str, value: str) -> None:
    broken = op("odd", 70, 5, External_id=5).replace(f'"{field}": ', f'"{field}": {value}, "was": ', 1)
    rows = read(trace([*many(1), broken])).rows("slice")
    assert rows[1]["name"] == "odd"
    assert rows[1]["ts_ns" if field == "ts" else "dur_ns"] is None


WRONG = {
    "ts": ['"soon"', "{}", "[1]", "true", "1e30", str(10**30)],
    "dur": ['"long"', "{}", "[1]", "true", "false", str(10**30)],
    "name": ['{"a": 1}', '["a"]', "true"],
    "cat": ['["cpu_op"]', "{}"],
    "ph": ["[]", "{}"],
    "pid": ["[1]", '{"a": 1}', "true"],
    "tid": ["[1]", "{}", "false"],
    "args": ['"text"', "[1]", "7", "true"],
    "External id": ['"many"', "{}", "[5]", "true", str(10**30)],
    "device": ['"first"', "{}", "false", str(-(10**30))],
    "correlation": ['""', "[]", "true"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_value_of_the_wrong_kind_is_counted_and_costs_nothing_else(read: Any, field: str, value: str) -> None:
    event = '{"ph": "X", "cat": "kernel", "name": "odd", "pid": 1, "tid": 1, "ts": 70, "dur": 5, "args": '
    event += '{"External id": 5, "device": 1, "correlation": 8}}'
    at = event.index(f'"{field}": ') + len(field) + 4
    end = len(event) - 1 if field == "args" else min(n for n in (event.find(c, at) for c in ",}") if n > 0)
    broken = event[:at] + value + event[end:]
    sink = read(trace([*many(2), broken, op("last", 600)]))
    told = [w["message"] for w in sink.warnings if w["code"] == "bad-values"]
    assert len(told) == 1 and f": {field} (1, first " in told[0] and " at byte " in told[0]
    assert sink.quality == "partial" and covered(sink)["n_read"] == 4
    kept = names(sink)
    assert kept[:2] == names(read(trace(many(2)))) and kept[-1] == "last"
    assert len(kept) == 4


def test_values_of_the_right_kind_are_not_counted(read: Any) -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "[1]", "pid": "Spans", "tid": "a", "ts": "70.5", "dur": 1, "args": '
    sink = read(trace([*many(1), event + '{"External id": "5", "blocking": true, "names": ["a"]}}']))
    assert sink.warnings == [] and names(sink)[-1] == "[1]"


def test_values_out_of_range_do_not_cost_their_neighbours(read: Any) -> None:
    events = [
        op("a", "5095123798479.830", correlation=2**63 + 5, device=1, stream="0x7fff0000"),
        op("b", "5095123798479.831", cat="kernel", correlation=4, device="", stream=9, External_id=-1),
        '{"ph": "X", "name": {"odd": 1}, "pid": [1], "tid": null, "ts": 3, "dur": 1, "args": "text"}',
        '{"ph": "X", "cat": "cpu_op", "name": "twice", "name": "twice", "pid": 1, "tid": 1, "ts": 3, "dur": 1}',
    ]
    rows = read(trace(events)).rows("slice")
    assert [row["name"] for row in rows] == ["a", "b", '{"odd":1}', "twice"]
    assert rows[1]["ts_ns"] - rows[0]["ts_ns"] == 1
    assert (rows[1]["correlation"], rows[1]["stream"]) == (4, 9)


@pytest.mark.parametrize(
    "args", ['{ , "External id": 5}', '{"External id": 5, }', '{"External id": 5,, "Sequence number": 1}', "{,}", "{ }"]
)
def test_empty_members_are_dropped(read: Any, args: str) -> None:
    event = f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 3, "dur": 1, "args": {args}}}'
    sink = read(trace([event, *many(1)]))
    assert names(sink) == ["a", "aten::op0"]
    assert covered(sink)["n_kept"] == 2


def test_a_trailing_comma_after_the_last_event_is_tolerated(read: Any) -> None:
    sink = read(trace([*many(2), ""]).replace(b",\n\n", b",\n"))
    assert names(sink) == ["aten::op0", "aten::op1"]
    assert covered(sink)["complete"]


def test_an_event_beyond_mending_keeps_its_place(read: Any) -> None:
    events = [*many(1), '{"ph": "X", "cat" "cpu_op" "name": : 5 }', op("last", 600)]
    sink = read(trace(events))
    assert [(row["row"], row["name"]) for row in sink.rows("slice")] == [(0, "aten::op0"), (2, "last")]
    assert (covered(sink)["n_read"], covered(sink)["n_kept"], covered(sink)["complete"]) == (3, 2, False)
    assert sink.quality == "partial"
    assert "1 lost" in sink.warnings[0]["message"]


def test_args_beyond_mending_are_left_out(read: Any) -> None:
    broken = op("kept", 70, External_id=5).replace('"External id": 5', '"External id" 5 [ }')
    sink = read(trace([*many(1), broken, op("last", 600)]))
    assert names(sink) == ["aten::op0", "kept", "last"]
    assert sink.quality == "partial"


def test_binary_garbage_between_events_costs_only_itself(read: Any) -> None:
    noise = random.Random(7).randbytes(3000)
    data = trace([*many(3), "NOISE", op("last", 600)]).replace(b"NOISE", noise.replace(b"{", b"(").replace(b"}", b")"))
    sink = read(data)
    assert names(sink) == ["aten::op0", "aten::op1", "aten::op2", "last"]


@pytest.mark.parametrize("seed", range(8))
def test_a_trace_with_bytes_flipped_loads_without_a_fault(read: Any, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(trace(many(60)))
    start = data.index(b"traceEvents") + 20
    for _ in range(1 + seed * 3):
        data[dice.randrange(start, len(data))] = dice.randrange(256)
    sink = read(bytes(data))
    assert len(names(sink)) > 20


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
@pytest.mark.parametrize("where", ["args", "beside"])
def test_deep_nesting_is_no_danger(read: Any, depth: int, where: str) -> None:
    deep = "[" * depth + "]" * depth
    inside = f'"args": {{"Input Dims": {deep}}}' if where == "args" else f'"x": {deep}'
    event = f'{{"ph": "X", "cat": "cpu_op", "name": "deep", "pid": 1, "tid": 1, "ts": 3, "dur": 1, {inside}}}'
    assert "last" in names(read(trace([*many(1), event, op("last", 600)])))


@pytest.mark.parametrize("text", ["{", "[", '"', '{"', '},{"', "}]", "\\", "\n", "{ ", '{"ph":"', '"a":{"b":['])
def test_repeated_brackets_and_quotes_take_no_more_than_linear_time(read: Any, text: str) -> None:
    data = trace([*many(2), "NOISE"]).replace(b"NOISE", text.encode() * (600_000 // len(text)))
    sink = read(data)
    assert names(sink)[:1] == ["aten::op0"]


def test_an_event_longer_than_a_slice_is_read(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json_events, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(_json_events, "PIECE_BYTES", 2_000)
    sink = read(trace([*many(30), op("long" * 20_000, 400), op("last", 600)]))
    assert [name[:8] for name in names(sink)][-2:] == ["longlong", "last"]
    assert covered(sink)["n_kept"] == 32


def test_an_event_beyond_the_size_limit_ends_the_reading(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json_events, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(_json_events, "EVENT_BYTES", 30_000)
    sink = read(trace([*many(30), op("long" * 20_000, 400), op("last", 600)]))
    assert len(names(sink)) == 30
    assert codes(sink) == ["truncated"]


def test_lists_of_objects_inside_of_args_are_no_events(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json_events, "CHUNK_BYTES", 3_000)
    monkeypatch.setattr(_json_events, "PIECE_BYTES", 400)
    inner = [{"name": f"n{n}", "cat": "x", "ts": n} for n in range(40)]
    events = [op(f"e{n}", 10 + n, layers=inner, more=[{"name": "a"}], shape={"a": [{"b": [{}]}]}) for n in range(9)]
    sink = read(trace(events))
    assert names(sink) == [f"e{n}" for n in range(9)]
    assert (sink.quality, sink.facts[-1]["key"]) == ("complete", "device.0.totalGlobalMem")


def test_brackets_inside_of_names_do_not_end_the_list(read: Any) -> None:
    listed = ["f}]", "}, {", '}] , \\"traceName\\": 1', "a]}", "[with T = {int}]"]
    sink = read(trace([op(name, n) for n, name in enumerate(listed)]))
    assert names(sink) == [name.replace("\\", "") for name in listed]
    assert sink.quality == "complete"


@pytest.mark.parametrize("stray", ['"}], ', '"}], "x": [', "}]", "]"])
def test_a_stray_bracket_does_not_hide_the_events_after_it(read: Any, stray: str) -> None:
    sink = read(trace([*many(3), op("ab STRAY cd", 300), *many(5)]).replace(b"STRAY", stray.encode()))
    assert len(sink.rows("slice")) >= 8
    assert names(sink)[-5:] == [f"aten::op{n}" for n in range(5)]
    assert (sink.quality == "complete") == (stray in {"}]", "]"})
    assert sink.facts[-1]["key"] == "device.0.totalGlobalMem"


def test_two_documents_in_one_file_are_both_read(read: Any) -> None:
    second = trace([op("b", 3), op("c", 9)], head='  "distributedInfo": {"rank": 1},\n')
    sink = read(trace([op("a", 1)], head='  "distributedInfo": {"rank": 0},\n') + second)
    assert [(r["row"], r["name"], r["proc"]) for r in sink.rows("slice")] == [(0, "a", 0), (1, "b", 1), (2, "c", 1)]
    assert [sink.procs[n]["rank"] for n in (0, 1)] == [0, 1]
    assert [c["n_read"] for c in sink.coverage if c["capability"] == "slice"] == [1, 2]


def test_log_lines_after_the_events_may_be_broken(read: Any) -> None:
    tail = f',\n  "INFO": ["INFO: said "hello"\n and went", "b"],\n  "baseTimeNanoseconds": {BASE_NS}'
    sink = read(trace(many(2), base=False, tail=tail))
    assert sink.rows("slice")[0]["ts_ns"] == BASE_NS + 1_000_125
    assert sink.clock_kind == "epoch"


def test_metadata_whose_quotes_the_profiler_broke_is_mended(read: Any) -> None:
    head = '  "note": "he said /"x/" / y",\n  "cfg": {"lr": nan, "a": [1,2]},\n  "distributedInfo": {"rank": 3},\n'
    sink = read(trace(many(1), head=head))
    facts = {fact["key"]: fact["value"] for fact in sink.facts}
    assert facts["note"] == 'he said /"x/" / y'
    assert json.loads(facts["cfg"]) == {"lr": None, "a": [1, 2]}
    assert sink.procs[0]["rank"] == 3
    assert sink.quality == "repaired"


def test_header_lines_beyond_mending_cost_only_themselves(read: Any) -> None:
    head = '  "bad": {"a": [}, "x" 5,\n  "with_stack": 1,\n  "distributedInfo": {"rank": 3},\n'
    sink = read(trace(many(1), head=head))
    facts = {fact["key"]: fact["value"] for fact in sink.facts}
    assert facts["with_stack"] == "1"
    assert facts["device.0.name"] == "NVIDIA H100"
    assert sink.procs[0]["rank"] == 3
    assert sink.rows("slice")[0]["ts_ns"] == BASE_NS + 1_000_125
    assert (sink.quality, codes(sink)) == ("partial", ["bad-header"])


def test_places_are_found_in_damaged_traces_too(read: Any, tmp_path: Path) -> None:
    data = trace([*many(5), op('a "quoted" one', 500), '{"ph" "X" , }', op("last", 600)])
    read(data)
    path = tmp_path / "trace.json"
    place = kineto.locate(Source(path, path.name), 7, None)
    assert place is not None
    assert (place.row, place.byte) == (7, data.rindex(b"{", 0, data.index(b'"last"')))
    assert place.text.startswith('{ "ph": "X", "cat": "cpu_op", "name": "last"')
    assert kineto.locate(Source(path, path.name), 8, None) is None
    assert kineto.locate(Source(path, path.name), 3, (4, 900)) is None


def test_places_within_a_slice_are_those_of_its_events(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json_events, "PIECE_BYTES", 500)
    events = many(40)
    events[12:12] = [op(f"at once {n}", 5_000) for n in range(20)]
    events[25:25] = [events[30]] * 10  # none of these can be told from the others
    data = trace(events)
    places = {place["row"]: place["byte"] for place in read(data).rows("position")}
    starts = [found.start() for found in re.finditer(rb'\{\s*"ph"', data)]
    assert len(starts) == 70 and len(places) >= 15
    assert all(starts[row] == byte or row == 0 for row, byte in places.items())
    assert not set(range(25, 35)) & set(places)


@pytest.mark.parametrize("error", [duckdb.OutOfMemoryException("full"), OSError("Out of Memory Error: full")])
def test_a_trace_whose_links_find_no_memory_keeps_its_rows(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(_kineto_trace, "nest", fail)
    (tmp_path / "trace.json").write_bytes(trace(many(25)))
    sink = load(kineto, tmp_path / "trace.json")
    assert len(sink.rows("slice")) == 25
    assert [w["code"] for w in sink.warnings] == ["links-missing"]
    assert sink.quality == "partial" and not covered(sink)["complete"]
