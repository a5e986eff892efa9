"""Runs one format over one artifact, in whichever process; its fault becomes a warning of that artifact."""

from __future__ import annotations

import errno
import os
from typing import Any

from forensics.artifact import Format, Source
from forensics.errors import ArtifactError, Unavailable, Untrusted
from forensics.parquet_sink import ParquetSink

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stopped(BaseException):
    """Raised in a load that is to end now; no `except Exception` of a format keeps it."""


def load_artifact(name: str, module: Format, source: Source, sink: ParquetSink) -> dict[str, Any]:
    """The finished meta data; `fault` in it means that the load did not end by itself. `name`: of the format."""
    try:
        module.load(source, sink)
    except Stopped:  # whoever stopped it says why
        sink.break_off()
    except Unavailable as error:
        sink.warn("unavailable", str(error), "all that this file records")
        sink.damaged("partial")
        sink.state["fault"] = True  # so that the next run tries again
    except ArtifactError as error:
        code = "refused" if isinstance(error, Untrusted) else "unreadable"
        sink.warn(code, str(error), "what lies beyond this position", byte=error.byte)
        sink.damaged("partial" if sink.any_rows else "failed", byte=error.byte)
    except MemoryError:
        _tell_memory(name, sink)
    except Exception as error:  # RecursionError included
        if isinstance(error, RuntimeError) and "interrupt" in str(error).lower():
            raise KeyboardInterrupt from error  # how DuckDB reports Ctrl-C
        if "out of memory" in str(error).lower():  # how DuckDB reports it
            _tell_memory(name, sink)
        else:
            sink.state["no_space"] = no_space(error)
            sink.warn("loader-fault", f"{name} failed: {type(error).__name__}: {error}", "the rest of this file")
            sink.break_off()
    if source.damage:
        sink.warn("damaged-compression", source.damage, "everything after the damaged place")
        if sink.state["quality"] == "complete":
            sink.damaged("partial")
    return sink.finish()


def _tell_memory(name: str, sink: ParquetSink) -> None:
    sink.state["short"] = True  # with more of it there may be more rows
    sink.warn("loader-fault", f"{name} exceeded its memory limit", "the rest of this file")
    sink.break_off()


def no_space(error: Exception) -> str | None:
    """What an error says where it means that a disk is full or a quota is used up, whichever library raised it."""
    full = getattr(error, "errno", None) in _FULL or any(os.strerror(number) in str(error) for number in _FULL)
    return str(error) if full else None
