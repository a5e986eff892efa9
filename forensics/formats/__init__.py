"""The artifact formats: each module in this folder is one, found by listing the folder.

A format module defines what `forensics.artifact.Format` names. Modules that start with an underscore are shared
parts of formats, not formats.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import cast

from forensics.artifact import Format


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """Every format by name, in the order of their names."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name: cast(Format, importlib.import_module(f"{__name__}.{name}")) for name in names}
