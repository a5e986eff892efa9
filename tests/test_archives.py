"""Archives as jobs and hostile hands make them: cut, nested, bombs, odd members."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from forensics import archives, compression
from forensics.deadline import Deadline
from forensics.discovery import Found, discover
from forensics.errors import OutOfTime


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
    monkeypatch.setattr(compression, "MAX_RATIO", 2)
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


def read(found: Found) -> bytes:
    with found.source.open() as stream:
        return stream.read()


def listed(path: Path, work: Path) -> dict[str, tuple[bytes | None, list[str]]]:
    """By member: its content (None when it was not unpacked) and the codes of what was said of it."""
    out = {}
    for item in discover(path, work):
        name = item.source.name.partition("!")[2] or "."
        unpacked = item.source.path != path or name == "."
        out[name] = (read(item) if unpacked and name != "." else None, [code for code, _, _ in item.problems])
    return out


TEXT = b"".join(b"line %d of a log\n" % n for n in range(5000))
NOISE = random.Random(7).randbytes(200_000)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_zip_that_was_cut_gives_its_members_up_to_the_cut(tmp_path: Path, method: int, streamed: bool) -> None:
    members = {"a.log": TEXT, "empty/": b"", "b.bin": NOISE, "c.log": TEXT[::-1]}
    data = zipped(members, method, streamed=streamed)
    start = data.index(b"c.log") + 5
    (tmp_path / "cut.zip").write_bytes(data[: start + 300])
    found = listed(tmp_path / "cut.zip", tmp_path / "work")
    assert found["a.log"] == (TEXT, []) and found["b.bin"] == (NOISE, [])
    rest, said = found["c.log"]
    assert rest is not None and TEXT[::-1].startswith(rest) and said == ["damaged-member"]
    if method == zipfile.ZIP_STORED:
        assert len(rest) > 250
    assert found["."][1] == ["archive"]


def zipped(members: dict[str, bytes], method: int, *, streamed: bool = False) -> bytes:
    """`streamed`: written to a pipe, so that sizes follow the data instead of preceding it."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, given: object) -> int:
            self.data += given  # type: ignore[operator]
            return len(given)  # type: ignore[arg-type]

    target: io.IOBase = Pipe() if streamed else io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            archive.writestr(name, content)
    return bytes(target.data) if isinstance(target, Pipe) else target.getvalue()  # type: ignore[attr-defined]


def test_a_zip_without_its_directory_is_read_by_its_headers_and_says_so(tmp_path: Path) -> None:
    data = zipped({"a.log": TEXT, "b.log": TEXT}, zipfile.ZIP_DEFLATED)
    (tmp_path / "cut.zip").write_bytes(data[: data.index(b"PK\x01\x02")])
    found = discover(tmp_path / "cut.zip", tmp_path / "work")
    assert [read(f) for f in found if "!" in f.source.name] == [TEXT, TEXT]
    (said,) = next(f.problems for f in found if "!" not in f.source.name)
    assert "2 members were found" in said[1]


