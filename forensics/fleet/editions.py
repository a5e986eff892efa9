"""Hashes that tell whether a result still stands: of the program with its rules, and of a job's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from forensics import __version__
from forensics.resources import resource_folder

_CODE = {".py", ".sql", ".toml", ".json", ".j2", ".css", ".js"}
_CHUNK = 1 << 20


def edition(rules: Sequence[Path], configuration: Path | None) -> str:
    """Changes with the package, its rules and templates, the site's rules and the configuration."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    for folder in (package, resource_folder("rules"), resource_folder("reports"), *rules):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in _CODE and p.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    if configuration is not None:
        digest.update(configuration.read_bytes())
    return digest.hexdigest()


def content_of(files: Iterable[tuple[str, Path]]) -> str:
    """Names and bytes of a job's files; what cannot be read counts with the reason in its place."""
    digest = hashlib.blake2b(digest_size=16)
    for name, path in sorted(files):
        digest.update(f"{name}\0".encode("utf-8", "surrogatepass"))
        one = hashlib.blake2b(digest_size=16)
        try:
            with path.open("rb", buffering=0) as stream:
                buffer = memoryview(bytearray(_CHUNK))
                while n_read := stream.readinto(buffer):
                    one.update(buffer[:n_read])
        except OSError as error:
            one.update(f"unreadable {error.errno}".encode())
        digest.update(one.digest())
    return digest.hexdigest()
