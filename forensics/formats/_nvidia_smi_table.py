"""Reads the table of `nvidia-smi`, line by line."""

from __future__ import annotations

import re

from forensics.formats._device_fields import DeviceSamples

_VERSIONS = (("Driver Version", "driver_version"), ("CUDA Version", "cuda_version"))
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_MEMORY = re.compile(r"([0-9]{1,9}MiB) {0,4}/ {0,4}([0-9]{1,9}MiB)")
_POWER = re.compile(r"([0-9]{1,5})W {0,4}/ {0,4}([0-9]{1,5})W")
_PROCESS_TYPES = {"C", "G", "C+G", "M+C", "M"}
_NONE_RUNNING = "No running processes found"


class TableText:
    """One or more tables; `ts_ns` is the time printed above the next one."""

    def __init__(self, samples: DeviceSamples) -> None:
        self._samples = samples
        self.ts_ns: int | None = None
        self._device: int | None = None
        self._in_processes = False
        self._n_processes: int | None = None  # None: the list did not begin yet
        self._in_mig = False
        self._last = ""

    @property
    def is_cut(self) -> bool:
        """Whether the last table ended elsewhere than at a border."""
        return bool(self._last) and not (self._last.startswith("+") and self._last.endswith("+"))

    def read(self, line: str, number: int) -> bool:
        """Takes one line; False when it is none of a table."""
        stripped = line.strip()
        if stripped[:1] not in {"|", "+"}:
            return False
        self._last = stripped
        if "NVIDIA-SMI" in stripped:
            self._begin(stripped, number)
        elif "Processes:" in stripped:
            self._in_processes = True
        elif "MIG devices:" in stripped:
            self._in_mig = True
        elif stripped.startswith("+"):
            self._border(number)
        elif stripped.startswith("|=") and self._in_processes:
            self._n_processes = 0
        elif self._in_processes:
            self._process(stripped, number)
        else:
            cells = [cell.strip() for cell in stripped.strip("|").split("|")]
            if self._in_mig:
                self._mig_line(cells, number)
            else:
                self._device_line(cells, number)
        return True

    def _begin(self, line: str, number: int) -> None:
        self._in_processes, self._n_processes, self._device, self._in_mig = False, None, None, False
        words = line.replace(":", ": ").strip("|").split()
        for label, key in _VERSIONS:
            first, second = label.split()
            for index in range(len(words) - 2):
                if words[index] == first and words[index + 1] == f"{second}:":
                    self._samples.fact(key, words[index + 2], scope="version", line=number)

    def _border(self, number: int) -> None:
        if self._in_processes and self._n_processes is not None:
            value = str(self._n_processes) if self._n_processes else "none"
            self._samples.fact("processes", value, scope="device", line=number, number=self._n_processes)
            self._in_processes, self._n_processes = False, None
            self.ts_ns = None

    def _device_line(self, cells: list[str], number: int) -> None:
        if len(cells) < 3:
            return
        left, middle, right = cells[0].split(), cells[1], cells[2].split()
        bus = _BUS_ID.search(middle)
        if bus and left and left[0].isdecimal() and len(left[0]) <= 4:
            self._device = int(left[0])
            name = " ".join(left[1:-1] if left[-1] in {"On", "Off", "N/A", "ERR!"} else left[1:])
            self._samples.fact("name", name, scope="device", line=number, device=self._device)
            self._samples.fact("pci.bus_id", bus[0], scope="device", line=number, device=self._device)
            if right:
                self._add("ecc.volatile.total.uncorrectable", right[0], number)
        elif self._device is not None and ("MiB" in middle or "ERR!" in " ".join(cells)):
            self._usage(left, cells[0], middle, right, number)

    def _mig_line(self, cells: list[str], number: int) -> None:
        """`|  0    7   0   0  |     11MiB /  9856MiB  | …`: device, GPU instance, compute instance, MIG device."""
        ids = cells[0].split()
        memory = _MEMORY.search(cells[1]) if len(cells) > 1 else None
        if memory and len(ids) == 4 and all(word.isdecimal() and len(word) <= 4 for word in ids):
            entity, device = f"MIG {ids[1]}/{ids[2]}/{ids[3]}", int(ids[0])
            for name, text in (("mig.memory.used", memory[1]), ("mig.memory.total", memory[2])):
                self._samples.add(name, text, line=number, device=device, ts_ns=self.ts_ns, entity=entity)

    def _usage(self, left: list[str], left_text: str, middle: str, right: list[str], number: int) -> None:
        fan, temperature = [*left, "", ""][:2]
        self._add("fan.speed", fan, number)
        self._add("temperature.gpu", temperature, number)
        state = next((word for word in left if re.fullmatch(r"P[0-9]{1,2}", word)), None)
        if state:
            self._add("pstate", state, number)
        power = _POWER.search(left_text)
        if power:
            self._add("power.draw", f"{power[1]} W", number)
            self._add("power.limit", f"{power[2]} W", number)
        memory = _MEMORY.search(middle)
        self._add("memory.used", memory[1] if memory else middle, number)
        if memory:
            self._add("memory.total", memory[2], number)
        if right:
            self._add("utilization.gpu", right[0], number)

    def _process(self, line: str, number: int) -> None:
        if _NONE_RUNNING in line:
            self._samples.fact("processes", "none", scope="device", line=number, number=0)
            return
        words = line.strip("|").split()
        kind = next((index for index, word in enumerate(words) if word in _PROCESS_TYPES and index >= 2), None)
        if kind is None or self._n_processes is None or not words[0].isdecimal() or len(words[0]) > 4:
            return
        pid, memory = words[kind - 1], words[-1]
        name = " ".join(words[kind + 1 : -1])
        self._n_processes += 1
        if pid.isdecimal():
            entity = f"{pid} {name}".strip()[:500]
            self._samples.add(
                "process.memory.used", memory, line=number, device=int(words[0]), ts_ns=self.ts_ns, entity=entity
            )

    def _add(self, name: str, text: str, number: int) -> None:
        self._samples.add(name, text, line=number, device=self._device, ts_ns=self.ts_ns)
