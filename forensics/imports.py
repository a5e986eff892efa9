"""Keeps pandas out of processes that never use it."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError("not needed here")


def leave_out_pandas() -> None:
    """From now on this process has no pandas: where it is installed, pyarrow imports it as soon as it is given a list.

    That takes as long as half of a small analysis. For processes of this package's own, never for a caller's.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())
