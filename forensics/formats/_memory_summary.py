"""Reads the table that `torch.cuda.memory_summary()` prints, line by line, wherever it stands.

Cells are rounded down to a unit that makes them at most six digits, so values are up to one unit too small. Names are
those of `torch.cuda.memory_stats()`, which the table is made of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MARK = "memory summary, device ID"

_TITLE = re.compile(r"PyTorch [A-Za-z]{1,10} memory summary, device ID (\d{1,6})\b")
_RETRIES = re.compile(r"[A-Za-z]{1,10} OOMs: {0,3}(\d{1,15}) {0,20}\| {0,20}\w{1,20} retries: {0,3}(\d{1,15})")
_CELL = re.compile(r"\s{0,20}(\d{1,18})\s{0,5}([KMGTP]i?B|[BKM])?\s{0,20}$")
_RULE = re.compile(r"[|\s]{0,8}[-=]{20,200}[|\s]{0,8}$")
_COLUMNS = ("current", "peak", "allocated", "freed")
_ROWS = {
    "Allocated memory": ("allocated_bytes", True),
    "Active memory": ("active_bytes", True),
    "Requested memory": ("requested_bytes", True),
    "GPU reserved memory": ("reserved_bytes", True),
    "Non-releasable memory": ("inactive_split_bytes", True),
    "Allocations": ("allocation", False),
    "Active allocs": ("active", False),
    "GPU reserved segments": ("segment", False),
    "Non-releasable allocs": ("inactive_split", False),
    "Oversize allocations": ("oversize_allocations", False),
    "Oversize GPU segments": ("oversize_segments", False),
}
_POOLS = {"from large pool": "large_pool", "from small pool": "small_pool"}
_UNITS = {"": 1, "B": 1, "K": 1000, "M": 1000**2}  # counts in thousands, sizes in powers of 1024
_UNITS |= {f"{letter}{i}B": 1 << 10 * n for n, letter in enumerate("KMGTP", 1) for i in ("", "i")}


@dataclass(frozen=True)
class Figure:
    name: str
    value: int
    unit: str  # bytes or count
    line: int


@dataclass
class Summary:
    """One table. Feed it the lines from its title on; they are its own as long as `feed` says so."""

    device: int
    figures: list[Figure] = field(default_factory=list)
    n_bad: int = 0  # rows with a cell that is no number
    whole: bool = False  # the last row was seen
    _metric: tuple[str, bool] | None = None

    def feed(self, text: str, line: int) -> bool:
        if _RULE.match(text):
            return True
        if m := _RETRIES.search(text):
            self.figures.append(Figure("num_ooms", int(m[1]), "count", line))
            self.figures.append(Figure("num_alloc_retries", int(m[2]), "count", line))
            return True
        row = text.strip()
        cells = row.strip("|").split("|")
        if len(cells) != 1 + len(_COLUMNS) or not row.endswith("|"):  # the last number of a cut row is not whole
            return MARK in row or not row
        label = cells[0].strip()
        if label == "Metric":
            return True
        pool = _POOLS.get(label)
        if pool is None:
            self._metric = _ROWS.get(label)
        if self._metric is None:
            return False
        self._take(pool or ("" if self._metric[0].startswith("oversize") else "all"), cells[1:], line)
        self.whole |= label == "Oversize GPU segments"
        return True

    def _take(self, pool: str, cells: list[str], line: int) -> None:
        metric, is_size = self._metric or ("", False)
        found = [_CELL.match(cell) for cell in cells]
        self.n_bad += not all(found)
        for column, m in zip(_COLUMNS, found, strict=True):
            if m is not None:
                name = ".".join(part for part in (metric, pool, column) if part)
                value = int(m[1]) * _UNITS[m[2] or ""]
                self.figures.append(Figure(name, value, "bytes" if is_size else "count", line))


def starts_summary(text: str) -> Summary | None:
    m = _TITLE.search(text) if MARK in text else None
    return Summary(int(m[1])) if m else None


def is_part_of_table(text: str) -> bool:
    """Whether a line alone looks like one of such a table."""
    return bool(starts_summary(text) or Summary(0).feed(text, 0) or text.strip(" |").startswith(tuple(_POOLS)))
