"""What lies in a folder or archive, and what names say of processes."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from trouble import dropped_in

from forensics import discovery
from forensics.discovery import discover, hints_from_name
from forensics.errors import ForensicsError
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


def test_torchelastic_folders_give_attempt_and_local_rank() -> None:
    hints = hints_from_name("logs/none_abc/attempt_2/5/stderr.log")
    assert (hints.attempt, hints.local_rank, hints.rank) == (2, 5, None)


def test_hosts_and_runs_are_taken_from_folders_and_names() -> None:
    assert hints_from_name("node17/stderr.log").host == "node17"
    assert hints_from_name("run2.stderr.log").attempt == 2


def test_a_missing_path_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="not found"):
        discover(tmp_path / "nothing", tmp_path)


def test_results_and_links_out_of_the_folder_are_not_artifacts(tmp_path: Path) -> None:
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
    assert [f.source.name for f in discover(job, tmp_path / "work")] == ["a.log"]


def make_tar(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_members_of_archives_are_artifacts_with_the_archive_in_their_path(tmp_path: Path) -> None:
    make_tar(tmp_path / "job.tar.gz", {"logs/rank_1.log": b"x\n", "../../evil.log": b"y\n"})
    found = discover(tmp_path / "job.tar.gz", tmp_path / "work")
    assert [f.source.name for f in found] == ["job.tar.gz!../../evil.log", "job.tar.gz!logs/rank_1.log"]
    assert found[1].hints.rank == 1
    assert all(f.source.path.is_relative_to(tmp_path / "work") for f in found)  # whatever the member's name says


def test_archives_are_opened_once_nested_and_no_deeper(tmp_path: Path) -> None:
    inner = tmp_path / "c.zip"
    for name, content in (("c.zip", b"deep"), ("b.zip", None), ("a.zip", None)):
        data = content if content is not None else inner.read_bytes()
        target = tmp_path / name
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("in.zip" if content is None else "deep.log", data)
        inner = target
    found = discover(tmp_path / "a.zip", tmp_path / "work")
    assert [p[0] for f in found for p in f.problems] == ["nested-too-deep"]


def test_an_archive_that_unpacks_to_too_much_is_cut_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_RATIO", 2)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small.log", b"fine\n")
        archive.writestr("zeros.log", b"\0" * (8 << 20))
    found = discover(tmp_path / "bomb.zip", tmp_path / "work")
    assert "bomb.zip!small.log" in [f.source.name for f in found]
    assert [p[0] for f in found for p in f.problems] == ["archive"]


def test_a_truncated_archive_gives_the_members_before_the_cut(tmp_path: Path) -> None:
    make_tar(tmp_path / "whole.tar", {"a.log": b"a" * 2000, "b.log": b"b" * 200_000}, "w")
    data = (tmp_path / "whole.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:50_000])
    names = [f.source.name for f in discover(tmp_path / "cut.tar", tmp_path / "work")]
    assert "cut.tar!a.log" in names and "cut.tar" in names


LINES = b"".join(b"line %d %d\n" % (n, n * 7919 % 1013) for n in range(20_000))
PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}


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


def test_what_a_loader_says_is_made_storable(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.proc(0, rank=2**40, pid=2**40, host="a\ud800b")
    sink.fact("k\udfff", "v", scope="note", line=2**70)
    sink.warn("c", "m\ud800", "h", byte=2**70)
    meta = sink.finish()
    assert meta["procs"] == {"0": {"pid": 2**40, "host": "a?b"}}
    assert meta["facts"][0]["line"] is None and meta["warnings"][0]["byte"] is None


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
    parts = index.tables()["log_event"]
    return [text for part in parts for text in pq.read_table(part).column("message").to_pylist()], index.reused


def test_a_format_reads_the_files_beside_it_that_it_asks_for_and_no_others(album: Path, tmp_path: Path) -> None:
    assert pages(album, tmp_path / "cache") == (["\0first", "\0second"], False)
    listed = {item.source.name: item for item in discover(album, tmp_path / "work")}
    assert listed["export/1.page"].part_of == "export/index"
    assert listed["outside.page"].part_of is None
    quality = {i.found.source.name: i.meta["quality"] for i in ingest(list(listed.values()), tmp_path / "cache")}
    assert quality["export/1.page"] == "complete" and quality["outside.page"] == "unknown"


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
