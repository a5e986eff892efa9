"""What lies in a folder or archive, and what names say of processes."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from trouble import dropped_in, messages

from forensics import artifact, compression, discovery
from forensics.artifact import HEAD_BYTES, Head, Source
from forensics.deadline import Deadline
from forensics.discovery import discover, hints_from_name
from forensics.errors import ForensicsError
from forensics.formats import formats
from forensics.ingest import ingest
from forensics.parquet_sink import ParquetSink


@pytest.mark.parametrize(
    ("name", "rank", "origin"),
    [
        ("rank_3.stderr.log", 3, "file-name"),
        ("logs/rank-12/stdout.log", 12, "folder"),
        ("trace_rank007.json.gz", 7, "file-name"),
        ("frank_3.log", None, "none"),
        ("worker0.pt.trace.json", None, "none"),
        ("nccl_trace_dump_5", 5, "file-name"),
        ("memory_snapshot/iteration_10/rank4_memory_snapshot.pickle", 4, "file-name"),
        ("ranking_2.txt", None, "none"),
    ],
)
def test_ranks_are_taken_from_names_only_where_they_say_rank(name: str, rank: int | None, origin: str) -> None:
    hints = hints_from_name(name)
    assert (hints.rank, hints.rank_origin) == (rank, origin)


@pytest.mark.parametrize("run", ["nan-on-one-rank_578i2lyn", "long-run_12_zbejw2er", "node-7"])
def test_the_run_of_a_torchelastic_folder_tells_neither_rank_nor_attempt_nor_host(run: str) -> None:
    hints = hints_from_name(f"logs/{run}/attempt_0/1/stdout.log")
    assert (hints.rank, hints.attempt, hints.local_rank, hints.host) == (None, 0, 1, None)


def test_torchelastic_folders_give_attempt_and_local_rank() -> None:
    hints = hints_from_name("logs/none_abc/attempt_2/5/stderr.log")
    assert (hints.attempt, hints.local_rank, hints.rank) == (2, 5, None)


def test_hosts_and_runs_are_taken_from_folders_and_names() -> None:
    assert hints_from_name("node17/stderr.log").host == "node17"
    assert hints_from_name("run2.stderr.log").attempt == 2


def test_a_missing_path_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="not found"):
        discover(tmp_path / "nothing", tmp_path)


def test_results_are_no_artifacts_and_what_is_no_file_is_listed_without_being_opened(tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "old.forensics").mkdir(parents=True)
    (job / "old.forensics" / "report.json").write_text("{}")
    (job / "out" / "cache").mkdir(parents=True)
    for name in ("report.json", "case.duckdb", "report.html", "cache/x.log"):
        (job / "out" / name).write_text("{}")
    (job / "a.log").write_text("hello\n")
    (tmp_path / "secret.txt").write_text("secret")
    (job / "link.log").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(job / "pipe")
    found = discover(job, tmp_path / "work", leave_out=[job / "b"])
    assert [(f.source.name, [p[0] for p in f.problems]) for f in found] == [
        ("a.log", []),
        ("link.log", ["link"]),
        ("pipe", ["special-file"]),
    ]


def test_links_are_listed_and_followed_nowhere(tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "run1").mkdir(parents=True)
    (job / "run1" / "a.log").write_text("hello\n")
    links = {"latest": "run1", "a.log": "run1/a.log", "around": ".", "loop1": "loop2", "loop2": "loop1"}
    for name, target in {**links, "gone.log": "nothing", "out": "/etc"}.items():
        (job / name).symlink_to(target)
    found = {f.source.name: f for f in discover(job, tmp_path / "work")}
    assert sorted(found) == ["a.log", "gone.log", "loop1", "loop2", "out", "run1/a.log"]
    assert (found["a.log"].part_of, found["a.log"].problems) == ("run1/a.log", [])
    assert "outside the folder" in found["out"].problems[0][1]
    assert all("leads nowhere" in found[name].problems[0][1] for name in ("gone.log", "loop1", "loop2"))
    quality = {i.found.source.name: i.meta["quality"] for i in ingest(list(found.values()), tmp_path / "cache")}
    assert (quality["a.log"], quality["out"]) == ("complete", "failed")


def test_a_folder_that_cannot_be_read_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job" / "closed").mkdir(parents=True)
    (tmp_path / "job" / "a.log").write_text("hello\n")
    listing = os.scandir

    def refuse(place: str) -> object:  # as root, no folder refuses
        if place.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return listing(place)

    monkeypatch.setattr(os, "scandir", refuse)
    found = discover(tmp_path / "job", tmp_path / "work")
    assert [(f.source.name, [p[0] for p in f.problems]) for f in found] == [("a.log", []), ("closed", ["unreadable"])]


def test_what_lies_deeper_than_a_call_stack_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "job" / "/".join("d" * 900)
    deep.mkdir(parents=True)
    (deep / "a.log").write_text("hello\n")
    assert len(discover(tmp_path / "job", tmp_path / "work")) == 1


def test_a_name_that_is_no_text_is_said_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "job") + b"/\xff.log")).write_text("hello\n")
    (item,) = ingest(discover(tmp_path / "job", tmp_path / "work"), tmp_path / "cache")
    assert [w["code"] for w in item.meta["warnings"]] == ["name-no-text"]
    assert item.meta["quality"] == "complete"


@pytest.mark.parametrize(("start", "kind"), [(b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07", "RAR")])
def test_archives_of_other_kinds_are_named(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "a.bin").write_bytes(start + bytes(100))
    (found,) = discover(tmp_path / "a.bin", tmp_path / "work")
    assert found.problems[0][0] == "unopened" and kind in found.problems[0][1]


def test_a_compressed_file_that_unpacks_to_too_much_is_read_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_RATIO", 2)
    read, damage = read_all(tmp_path, zstandard.ZstdCompressor().compress(bytes(8 << 20)))
    assert len(read) <= 2 << 20
    assert damage is not None and "more than it may" in damage


@pytest.mark.parametrize("packer", ["gz", "xz", "zst", "bz2"])
def test_no_piece_of_compressed_data_unpacks_to_much_at_once(tmp_path: Path, packer: str) -> None:
    packed = PACKERS[packer](bytes(400 << 20))
    decoder = compression.DECODERS[{"gz": "gzip", "xz": "xz", "zst": "zstd", "bz2": "bzip2"}[packer]]()
    assert max(len(piece) for piece in decoder.pieces(packed)) <= 128 << 20


LINES = b"".join(b"line %d %d\n" % (n, n * 7919 % 1013) for n in range(20_000))
PACKERS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
    "lz4": lambda data: pa.compress(data, codec="lz4", asbytes=True),
}


def read_all(tmp_path: Path, data: bytes) -> tuple[bytes, str | None]:
    (tmp_path / "a.log").write_bytes(data)
    source = discover(tmp_path / "a.log", tmp_path / "work")[0].source
    with source.open() as stream:
        return stream.read(), source.damage


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_content_is_read_whole_also_where_it_is_concatenated(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]
    assert read_all(tmp_path, pack(LINES)) == (LINES, None)
    assert read_all(tmp_path, pack(LINES) + pack(b"more\n")) == (LINES + b"more\n", None)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_compressed_content_that_ends_early_is_read_to_the_damage(tmp_path: Path, packer: str, kept: float) -> None:
    data = PACKERS[packer](LINES)
    read, damage = read_all(tmp_path, data[: int(len(data) * kept)])
    assert LINES.startswith(read)
    assert damage is not None and "ends early" in damage
    if packer == "gz":  # zstd and xz decompress in blocks that may be larger than this text
        assert len(read) > len(LINES) * (kept - 0.1)


@pytest.mark.parametrize("packer", PACKERS)
def test_reading_ahead_gives_the_same_bytes_and_the_same_damage(
    tmp_path: Path, packer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PACKERS[packer](LINES * 40)
    for data in (packed, packed[: len(packed) * 2 // 3]):
        alone = read_all(tmp_path, data)
        monkeypatch.setattr(artifact, "_ALONE_BYTES", 1)
        assert read_all(tmp_path, data) == alone
        monkeypatch.undo()
        assert (alone[1] is None) == (data is packed)


def test_reading_ahead_is_bounded_and_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_ALONE_BYTES", 1)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(200 << 20), 1))
    with Source(tmp_path / "a.gz", "a.gz").open() as stream:
        assert len(stream.read(3 << 20)) == 3 << 20
        ahead = stream.raw._reader  # type: ignore[attr-defined]
        assert ahead._thread.is_alive() and sum(map(len, ahead._pieces)) < 20 << 20
    assert not ahead._thread.is_alive()
    with Source(tmp_path / "a.gz", "a.gz", threads=1).open() as stream:
        assert len(stream.read()) == 200 << 20
        assert not isinstance(stream.raw._reader, compression.ReadAhead)  # type: ignore[attr-defined]


def test_what_a_loader_says_is_made_storable(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.proc(0, rank=2**40, pid=2**40, host="a\ud800b")
    sink.fact("k\udfff", "v", scope="note", line=2**70)
    sink.warn("c", "m\ud800", "h", byte=2**70)
    meta = sink.finish()
    assert meta["procs"] == {"0": {"pid": 2**40, "host": "a?b"}}
    assert meta["facts"][0]["line"] is None and meta["warnings"][0]["byte"] is None


def test_files_of_every_size_have_the_hash_of_their_bytes(tmp_path: Path) -> None:
    sizes = [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000, 5_000_000, 2_000_000, 4_000_000, 6_000_000]
    (tmp_path / "in").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "in" / f"{number}.bin").write_bytes(bytes([number + 1]) * size)
    for number, found in enumerate(discover(tmp_path / "in", tmp_path / "work")):
        assert found.bytes == sizes[number]
        assert found.source.sha256 == hashlib.sha256(bytes([number + 1]) * sizes[number]).hexdigest()


def test_a_file_that_cannot_be_hashed_is_listed_as_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, until: Deadline) -> tuple[str, int]:
        raise OSError(5, "Input/output error")

    (tmp_path / "a.log").write_bytes(b"step 1 loss 2.0\n" * 100_000)
    monkeypatch.setattr(discovery, "_hashed", fail)
    (found,) = discover(tmp_path / "a.log", tmp_path / "work")
    assert found.format is None and [code for code, _, _ in found.problems] == ["unreadable"]
    assert found.source.sha256 == ""


def test_what_the_time_limit_kept_from_being_hashed_or_looked_through_is_named(tmp_path: Path) -> None:
    class Ending(Deadline):
        n_asked = 0

        def expired(self) -> bool:
            self.n_asked += 1
            return self.n_asked > 1

    for content in (b"step 1 loss 2.0\n" * 100_000, bytes(5 << 20)):
        (tmp_path / "a.log").write_bytes(content)
        (found,) = discover(tmp_path / "a.log", tmp_path / "work", deadline=Ending())
        assert found.format is None and {code for code, _, _ in found.problems} == {"time-limit"}


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8b", b"\x28\xb5\x2f\xfdgarbage", b"\xfd7zXZ\x00garbage", b"PK\x03\x04garbage", b"\0" * 5000]
)
def test_damaged_and_empty_files_are_listed_not_raised(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert len(discover(tmp_path, tmp_path.parent / "work")) == 1


ALBUM = '''
"""An album whose pages lie beside it."""
import pyarrow as pa
VERSION = 1
TITLE = "album of a test"
PROVIDES = ("log_event",)
def recognise(head):
    return 100 if head.data.startswith(b"ALBUM") else 0
def companions(head, names):
    return [name for name in names if name.endswith(".page")] + ["../outside.page", "absent.page"]
def load(source, sink):
    pages = [page.open().read().decode() for _, page in sorted(source.companions.items())]
    n = len(pages)
    rows = {"row": list(range(n)), "line": [1] * n, "source": ["test"] * n, "role": ["noise"] * n}
    sink.emit("log_event", pa.table({**rows, "message": pages}))
'''


@pytest.fixture
def album(tmp_path: Path) -> Iterator[Path]:
    """A job with an album of two pages, and the format that reads it."""
    job = tmp_path / "job" / "export"
    job.mkdir(parents=True)
    (tmp_path / "job" / "outside.page").write_bytes(b"\0outside")
    for name, text in (("index", b"ALBUM"), ("1.page", b"\0first"), ("2.page", b"\0second")):
        (job / name).write_bytes(text)
    with dropped_in(tmp_path / "formats", "album", ALBUM):
        yield tmp_path / "job"


def pages(job: Path, cache: Path) -> tuple[list[str], bool]:
    loaded = {item.found.source.name: item for item in ingest(discover(job, cache / "work"), cache)}
    (index,) = [item for name, item in loaded.items() if name.endswith("index")]
    return messages(index), index.reused


def test_a_format_reads_the_files_beside_it_that_it_asks_for_and_no_others(album: Path, tmp_path: Path) -> None:
    assert pages(album, tmp_path / "cache") == (["\0first", "\0second"], False)
    listed = {item.source.name: item for item in discover(album, tmp_path / "work")}
    assert listed["export/1.page"].part_of == "export/index"
    assert listed["outside.page"].part_of is None
    quality = {i.found.source.name: i.meta["quality"] for i in ingest(list(listed.values()), tmp_path / "cache")}
    assert quality["export/1.page"] == "complete" and quality["outside.page"] == "unknown"


def test_a_link_is_nobodys_companion(album: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (album / "export" / "3.page").symlink_to(tmp_path / "secret")
    assert pages(album, tmp_path / "cache") == (["\0first", "\0second"], False)


def test_companions_lie_in_the_same_folder_of_an_archive(album: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "job.tar", "w") as tar:
        tar.add(album, "job")
    assert pages(tmp_path / "job.tar", tmp_path / "cache")[0] == ["\0first", "\0second"]


def test_a_changed_companion_is_read_anew(album: Path, tmp_path: Path) -> None:
    pages(album, tmp_path / "cache")
    assert pages(album, tmp_path / "cache")[1]
    (album / "export" / "2.page").write_bytes(b"\0other")
    assert pages(album, tmp_path / "cache") == (["\0first", "\0other"], False)
    (album / "export" / "2.page").rename(album / "export" / "3.page")
    assert pages(album, tmp_path / "cache") == (["\0first", "\0other"], False)


def test_files_of_one_kind_in_a_row_are_told_as_each_alone(tmp_path: Path) -> None:
    """The format that knew a file for certain is asked first, and alone, of the next one."""
    folder, n = tmp_path / "artifacts", 0
    folder.mkdir()
    for path in sorted((Path(__file__).parent.parent / "fixtures").glob("*/artifacts/*"))[::25]:
        if path.is_file():
            (folder / f"{n:03d}_{path.name}").write_bytes(path.read_bytes()[:HEAD_BYTES])
            (folder / f"{n:03d}_{path.name}~again").write_bytes(path.read_bytes()[:HEAD_BYTES])
            n += 1
    found = discover(folder, tmp_path / "work")
    alone = {item.source.name: discover(folder / item.source.name, tmp_path / "work")[0].format for item in found}
    assert {item.source.name: item.format for item in found} == alone
    heads = [Head(item.source.name, item.source.path.read_bytes(), True) for item in found]
    assert max(module.recognise(head) for head in heads for module in formats().values()) <= 95
