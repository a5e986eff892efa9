from __future__ import annotations

import json
import pickle
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.case import connect
from forensics.errors import ArtifactError, Untrusted
from forensics.formats import _flight_entries, _pickle, flight_recorder, formats
from forensics.pipeline import analyze

FRAMES = [
    {"name": "all_reduce", "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 3000},
    {"name": "main", "filename": "train.py", "line": 7},
]


def entry(record: int, name: str = "nccl:all_reduce", **other: Any) -> dict[str, Any]:
    made = {
        "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": record + 1,
        "p2p_seq_id": 0, "op_id": record + 1, "profiling_name": name, "frames": FRAMES, "state": "completed",
        "input_sizes": [[4, 8], [2]], "output_sizes": [[4, 8]], "input_dtypes": ["BFloat16", "BFloat16"],
        "output_dtypes": ["Float"], "time_created_ns": 1_795_980_857_000_486_364 + record,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": 1_795_980_857_100_000_000, "retired": True,
        "is_p2p": False, "timeout_ms": 600_000, "duration_ms": 1.5, "thread_id": "77", "thread_name": "python3",
    }  # fmt: skip
    return {**made, **other}


def dump(*entries: dict[str, Any], **other: Any) -> dict[str, Any]:
    made = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "comm_lib_version": "2.27.3",
        "pg_status": {
            "0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 8}
        },
        "entries": list(entries),
    }
    return {**made, **other}


def write(tmp_path: Path, value: object, name: str = "nccl_trace_rank_3") -> Path:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(value, 2) if not isinstance(value, bytes) else value)
    return path


def loaded(tmp_path: Path, value: object, name: str = "nccl_trace_rank_3") -> MemorySink:
    return load(flight_recorder, write(tmp_path, value, name))


def codes(sink: MemorySink) -> list[str]:
    return [warning["code"] for warning in sink.warnings]


def recognised(path: Path) -> dict[str, int]:
    """All but the format that takes every pickle that no other knows."""
    head, others = Source(path, path.name).head(), {k: v for k, v in formats().items() if k != "other_pickle"}
    return {name: sure for name, module in others.items() if (sure := module.recognise(head))}


def as_json(value: object) -> bytes:
    """The form of the debug endpoint: no frames, 0 for never, texts in pg_status."""
    text = json.loads(json.dumps(value))
    for one in text.get("entries", []):
        del one["frames"]
        one["time_discovered_started_ns"] = one["time_discovered_started_ns"] or 0
    text["pg_status"] = {k: {m: str(n) for m, n in v.items()} for k, v in text["pg_status"].items()}
    return json.dumps(text, sort_keys=True, separators=(",", ":")).encode()


def test_an_entry_becomes_a_collective_with_its_group_sizes_and_stack(tmp_path: Path) -> None:
    path = write(
        tmp_path, dump(entry(0), entry(1, state="scheduled", time_discovered_completed_ns=None, retired=False))
    )
    assert recognised(path) == {"flight_recorder": 95}
    sink = load(flight_recorder, path)
    first, second = sink.rows("collective")
    assert first == {
        "row": 0, "proc": 0, "step": None, "ts_ns": 1_795_980_857_000_486_364, "group_id": 0, "sequence": 1,
        "p2p_sequence": 0, "is_p2p": False, "peer_rank": None, "operation": "all_reduce", "dtype": "BFloat16",
        "in_bytes": 68, "out_bytes": 128, "shapes": "[[[4,8],[2]],[[4,8]]]", "state": "completed", "retired": True,
        "started_ns": None, "completed_ns": 1_795_980_857_100_000_000, "dur_ns": 1_500_000,
        "timeout_ns": 600_000_000_000, "thread": "77 python3", "stack_id": first["stack_id"],
    }  # fmt: skip
    assert (second["state"], second["completed_ns"], second["retired"]) == ("scheduled", None, False)
    assert [(f["function"], f["depth"]) for f in sink.rows("stack")] == [("main", 0), ("all_reduce", 1)]
    assert first["stack_id"] == sink.rows("stack")[1]["id"]
    assert sink.clock_kind == "epoch"
    assert not sink.warnings


