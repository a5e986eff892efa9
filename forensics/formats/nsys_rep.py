"""Raw reports of Nsight Systems (.nsys-rep, .qdrep, .qdstrm): exported where `nsys` is installed, else named.

The container is NVIDIA's own; only `nsys` reads it. The export goes into a temporary file, never beside the report.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError, Unavailable
from forensics.formats import _nsys_load
from forensics.formats._nsys_database import Database
from forensics.formats.nsys_sqlite import load_database

VERSION = _nsys_load.VERSION
TITLE = "Nsight Systems raw report (.nsys-rep, .qdrep, .qdstrm)"
PROVIDES = _nsys_load.PROVIDES

_REPORT, _STREAM = b"NVIDIA Tegra Profiler Report ", b"QDSTRM"
_VERSION = re.compile(rb"NVIDIA Tegra Profiler Report ([0-9]{4})@([0-9]{1,2})@([0-9]{1,2})@([0-9]{1,6})")
_MAX_SECONDS = 600


def recognise(head: Head) -> int:
    if head.data.startswith(_REPORT):
        return 95
    named = head.name.endswith((".qdstrm", ".qdstrm.gz"))
    return 90 if head.data.startswith(_STREAM) or (named and b"\0" in head.data) else 0


def load(source: Source, sink: Sink) -> None:
    data = source.head(512).data
    version = _VERSION.match(data)
    if version:
        sink.fact("nsight-systems", ".".join(part.decode() for part in version.groups()), scope="version")
    is_stream = not data.startswith(_REPORT)
    if is_stream:
        command = f"QdstrmImporter --input-file {shlex.quote(source.own_name)}"
        raise Unavailable(f"{source.own_name}: nsys died before it made a report of this stream; run: {command}")
    nsys = shutil.which("nsys")
    with tempfile.TemporaryDirectory(prefix="forensics-nsys-") as folder:
        said = _export(nsys, source, Path(folder)) if nsys else "nsys is not installed here"
        database = Path(folder) / "report.sqlite"
        if not said and database.is_file():
            _load_export(database, source, sink)
            return
    stem = source.own_name.removesuffix(".gz").rpartition(".")[0] or source.own_name
    command = f"nsys export --type sqlite --output {shlex.quote(stem + '.sqlite')} {shlex.quote(source.own_name)}"
    raise Unavailable(f"{source.own_name}: only nsys reads this file ({said}); run: {command}")


def _load_export(path: Path, source: Source, sink: Sink) -> None:
    database = Database(path)
    try:
        load_database(database, source, sink)
    finally:
        database.close()


def _export(nsys: str, source: Source, folder: Path) -> str:
    """Runs nsys without a shell and for a bounded time; "" when it exported, else why not."""
    report = folder / "report.nsys-rep"  # nsys goes by the suffix, and writes beside what it is given
    try:
        with source.open() as stream, report.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        command = [nsys, "export", "--type", "sqlite", "--output", str(folder / "report.sqlite"), str(report)]
        done = subprocess.run(  # noqa: S603 (no shell; the only free word is a path of our own)
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MAX_SECONDS, check=False, cwd=folder,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"nsys took longer than {_MAX_SECONDS} s"
    except (OSError, ArtifactError) as error:
        return f"nsys did not start: {error}"
    last = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:]
    return "" if done.returncode == 0 else f"nsys ended with exit code {done.returncode}: {last}"
