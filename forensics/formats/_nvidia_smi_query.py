"""Reads the indented `key : value` text of `nvidia-smi -q`, line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.formats._device_fields import DeviceSamples
from forensics.formats._quantities import parse_time

_HEADING = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_MAX_HELD = 100_000

# Path of the section, lower case -> field of --query-gpu. Of unlisted paths none but error counters are kept.
_FIELDS = {
    "fb memory usage/total": "memory.total",
    "fb memory usage/reserved": "memory.reserved",
    "fb memory usage/used": "memory.used",
    "fb memory usage/free": "memory.free",
    "bar1 memory usage/total": "bar1.memory.total",
    "bar1 memory usage/used": "bar1.memory.used",
    "bar1 memory usage/free": "bar1.memory.free",
    "utilization/gpu": "utilization.gpu",
    "utilization/memory": "utilization.memory",
    "temperature/gpu current temp": "temperature.gpu",
    "temperature/memory current temp": "temperature.memory",
    "gpu power readings/power draw": "power.draw",
    "gpu power readings/average power draw": "power.draw.average",
    "gpu power readings/instantaneous power draw": "power.draw.instant",
    "gpu power readings/current power limit": "power.limit",
    "power readings/power draw": "power.draw",
    "power readings/power limit": "power.limit",
    "clocks/sm": "clocks.sm",
    "clocks/memory": "clocks.mem",
    "fan speed": "fan.speed",
    "performance state": "pstate",
    "pci/replays since reset": "pcie.replays",
    "pci/gpu link info/pcie generation/current": "pcie.link.gen.current",
    "pci/gpu link info/pcie generation/max": "pcie.link.gen.max",
    "pci/gpu link info/link width/current": "pcie.link.width.current",
    "pci/gpu link info/link width/max": "pcie.link.width.max",
    "retired pages/single bit ecc": "retired_pages.single_bit_ecc.count",
    "retired pages/double bit ecc": "retired_pages.double_bit.count",
    "retired pages/pending page blacklist": "retired_pages.pending",
    "retired pages/pending": "retired_pages.pending",
    "remapped rows/correctable error": "remapped_rows.correctable",
    "remapped rows/uncorrectable error": "remapped_rows.uncorrectable",
    "remapped rows/pending": "remapped_rows.pending",
    "remapped rows/remapping failure occurred": "remapped_rows.failure",
    "gpu reset status/reset required": "reset_status.reset_required",
    "gpu reset status/drain and reset recommended": "reset_status.drain_and_reset_recommended",
    "ecc mode/current": "ecc.mode.current",
    "mig mode/current": "mig.mode.current",
}
_TEXTS = {
    "product name": "name",
    "gpu uuid": "uuid",
    "pci/bus id": "pci.bus_id",
    "serial number": "serial",
    "vbios version": "vbios_version",
    "gpu recovery action": "recovery_action",
    "compute mode": "compute_mode",
    "fabric/state": "fabric.state",
    "fabric/status": "fabric.status",
}
_REASONS = ("clocks event reasons/", "clocks throttle reasons/")


def is_device_heading(line: str) -> bool:
    return _HEADING.fullmatch(line.strip()) is not None and not line.startswith(" ")


@dataclass(frozen=True)
class _Field:
    section: int
    name: str
    text: str
    line: int
    entity: str | None = None
    is_fact: bool = False


class QueryText:
    """One or more logs. Fields are held back until the number of devices in their log is known."""

    def __init__(self, samples: DeviceSamples) -> None:
        self._samples = samples
        self._path: list[tuple[int, str]] = []
        self._held: list[_Field] = []
        self._n_sections = 0
        self._attached: int | None = None
        self._ts_ns: int | None = None
        self._pid = self._process_name = ""
        self._reached_processes = False
        self.is_cut = False  # the last section of a whole log did not get to its processes

    def read(self, line: str, number: int) -> bool:
        """Takes one line; False when it is none of such a text."""
        stripped = line.strip()
        if "NVSMI LOG" in stripped:
            self.finish()
            self._ts_ns = self._attached = None
            return True
        if is_device_heading(line):
            self._n_sections += 1
            self._path = []
            self._reached_processes = False
            return True
        key, colon, value = stripped.partition(" : ")
        indent = len(line) - len(line.lstrip(" "))
        if not colon:
            return self._section(stripped, indent)
        if not self._n_sections and not indent:
            return self._heading(key.strip(), value.strip(), number)
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        name = "/".join([*(part for _, part in self._path), key.strip().lower()])
        if len(self._path) < 8 and not value.strip():
            self._path.append((indent, key.strip().lower()))
        self._field(name, value.strip(), number)
        # "Process ID : N" heads its own fields
        if name.endswith("process id"):
            self._path.append((indent, "process"))
        return True

    def _section(self, text: str, indent: int) -> bool:
        """A heading of fields that follow, inside a device's section only."""
        if not self._n_sections or not indent or len(text) > 80:
            return False
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        if len(self._path) < 8:
            self._path.append((indent, text.removesuffix(":").strip().lower()))
        self._reached_processes = self._reached_processes or text.startswith("Processes")
        return True

    def _heading(self, key: str, value: str, number: int) -> bool:
        if key == "Timestamp":
            moment = parse_time(value)
            self._ts_ns = moment.ns if moment else None
        elif key in {"Driver Version", "CUDA Version"}:
            self._samples.fact(key.lower().replace(" ", "_"), value, scope="version", line=number)
        elif key == "Attached GPUs":
            self._attached = int(value) if value.isdecimal() and len(value) < 5 else None
        else:
            return False
        return True

    def _field(self, path: str, value: str, number: int) -> None:
        if path.startswith("processes"):
            self._reached_processes = True
        if path in _TEXTS:
            if value not in {"N/A", ""}:
                self._hold(_TEXTS[path], value, number, is_fact=True)
        elif path.startswith(_REASONS):
            self._hold("clocks_event_reasons." + path.rpartition("/")[2].replace(" ", "_"), value, number)
        elif path.startswith("ecc errors/"):
            name = _ecc_name(path)
            if name:
                self._hold(name, value, number)
        elif path.startswith("processes/"):
            self._process(path.rpartition("/")[2], value, number)
        elif path in _FIELDS:
            # widths are printed as 16x
            self._hold(_FIELDS[path], value.removesuffix("x") if "width" in path else value, number)
        elif path == "processes" and value == "None":
            self._hold("processes", "none", number, is_fact=True)

    def _process(self, key: str, value: str, number: int) -> None:
        if key == "process id":
            self._pid, self._process_name = value[:20], ""
        elif key == "name":
            self._process_name = value[:400]
        elif key == "used gpu memory" and self._pid:
            entity = f"{self._pid} {self._process_name}".strip()
            self._hold("process.memory.used", value, number, entity=entity)

    def _hold(self, name: str, text: str, number: int, *, entity: str | None = None, is_fact: bool = False) -> None:
        self._held.append(_Field(self._n_sections - 1, name, text, number, entity, is_fact))
        if len(self._held) >= _MAX_HELD:
            self._release()

    def _release(self) -> None:
        alone = self._n_sections == 1 and (self._attached or 1) > 1
        for field in self._held:
            device = None if alone or field.section < 0 else field.section
            if field.is_fact:
                self._samples.fact(field.name, field.text, scope="device", line=field.line, device=device)
            else:
                self._samples.add(
                    field.name, field.text, line=field.line, device=device, ts_ns=self._ts_ns, entity=field.entity
                )
        self._held = []

    def finish(self) -> None:
        self._release()
        self.is_cut = self.is_cut or (self._attached is not None and not self._reached_processes)
        self._n_sections = 0
        self._path = []


def _ecc_name(path: str) -> str | None:
    """`ecc errors/volatile/sram uncorrectable parity` and the older `…/volatile/single bit/total`."""
    parts = path.split("/")[1:]
    if len(parts) < 2 or parts[0] not in {"volatile", "aggregate"}:
        return None
    if len(parts) == 3 and parts[1] in {"single bit", "double bit"}:
        kind = "correctable" if parts[1] == "single bit" else "uncorrectable"
        return f"ecc.{parts[0]}.{parts[2].replace(' ', '_')}.{kind}"
    words = parts[-1].split()
    if len(parts) != 2 or len(words) < 2 or words[1] not in {"correctable", "uncorrectable"}:
        return None
    detail = "".join(f".{word.strip('()')}" for word in words[2:])
    return f"ecc.{parts[0]}.{words[0]}.{words[1]}{detail}"