def test_json_gives_the_same_rows_as_pickle_but_for_the_stacks(tmp_path: Path) -> None:
    value = dump(entry(0), entry(1, state="started"))
    path = write(tmp_path, as_json(value), "comm_lib_trace_rank_3.json")
    assert recognised(path) == {"flight_recorder": 90}
    of_json, of_pickle = load(flight_recorder, path), loaded(tmp_path, value)
    assert of_json.rows("process_group") == of_pickle.rows("process_group")
    assert of_json.rows("collective") == [{**row, "stack_id": None} for row in of_pickle.rows("collective")]
    assert of_json.procs == of_pickle.procs
    assert not of_json.warnings


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_gather_into_tensor", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:ALLGATHER_coalesced", "all_gather_coalesced"),
        ("xccl:allreduce", "all_reduce"),
        ("nccl:recv 3<-0", "recv"),
        ("barrier", "barrier"),
        ("", "unknown"),
    ],
)
def test_operations_that_differ_in_spelling_get_one_name(tmp_path: Path, name: str, operation: str) -> None:
    assert loaded(tmp_path, dump(entry(0, name))).rows("collective")[0]["operation"] == operation


def test_point_to_point_ranks_are_those_of_the_group_turned_into_global_ones(tmp_path: Path) -> None:
    config = {"43": {"name": "43", "desc": "PIPELINE", "ranks": "[0, 4, 8, 12]"}}
    sent = entry(0, "nccl:send 1->2", process_group=("43", "PIPELINE"), pg_id=6, is_p2p=True)
    sink = loaded(tmp_path, dump(sent, pg_config=config, pg_status={}), "_dump_4")
    row = sink.rows("collective")[0]
    assert (row["operation"], row["is_p2p"], row["peer_rank"]) == ("send", True, 8)
    assert sink.procs[0] == {"rank": 4, "rank_origin": "content"}


def test_progress_is_joined_by_the_numbers_in_entries_and_else_by_order(tmp_path: Path) -> None:
    config = {n: {"name": n, "desc": "TP", "ranks": "[0, 1]"} for n in ("0", "1", "33", "112")}
    status = {
        str(pg_id): {"last_enqueued_collective": n, "last_started_collective": -1, "last_completed_collective": -1}
        for pg_id, n in ((0, 10), (1, 11), (4, 12), (17, 13))
    }
    mine = entry(0, process_group=("33", "TP"), pg_id=4)
    sink = loaded(tmp_path, dump(mine, pg_config=config, pg_status=status), "_dump_1")
    told = {g["name"]: (g["last_enqueued"], g["last_completed"], g["description"]) for g in sink.rows("process_group")}
    assert told == {"0": (10, None, "TP"), "1": (11, None, "TP"), "33": (12, None, "TP"), "112": (13, None, "TP")}
    # An entry that contradicts the order: only what entries say is joined.
    other = entry(0, process_group=("112", "TP"), pg_id=4)
    sink = loaded(tmp_path, dump(other, pg_config=config, pg_status=status), "_dump_1")
    assert {g["name"]: g["last_enqueued"] for g in sink.rows("process_group") if g["last_enqueued"]} == {"112": 12}
    assert codes(sink) == ["unjoined-status"]
    assert next(c for c in sink.coverage if c["capability"] == "process_group")["complete"] is False


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_0", 0), ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("trace_node-07.example.org_9", 9),
        ("node3_nccl_trace_rank_5.json.gz", 5), ("dump", None), ("dump_20260301", None),
    ],
)  # fmt: skip
def test_the_rank_is_the_last_number_of_the_name_where_the_groups_leave_it_open(
    tmp_path: Path, name: str, rank: int | None
) -> None:
    value = dump(entry(0), pg_config={})
    assert loaded(tmp_path, value, name).procs[0].get("rank") == rank


def test_groups_that_contradict_the_name_are_told(tmp_path: Path) -> None:
    config = {"5": {"name": "5", "desc": "EP", "ranks": "[9]"}}
    mine = entry(0, process_group=("5", "EP"))
    sink = loaded(tmp_path, dump(mine, pg_config=config), "_dump_3")
    assert sink.procs[0] == {"rank": 9, "rank_origin": "content"}
    assert codes(sink) == ["rank-mismatch"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (dump(), "recorder-off"),
        (dump(pg_status={"0": {"last_enqueued_collective": 9, "last_completed_collective": 9}}), "no-entries"),
        (dump(pg_status={}), "empty-dump"),
        (dump(entry(7), entry(8)), "wrapped-buffer"),
        (
            dump(entry(7, state="scheduled", retired=False), entry(9, state="scheduled", retired=False)),
            "unfinished-only",
        ),
        (dump(entry(0), future=1), "unknown-keys"),
        (dump(entry(0, timeout_ms="x", state=5, retired=3)), "bad-values"),
    ],
)
def test_what_a_dump_cannot_show_is_said(tmp_path: Path, value: object, code: str) -> None:
    sink = loaded(tmp_path, value)
    assert codes(sink) == [code]
    assert sink.quality == "complete"


