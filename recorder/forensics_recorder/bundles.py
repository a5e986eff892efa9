"""Packs what was recorded into one archive that `forensics analyze` opens in place."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path


def bundle(out: str | os.PathLike[str], archive: str | os.PathLike[str] | None = None) -> Path:
    """Packs the folder that recorders wrote (all ranks and attempts) as .tar.gz beside it; returns the archive's path.

    The archive is written under another name and renamed, so that it is whole when it is there.
    """
    folder = Path(out)
    target = Path(archive) if archive is not None else folder.with_name(f"{folder.name}.tar.gz")
    part = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(part, "w:gz") as tar:
        tar.add(folder, arcname=folder.name, filter=lambda info: None if Path(info.name).name.startswith(".") else info)
    part.replace(target)
    return target
