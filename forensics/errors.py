"""The errors that this package raises, as one tree.

    ForensicsError
    ├── ArtifactError        an artifact cannot be read as the format it looks like
    │   ├── Truncated        it ends too early (what came before was handed over)
    │   ├── Unavailable      what reads it is not installed here: another run may fare better
    │   ├── Untrusted        it asks for something that reading must never do, or exceeds a bound
    │   └── OutOfTime        the time limit was reached while it was read
    ├── RuleError            a rule file is malformed, or a rule failed while it ran
    ├── CaseError            a case file cannot be built or opened
    └── ResourceNotFound     a file that ships with the package is missing

A message reads "where: what was found; what was expected; what to do". During ingest an `ArtifactError`
becomes an `ingest_warning` row and never ends the analysis.
"""

from __future__ import annotations

import errno

_EXPECTED = {
    errno.ENOENT: "not found; expected a path that exists",
    errno.EEXIST: "a file is there; expected a folder, or a name that is free",
    errno.ENOTDIR: "a file is there where a folder has to be; expected a folder",
    errno.EISDIR: "a folder; expected a file",
    errno.EACCES: "no permission; expected a place that this user may use",
    errno.EPERM: "not permitted; expected a place that this user may use",
    errno.EROFS: "on a disk that cannot be written to; expected another place",
    errno.ENAMETOOLONG: "the name is too long; expected a shorter one",
}


def told(error: OSError) -> str:
    """What the system said of a path, as this package says it; other errors as they are."""
    said = _EXPECTED.get(error.errno or 0)
    if said is None or error.filename is None:
        return str(error)
    name = error.filename if isinstance(error.filename, str) else repr(error.filename)
    return f"{name}: {said}"


class ForensicsError(Exception):
    """Anything this package raises on purpose."""


class ArtifactError(ForensicsError):
    """An artifact cannot be read (further) as the format it looks like.

    `byte` is the offset in the decompressed artifact at which reading stopped, when known.
    """

    def __init__(self, message: str, *, byte: int | None = None) -> None:
        super().__init__(message)
        self.byte = byte


class Truncated(ArtifactError):
    """The artifact ends too early; everything before `byte` was handed over."""


class Unavailable(ArtifactError):
    """A program that the artifact needs is not here, or failed; the message says what to run. Never cached."""


class Untrusted(ArtifactError):
    """The artifact asks for something that reading must never do, or exceeds a bound."""


class OutOfTime(ArtifactError):
    """The time limit was reached while the artifact was read."""


class RuleError(ForensicsError):
    """A rule file is malformed, or a rule failed while it ran."""


class CaseError(ForensicsError):
    """A case file cannot be built or opened."""


class ResourceNotFound(ForensicsError):
    """A file that ships with the package is missing."""