def test_groups_that_ended_more_than_they_began_are_said(tmp_path: Path) -> None:
    status = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 5}}
    sink = loaded(tmp_path, dump(entry(0), pg_status=status))
    assert "impossible-state" in codes(sink)
    assert sink.quality == "partial"


def test_only_a_dump_from_the_first_record_on_is_a_complete_history(tmp_path: Path) -> None:
    def complete(*records: int) -> bool:
        sink = loaded(tmp_path, dump(*map(entry, records)))
        return "collective.complete" in {c["capability"] for c in sink.coverage}

    assert complete(0, 1, 2)
    assert not complete(1, 2)
    assert not complete(0, 2)


def test_the_list_of_entries_of_older_releases_is_read(tmp_path: Path) -> None:
    old = {
        "pg_id": 0, "seq_id": 5, "profiling_name": "nccl:all_reduce", "time_created_us": 1_700_000_000_000_000,
        "input_sizes": [[3]], "output_sizes": [[3]], "state": "scheduled", "retired": False, "frames": FRAMES,
    }  # fmt: skip
    path = write(tmp_path, [old])
    assert recognised(path) == {"flight_recorder": 95}
    row = load(flight_recorder, path).rows("collective")[0]
    assert (row["sequence"], row["ts_ns"], row["in_bytes"]) == (5, 1_700_000_000_000_000_000, None)


def test_a_pickle_that_asks_for_a_global_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("executed",)

    data = pickle.dumps(dump(entry(0)), 2)[:-1] + pickle.dumps([Evil()], 2)[2:]
    with pytest.raises(Untrusted):
        loaded(tmp_path, b"\x80\x02" + pickle.dumps({"pg_config": Evil(), "pg_status": {}}, 2)[2:])
    assert loaded_or_error(tmp_path, data) in {0, 1}


def loaded_or_error(tmp_path: Path, data: bytes) -> int:
    """Number of collectives kept, 0 where nothing can be read."""
    path = write(tmp_path, data)
    sink = MemorySink()
    try:
        flight_recorder.load(Source(path, path.name), sink)
    except ArtifactError:
        return len(sink.rows("collective"))
    return len(sink.rows("collective"))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_more_bytes_never_give_fewer_collectives(tmp_path: Path, form: str) -> None:
    value = dump(*(entry(n, f"nccl:all_reduce_{n}") for n in range(12)))
    data = pickle.dumps(value, 2) if form == "pickle" else as_json(value)
    ends = [*sorted(random.Random(4).sample(range(1, len(data)), 200)), len(data)]
    kept = [loaded_or_error(tmp_path, data[:end]) for end in ends]
    assert kept == sorted(kept)
    assert kept[-1] == 12
    assert len(set(kept)) == 13


@pytest.mark.parametrize("key", [*entry(0)])
@pytest.mark.parametrize("value", [None, [], {}, "x" * 5000, -1, 2**80, 1e400, [[[[1]]]], {"a": {}}, "\ud800", True])
def test_values_of_any_kind_raise_nothing(tmp_path: Path, key: str, value: object) -> None:
    assert len(loaded(tmp_path, dump(entry(0, **{key: value}))).rows("collective")) == 1


@pytest.mark.parametrize("key", ["pg_config", "pg_status", "entries", "version", "nccl_comm_state"])
@pytest.mark.parametrize("value", [None, [], {}, "[[[", {"0": 5}, {"0": {"ranks": "[" * 999}}, {5: {"ranks": [-1]}}, 7])
def test_documents_of_any_shape_raise_nothing(tmp_path: Path, key: str, value: object) -> None:
    loaded(tmp_path, dump(entry(0), **{key: value}))


@pytest.mark.parametrize("bound", ["_CONTENT_BYTES", "_BATCH_ROWS"])
def test_rows_do_not_depend_on_how_many_entries_are_compared_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    sizes = [[[4, n % 3]] for n in range(9)]
    value = dump(*(entry(n, input_sizes=sizes[n], thread_id=str(n % 2), seq_id=None) for n in range(9)))
    want = loaded(tmp_path, value)
    monkeypatch.setattr(_flight_entries, bound, 4)
    found = loaded(tmp_path, value)
    assert found.rows("collective") == want.rows("collective")
    assert [row["in_bytes"] for row in found.rows("collective")[1:3]] == [8, 16]


