from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support import ARTIFACTS, needs_artifacts

from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats import _pickle
from forensics.formats._pickle import Pickled, read_pickle, shown, walk_pickle

PROTOCOLS = range(6)
PLAIN: dict[str, Any] = {
    "segments": [{"address": 0x7F00_0000_0000, "pool": (0, 1), "blocks": [{"state": "inactive", "frames": []}]}],
    "numbers": [0, 1, 255, 256, 65536, -1, 2**31, 2**63, 2**64 - 1, -(2**40), 1.5, True, False, None],
    "texts": ["", "a", "ü€😀", "x" * 300, "line\nbreak\\", "y" * 70_000],
    "tuples": [(), (1,), (1, 2), ("a", "b"), (1, 2, 3), (1, 2, 3, 4), ((1, 2), [3])],
    "one": {"only": 1},
}


def framed(*opcodes: bytes) -> bytes:
    return b"\x80\x04" + b"".join(opcodes) + b"."


def bounded(data: bytes, seconds: float = 3.0, mebibytes: float = 64) -> Pickled | ArtifactError:
    """What reading gives; fails when it takes too long or too much."""
    tracemalloc.start()
    start = time.process_time()
    try:
        result: Pickled | ArtifactError = read_pickle(data)
    except ArtifactError as error:
        result = error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.process_time() - start < seconds
    assert peak < mebibytes * (1 << 20)
    return result


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_readers_give_what_was_pickled(protocol: int) -> None:
    data = pickle.dumps(PLAIN, protocol)
    for read in (read_pickle, walk_pickle):
        found = read(data)
        assert found.value == PLAIN
        assert found.end == len(data)
        assert found.error is None


@pytest.mark.parametrize("protocol", (2, 3, 4, 5))
def test_data_of_snapshots_takes_the_fast_way(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"action": "alloc", "addr": 2**47 + i, "time_us": 17 * 10**14 + i, "pool_id": (0, i)} for i in range(9000)
    ]
    value = {"device_traces": [events], "names": ["n" * n for n in range(300)], "ratio": 0.5}
    monkeypatch.setattr(_pickle, "walk_pickle", lambda data: pytest.fail("walked"))
    assert read_pickle(pickle.dumps(value, protocol)).value == value


def test_pairs_of_texts_that_are_not_memoised_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's own pickler writes the names of process groups."""
    pair = b"X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01\x86"
    later = b"h\x00h\x01\x86" + b"h\x00X\x01\x00\x00\x00c\x86"
    monkeypatch.setattr(_pickle, "walk_pickle", lambda data: pytest.fail("walked"))
    assert read_pickle(b"\x80\x02](" + pair + later + b"e.").value == [("a", "b"), ("a", "b"), ("a", "c")]


@pytest.mark.parametrize("put", [b"q\x05", b"\x94", b"r\x05\x00\x00\x00", b"(eq\x05", b"(uq\x05"])
@pytest.mark.parametrize("second", [b"h\x01", b"X\x01\x00\x00\x00b", b"\x8c\x01b\x94"])
def test_pairs_that_something_can_refer_to_are_walked(put: bytes, second: bytes) -> None:
    start = b"\x80\x04](X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01"
    assert _pickle._scan(start + b"h\x00" + second + b"\x86e.") is not None
    assert _pickle._scan(start + b"h\x00" + second + b"\x86" + put + b"e.") is None
    assert _pickle._scan(start + b"h\x00" + second + b"\x86" + b"\x95" + bytes(8) + put + b"e.") is None
    assert _pickle._scan(start + b"h\x00" + second + b"\x86" + second + b"\x86e.") is None  # a pair in a pair


def test_parts_that_were_shared_are_shared() -> None:
    frames = [{"name": "f"}]
    for read in (read_pickle, walk_pickle):
        found = read(pickle.dumps([{"frames": frames}, {"frames": frames}])).value
        assert found[0]["frames"] is found[1]["frames"]


def test_bytes_behind_the_end_are_not_read() -> None:
    data = pickle.dumps([1])
    assert read_pickle(data + b"\x00cos\nsystem\n").end == len(data)


class Call:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_are_refused_and_never_made(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "called"
    data = pickle.dumps({"segments": [{"device": 0}], "evil": Call(target)}, protocol)
    found = read_pickle(data)
    assert isinstance(found.error, Untrusted)
    assert "GLOBAL" in str(found.error)
    assert found.error.byte is not None
    assert data[found.error.byte : found.error.byte + 1] in (b"c", b"\x93")
    assert found.value["segments"] == [{"device": 0}]
    with pytest.raises(Untrusted):
        read_pickle(b"cos\nsystem\n(S'touch x'\ntR.")
    assert not target.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cos\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"(ios\nsystem\n",
        b"]]R",
        b"](\x8c\x01ao",
        b"}}b",
        b"])\x81",
        b"])}\x92",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
        b"Pid\n",
        b"]Q",
        b"\x97",
        b"]\x98",
        b"\x96" + b"\xff" * 8,
        b"\x8e" + b"\xff" * 8,
        b"\x8f",
        b"\x8f(K\x01\x90",
        b"(K\x01\x91",
    ],
)
def test_opcodes_that_are_not_for_plain_data_are_refused(opcodes: bytes) -> None:
    for data in (framed(opcodes), framed(b"}\x8c\x01a", opcodes, b"s")):
        try:
            error = read_pickle(data).error
        except ArtifactError as raised:
            error = raised
        assert isinstance(error, Untrusted)
        assert error.byte is not None


