"""Names and values of what nvidia-smi says of devices, the same from its table, its CSV and its `-q` text.

Names are those of `--query-gpu`, with two exceptions: error counters are
`ecc.{volatile|aggregate}.{sram|dram|total|…}.{correctable|uncorrectable}`, and throttle reasons have their newer name
`clocks_event_reasons.*`. Memory is in bytes; yes/no and active/not active are 1/0 with unit `bool`.
"""

from __future__ import annotations

import math
import re

from forensics.artifact import Sink
from forensics.formats._quantities import parse_size
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import clean_text

_ECC = re.compile(r"ecc\.errors\.(corrected|uncorrected)\.(volatile|aggregate)\.([a-z0-9_]{1,40})")
_VALUE = re.compile(r"([+-]?[0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z%/()]{0,10})")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_STATE = re.compile(r"P([0-9]{1,2})")
_SWITCHES = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0, "enabled": 1.0, "disabled": 0.0, "none": 0.0}
# A device that no longer answers says so in place of a value.
_LOST = ("gpu is lost", "requires reset", "unknown error", "err!")
_MAX_FACTS = 500
_MAX_TOTALS = 4096


def canonical_field(name: str) -> str:
    """The name under which a `--query-gpu` field is kept."""
    name = name.strip().lower()
    match = _ECC.fullmatch(name)
    if match is None:
        return name.replace("clocks_throttle_reasons.", "clocks_event_reasons.").replace(
            "used_gpu_memory", "used_memory"
        )
    return f"ecc.{match[2]}.{match[3]}.{match[1].replace('corrected', 'correctable')}"


def device_value(text: str, unit: str | None = None) -> tuple[float, str | None] | None:
    """(value, unit) of a field as printed; None for `[N/A]` and its likes. `unit` is the header's, for `nounits`."""
    text = text.strip()
    switch = _SWITCHES.get(text.lower())
    if switch is not None:
        return switch, "bool"
    if _HEX.fullmatch(text):
        return float(int(text, 16)), None
    state = _STATE.fullmatch(text)
    if state:
        return float(state[1]), None
    match = _VALUE.fullmatch(text)
    if match is None:
        return None
    unit = match[2] or unit
    size = parse_size(f"{match[1]}{unit}") if unit and unit.lower().endswith("ib") else None
    if size is not None:
        return float(size), "bytes"
    return float(match[1]), "count" if unit in {"bank(s)"} else unit or None


def says_device_is_lost(text: str) -> bool:
    return any(sign in text.lower() for sign in _LOST)


class DeviceSamples:
    """Samples and facts of devices; a fact is told again only when its value changed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rows = SampleRows(sink, "nvidia-smi")
        self._told: dict[tuple[str, str], str] = {}
        self._n_facts = 0
        self._totals: dict[tuple[int | None, str | None, str], float] = {}
        self._n_beyond = 0
        self._first_beyond = ""
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    @property
    def count(self) -> int:
        return self._rows.count

    def add(
        self, name: str, text: str, *, line: int, device: int | None, unit: str | None = None,
        ts_ns: int | None = None, entity: str | None = None,
    ) -> None:  # fmt: skip
        """Keeps one field as printed; fields of a lost device become facts, those without a value nothing."""
        found = device_value(text, unit)
        if found is None:
            if says_device_is_lost(text):
                self.fact(f"unreadable.{name}", text.strip(), scope="device", line=line, device=device)
            return
        if ts_ns is not None:
            self._first_ns = ts_ns if self._first_ns is None else min(ts_ns, self._first_ns)
            self._last_ns = ts_ns if self._last_ns is None else max(ts_ns, self._last_ns)
        self._check(name, found[0], device, entity, line)
        self._rows.add(name, found[0], unit=found[1], line=line, device=device, ts_ns=ts_ns, entity=entity)

    def _check(self, name: str, value: float, device: int | None, entity: str | None, line: int) -> None:
        """Counts more used or free memory than the device has, where the total was told before."""
        memory, _, kind = name.rpartition(".")
        whose = device, entity, memory
        if kind == "total":
            if whose in self._totals or len(self._totals) < _MAX_TOTALS:
                self._totals[whose] = value
        elif kind in {"used", "free", "reserved"} and value > self._totals.get(whose, math.inf):
            self._n_beyond += 1
            who = "a device" if device is None else f"device {device}"
            total = self._totals[whose]
            self._first_beyond = self._first_beyond or f"line {line}: {name} {value:.0f} of {total:.0f} on {who}"

    def fact(
        self, key: str, value: str, *, scope: str, line: int, device: int | None = None, number: float | None = None
    ) -> None:
        """One fact, its key behind `gpu.N.` when it is of one device."""
        key = key if device is None else f"gpu.{device}.{key}"
        value = clean_text(value)[:2000]
        if self._told.get((scope, key)) == value or self._n_facts >= _MAX_FACTS:
            return
        self._told[(scope, key)] = value
        self._n_facts += 1
        self._sink.fact(key, value, scope=scope, line=line, number=number)

    def finish(self, *, n_read: int, complete: bool) -> None:
        """Emits what is left, with clock (nvidia-smi prints local times) and coverage: devices are of the whole job."""
        self._rows.flush()
        if self._n_beyond:
            text = f"impossible: {self._n_beyond} figures of memory exceed what their device has ({self._first_beyond})"
            self._sink.warn("impossible-state", text, "how much memory was used and free")
            self._sink.damaged("partial")
            complete = False
        if self._first_ns is not None:
            self._sink.clock("local")
        first, last = self._first_ns, self._last_ns
        if self.count:
            self._sink.cover(
                "sample.device",
                job=True,
                complete=complete,
                n_read=n_read,
                n_kept=self.count,
                from_ns=first,
                to_ns=last,
            )
        if self._n_facts:
            self._sink.cover("fact", job=True, complete=complete, n_read=self._n_facts, n_kept=self._n_facts)