def test_what_entries_share_is_read_once_however_long_or_deep(tmp_path: Path) -> None:
    """A small file can denote far more than could be read: here 2000 times a list of 300 000, and a deep one."""
    long = b"]q\x00(" + b"K\x01" * 300_000 + b"e"
    deep = b"]q\x01(" + b"](" * 3000 + b"e" * 3001
    start = b"\x80\x02}(X\x04\0\0\0kept](" + long + deep + b"e"
    keys = b"X\x0e\0\0\0profiling_nameX\x04\0\0\0nccl" + b"X\x0b\0\0\0input_sizesh\x00X\x0c\0\0\0output_sizesh%c"
    entries = b"X\x07\0\0\0entries](" + b"".join(b"}(" + keys % (n % 2) + b"u" for n in range(2000)) + b"e"
    data = start + entries + b"X\x09\0\0\0pg_status}u."
    assert _pickle._scan(data) is not None
    began = time.process_time()
    rows = loaded(tmp_path, data).rows("collective")
    assert time.process_time() - began < 5
    assert len(rows) == 2000
    assert {row["shapes"] for row in rows} == {None}


@pytest.mark.parametrize("data", [b"", b"{}", b"\x80\x02}.", b'{"version": "1", "entries": []}', b"\x80\x02]."])
def test_other_files_are_neither_claimed_nor_loaded(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data)
    assert recognised(path).get("flight_recorder") is None
    with pytest.raises(ArtifactError):
        load(flight_recorder, path)


@needs_artifacts
def test_counts_of_real_dumps_agree_with_the_oracle() -> None:
    oracle = json.loads((ARTIFACTS / "oracle_counts.json").read_text())
    dumps = {name: counts for name, counts in oracle.items() if name.startswith("flight_recorder/")}
    assert dumps
    for name, counts in dumps.items():
        sink = load(flight_recorder, ARTIFACTS / name)
        states = [row["state"] for row in sink.rows("collective")]
        assert Counter(states) == counts["states"], name
        assert (len(states), len(sink.rows("process_group"))) == (counts["entries"], counts["pg_config"]), name
        assert ("flight-recorder", counts["version"]) in {(fact["key"], fact["value"]) for fact in sink.facts}
        assert sink.quality == "complete", name


@needs_artifacts
@pytest.mark.parametrize(("incident", "n_collectives"), [("nvrx__gpu_error_1st", 289), ("nvrx__lock_gil_1st", 142)])
def test_real_incidents_give_every_rank_its_entries_and_its_groups_their_progress(
    incident: str, n_collectives: int, tmp_path: Path
) -> None:
    folder = ARTIFACTS / "flight_recorder" / incident
    analyze(folder, tmp_path)
    with connect(tmp_path / "case.duckdb", read_only=True) as con:
        told = con.execute("SELECT count(*), count(group_id), count(in_bytes) FROM collective").fetchone()
        ranks = con.execute("SELECT rank, rank_origin, world_size FROM proc ORDER BY rank").fetchall()
        unjoined = con.execute("SELECT count(*) FROM process_group WHERE last_enqueued IS NULL").fetchone()
        # The last unfinished collective of a group is the one that the group's progress ends with.
        agreeing = con.execute(
            "SELECT bool_and(g.last_enqueued = c.sequence) FROM process_group AS g JOIN ("
            " SELECT artifact_id, group_id, max(sequence) AS sequence FROM collective WHERE NOT is_p2p GROUP BY ALL"
            ") AS c ON c.artifact_id = g.artifact_id AND c.group_id = g.id"
        ).fetchone()
    truth = 0
    for path in folder.iterdir():
        with path.open("rb") as stream:  # the files are known
            truth += len(pickle.load(stream)["entries"])
    assert told == (n_collectives, n_collectives, n_collectives)
    assert truth == n_collectives
    assert ranks == [(rank, "content", 16) for rank in range(16)]
    assert unjoined == (0,)
    assert agreeing == (True,)


@needs_artifacts
@pytest.mark.parametrize("incident", ["nvrx__gpu_error_1st", "nvrx__lock_gil_1st"])
def test_the_ranks_into_which_the_fault_was_injected_are_those_that_are_missed(incident: str, tmp_path: Path) -> None:
    truth = (ARTIFACTS / "truth" / f"{incident}.fault_injection.log").read_text()
    injected = json.loads(truth.partition("Fault ranks:")[2].partition("\n")[0])
    analyze(ARTIFACTS / "flight_recorder" / incident, tmp_path)
    report = json.loads((tmp_path / "report.json").read_bytes())
    found = [finding for finding in report["findings"] if finding["rule"] == "distributed-missing-rank"]
    assert sorted(finding["rank"] for finding in found) == injected
    assert report["verdict"]["status"] == "root-cause"
    # None of them is there because of another.
    assert sorted(cause["rank"] for cause in report["verdict"]["root_causes"]) == injected