def test_a_damaged_member_of_a_zip_costs_itself_only(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.log": TEXT, "b.log": NOISE, "c.log": TEXT}, zipfile.ZIP_STORED))
    data[data.index(NOISE) + 1000] ^= 1
    (tmp_path / "bad.zip").write_bytes(data)
    found = listed(tmp_path / "bad.zip", tmp_path / "work")
    assert found["b.log"][1] == ["damaged-member"] and len(found["b.log"][0] or b"") == len(NOISE)
    assert found["a.log"] == found["c.log"] == (TEXT, [])


def test_a_large_zip64_and_bytes_before_a_zip_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wide.zip", "w") as archive, archive.open("a.log", "w", force_zip64=True) as member:
        member.write(TEXT)
    assert listed(tmp_path / "wide.zip", tmp_path / "work")["a.log"] == (TEXT, [])


def test_what_members_of_a_zip_are_that_are_no_files_is_said_and_not_followed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        for name, mode in (("link.log", stat.S_IFLNK), ("pipe", stat.S_IFIFO), ("a.log", stat.S_IFREG)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode | 0o644) << 16
            archive.writestr(info, "/etc/passwd")
        for name in ("../up.log", "/abs.log", "C:\\x.log"):
            archive.writestr(zipfile.ZipInfo(name), "x\n")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.log", "second\n")
    data = bytearray((tmp_path / "odd.zip").read_bytes())
    (tmp_path / "odd.zip").write_bytes(data)
    found = listed(tmp_path / "odd.zip", tmp_path / "work")
    assert found["link.log"] == (None, ["link"]) and found["pipe"] == (None, ["special-file"])
    assert found["a.log"] == (b"/etc/passwd", []) and found["a.log~2"] == (b"second\n", ["duplicate-name"])
    for name in ("../up.log", "/abs.log"):
        assert found[name] == (b"x\n", ["outside-name"])
    assert {p.parent.parent for p in (tmp_path / "work").rglob("*") if p.is_file()} == {tmp_path / "work"}


def test_encrypted_and_unreadable_members_are_named(tmp_path: Path) -> None:
    data = bytearray(zipped({"secret.log": TEXT, "other.log": TEXT, "a.log": TEXT}, zipfile.ZIP_DEFLATED))
    for name, offset, value in ((b"secret.log", 8, 1), (b"other.log", 10, 99)):
        entry = data.rindex(name) - 46
        data[entry + offset] = value
    (tmp_path / "x.zip").write_bytes(data)
    found = listed(tmp_path / "x.zip", tmp_path / "work")
    assert found["secret.log"] == (None, ["encrypted"]) and found["other.log"] == (None, ["unopened"])
    assert found["a.log"] == (TEXT, [])


def test_what_members_of_a_tar_are_that_are_no_files_is_said_and_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "odd.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("tty", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name in ("a.log", "a.log", "../up.log", b"\xff.log".decode("utf-8", "surrogateescape")):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"x\n"))
    found = listed(tmp_path / "odd.tar", tmp_path / "work")
    assert found["link"] == found["hard"] == (None, ["link"]) and found["tty"] == (None, ["special-file"])
    assert found["a.log~2"] == (b"x\n", ["duplicate-name"]) and found["../up.log"] == (b"x\n", ["outside-name"])
    assert found["\ufffd.log"] == (b"x\n", ["name-no-text"])


def test_a_sparse_member_that_claims_a_tebibyte_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"00000000000\0", b"00000001000\0"  # one piece of 512 bytes at offset 0
    block[483:495] = b"%011o\0" % (1 << 32)  # the largest that 11 octal digits hold is 8 GiB
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    rest = io.BytesIO()
    with tarfile.open(fileobj=rest, mode="w") as tar:
        small = tarfile.TarInfo("a.log")
        small.size = 2
        tar.addfile(small, io.BytesIO(b"x\n"))
    (tmp_path / "sparse.tar").write_bytes(bytes(block) + bytes(512) + rest.getvalue())
    found = listed(tmp_path / "sparse.tar", tmp_path / "work")
    assert found["huge"] == (None, ["too-large"]) and found["a.log"] == (b"x\n", [])


def test_a_header_that_claims_to_be_long_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 64 << 20
    (tmp_path / "long.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20)))
    (found,) = discover(tmp_path / "long.tar.gz", tmp_path / "work")
    assert [p[0] for p in found.problems] == ["archive"] and "header of" in found.problems[0][1]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_compressed_tar_that_was_cut_gives_what_came_before(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    make_tar(tmp_path / "whole.tar", {"a.log": TEXT, "b.bin": NOISE}, "w")
    data = pack((tmp_path / "whole.tar").read_bytes())
    (tmp_path / "cut.tar.x").write_bytes(data[: len(data) // 2])
    found = listed(tmp_path / "cut.tar.x", tmp_path / "work")
    part, said = found["b.bin"]
    assert found["a.log"] == (TEXT, []) and found["."][1] == ["archive"]
    assert part and NOISE.startswith(part) and said == ["damaged-member"]


@pytest.mark.parametrize("size", [1 << 40, 1 << 62])
def test_a_tar_whose_member_claims_to_reach_far_behind_the_end_is_cut_there(size: int, tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge.log")
    info.size = size
    (tmp_path / "t.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 1000)
    found = listed(tmp_path / "t.tar", tmp_path / "work")
    assert found["huge.log"] == (b"x" * 1000, ["damaged-member"]) and found["."][1] == ["archive"]


def test_a_tar_whose_member_claims_a_negative_size_is_survived(tmp_path: Path) -> None:
    block = bytearray(tarfile.TarInfo("a.log").tobuf(tarfile.GNU_FORMAT))
    block[124:136], block[148:156] = b"-0000077777\0", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "t.tar").write_bytes(bytes(block) * 2)
    assert "." in listed(tmp_path / "t.tar", tmp_path / "work")


@pytest.mark.parametrize("kind", ["tar", "zip", "zip-headers", "packed"])
def test_unpacking_ends_with_the_time_limit_and_says_so(kind: str, tmp_path: Path) -> None:
    late = archives.Budget(1 << 20, tmp_path, Deadline(0))
    make_tar(tmp_path / "a.tar", {"a.log": TEXT}, "w")
    (tmp_path / "a.packed").write_bytes(gzip.compress(gzip.compress(TEXT)))
    data = zipped({"a.log": TEXT}, zipfile.ZIP_DEFLATED)
    (tmp_path / "a.zip").write_bytes(data)
    (tmp_path / "a.zip-headers").write_bytes(data[: data.index(b"PK\x01\x02")])
    with pytest.raises(OutOfTime):
        list(archives.unpack(tmp_path / f"a.{kind}", kind.partition("-")[0], tmp_path / "work", late))


def test_an_archive_that_time_ran_out_in_keeps_the_members_before(tmp_path: Path) -> None:
    class Ending(Deadline):
        """Over after some questions."""

        n_asked = 0

        def expired(self) -> bool:
            self.n_asked += 1
            return self.n_asked > 6

    (tmp_path / "a.zip").write_bytes(zipped({f"{n}.log": TEXT for n in range(9)}, zipfile.ZIP_STORED))
    found = discover(tmp_path / "a.zip", tmp_path / "work", deadline=Ending())
    assert [code for item in found for code, _, _ in item.problems] == ["time-limit"]
    assert [item.source.name for item in found][:2] == ["a.zip", "a.zip!0.log"] and len(found) < 9


def test_dense_zstd_data_is_handed_over_in_bounded_pieces() -> None:
    data = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    sizes = [len(piece) for piece in compression.DECODERS["zstd"]().pieces(data)]
    assert sum(sizes) == 64 << 20 and max(sizes) <= 17 << 20


def test_archives_inside_one_share_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = zipped({"zeros.log": bytes(40 << 20)}, zipfile.ZIP_DEFLATED)
    (tmp_path / "a.zip").write_bytes(zipped({f"{n}.zip": inner for n in range(4)}, zipfile.ZIP_STORED))
    monkeypatch.setattr(compression, "MAX_RATIO", 100)  # of a mebibyte
    listed(tmp_path / "a.zip", tmp_path / "work")
    assert sum(p.stat().st_size for p in (tmp_path / "work").rglob("*") if p.is_file()) <= 100 << 20


def test_an_archive_of_too_many_members_is_cut_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    (tmp_path / "a.zip").write_bytes(zipped({f"{n}.log": b"x\n" for n in range(5)}, zipfile.ZIP_STORED))
    found = listed(tmp_path / "a.zip", tmp_path / "work")
    assert sorted(found) == [".", "0.log", "1.log", "2.log"] and found["."][1] == ["archive"]


def test_what_is_compressed_twice_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz.zst").write_bytes(zstandard.ZstdCompressor().compress(gzip.compress(TEXT)))
    (tmp_path / "b.zip.gz").write_bytes(gzip.compress(zipped({"b.log": TEXT}, zipfile.ZIP_DEFLATED)))
    contents = [read(f) for n in ("a.log.gz.zst", "b.zip.gz") for f in discover(tmp_path / n, tmp_path / "work")]
    assert contents == [TEXT, TEXT]


def test_a_checkpoint_that_was_cut_is_one_artifact(tmp_path: Path) -> None:
    data = zipped({"archive/data.pkl": TEXT, "archive/data/0": NOISE}, zipfile.ZIP_STORED)
    (tmp_path / "cut.pt").write_bytes(data[:100_000])
    assert [f.source.name for f in discover(tmp_path / "cut.pt", tmp_path / "work")] == ["cut.pt"]


def test_any_cut_or_flipped_byte_of_an_archive_is_survived(tmp_path: Path) -> None:
    draw = random.Random(3)
    make_tar(tmp_path / "x.tar", {"a.log": TEXT[:3000], "b.log": TEXT[:3000]}, "w")
    whole = [zipped({"a.log": TEXT[:3000], "b.log": TEXT[:3000]}, m) for m in (0, 8)]
    for data in [*whole, (tmp_path / "x.tar").read_bytes()]:
        for _ in range(60):
            changed = bytearray(data[: draw.randrange(1, len(data) + 1)])
            for _ in range(draw.randrange(3)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            (tmp_path / "x.bin").write_bytes(changed)
            assert discover(tmp_path / "x.bin", tmp_path / "work")
            shutil.rmtree(tmp_path / "work", ignore_errors=True)