@pytest.mark.parametrize("opcodes", [b"cos\nsystem\n.", b"\x8c\x02os\x8c\x06system\x93.", b"K\x01Q.", b"Pid\n."])
def test_the_c_reader_looks_nothing_up_even_if_the_scan_let_it_pass(opcodes: bytes) -> None:
    with pytest.raises(Untrusted):
        _pickle._Sealed(io.BytesIO(b"\x80\x04" + opcodes)).load()


@pytest.mark.parametrize(
    "bomb",
    [
        b"]r\xff\xff\xff\x7f",  # the C unpickler allocates up to the memo index
        b"]p2147483647\n",
        b"]r\xff\xff\xff\x0f",
        b"\x8d" + b"\xff" * 7 + b"\x7f",
        b"X\xff\xff\xff\xff",
        b"T\xff\xff\xff\xff",
        b"B\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"\x95" + b"\xff" * 7 + b"\x7f]",
        b"\x95\x00\x00\x00\x00\x10\x00\x00\x00]",
        b"I" + b"9" * 200_000 + b"\n",
        b"L" + b"9" * 200_000 + b"L\n",
        b"]" * 200_000,
        b"(" * 100_000,
        b"]" * 50_000 + b"a" * 49_999,
        b")" + b"\x85" * 200_000,
        b"K\x00K\x00\x86" + b"2\x86" * 500,
        b"}" + b")" + b"\x85" * 100_000 + b"K\x00s",  # the hash of a deep key overflows the stack
        b"})\x94" + b"h\x00h\x00\x86\x94" + b"".join(b"h%c" % i * 2 + b"\x86\x94" for i in range(1, 200)) + b"K\x00s",
        b"}" + b"".join(b"\x8a\x10" + struct.pack("<QQ", 0, i) + b"K\x00s" for i in range(20_000)),
        b"]\x94h\x00a",
        b"}\x94\x8c\x01ah\x00s",
        b"]\x94(]\x94h\x00e",
    ],
)
def test_bombs_stay_within_bounds(bomb: bytes) -> None:
    bounded(framed(bomb))
    bounded(b"\x80\x02" + bomb)
    bounded(bomb + b".")


def test_lists_that_denote_more_than_fits_are_shown_shortened() -> None:
    doubled = b"]\x94" + b"".join(b"](h%ch%ce\x94" % (i, i) for i in range(100))
    for read in (read_pickle, walk_pickle):
        try:
            value = read(framed(doubled, b"}\x8c\x01ah%cs" % 12)).value
        except ArtifactError:
            continue
        assert len(shown(value)) <= 1000


@pytest.mark.parametrize(
    "key", [b"]", b")", b"K\x00K\x01\x86", b"G" + bytes(8), b"N", b"\x8a\x09" + b"\xff" * 8 + b"\x0f"]
)
def test_the_walker_takes_only_texts_and_small_numbers_for_keys(key: bytes) -> None:
    assert isinstance(walk_pickle(b"}" + key + b"K\x00s.").error, Untrusted)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cut_file_keeps_what_came_before_the_cut(protocol: int) -> None:
    events = [{"action": "alloc", "addr": i, "frames": [{"name": f"f{i % 3}", "line": i}]} for i in range(40)]
    segments = [{"device": 0, "address": i, "blocks": [{"size": i}, {"size": 1}]} for i in range(10)]
    whole = {"segments": segments, "device_traces": [events[:15], events[15:]], "settings": {"a": 1}}
    data = pickle.dumps(whole, protocol)
    kept = []
    for cut in range(2, len(data)):
        try:
            found = read_pickle(data[:cut])
        except Truncated:
            assert cut < 15
            continue
        assert isinstance(found.error, Truncated)
        assert found.error.byte is not None and found.error.byte <= cut
        value = found.value
        got = value.get("segments", [])
        assert got[:-1] == segments[: max(len(got) - 1, 0)]
        traces = value.get("device_traces", [])
        for trace, full in zip(traces, whole["device_traces"], strict=False):
            assert trace[:-1] == full[: max(len(trace) - 1, 0)]
        if "device_traces" in value:
            assert got == segments
        kept.append(len(got) + sum(map(len, traces)))
    assert kept == sorted(kept)
    assert kept[-1] == 50


def test_damage_in_the_middle_keeps_what_came_before_it() -> None:
    data = bytearray(pickle.dumps({"segments": [{"n": i} for i in range(100)]}))
    at = data.index(b"K\x32")
    data[at] = 0xFF
    found = read_pickle(bytes(data))
    assert type(found.error) is ArtifactError
    assert found.error.byte == at
    assert found.value["segments"][:50] == [{"n": i} for i in range(50)]


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x04", b"\x80\x04.", b"not a pickle", b"a", b"e", b"h\x00", b"\x80\x09N."]
)
def test_what_is_no_pickle_raises_an_error_of_this_package(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        read_pickle(data)


def test_random_damage_raises_nothing_else() -> None:
    dice = random.Random(7)
    originals = [pickle.dumps(PLAIN | {"texts": ["abc"]}, protocol) for protocol in PROTOCOLS]
    for _ in range(2000):
        data = bytearray(dice.choice(originals))
        for _ in range(dice.choice((1, 3, 20))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with contextlib.suppress(ArtifactError):
            read_pickle(bytes(data))


@needs_artifacts
def test_both_readers_agree_on_real_files() -> None:
    for path in sorted(ARTIFACTS.glob("memory_snapshot/*")) + sorted(ARTIFACTS.glob("allocator/*oom*")):
        data = path.read_bytes()
        found = read_pickle(data)
        assert found.error is None
        assert found == walk_pickle(data)
