"""Where processes may run and what lies near: `taskset -pc`, `numactl --show`, `lscpu`, `nvidia-smi topo -m`.

Facts of scope `host`: `cpus.allowed` of a process (a list such as 0-7,16), `cpus.count`, `cpus.nodeN_cpus`; of scope
`device`: `GPUn near` (its processors), and `GPUn GPUm` with the kind of path between two of them: NV#, PIX, PXB, PHB,
NODE, SYS (https://docs.nvidia.com/deploy/nvidia-smi/index.html).
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines, without_ansi

VERSION = 1
TITLE = "Processors and topology (taskset, numactl --show, lscpu, nvidia-smi topo -m)"
PROVIDES = ("fact",)

_MAX_LINE = 16_384
_MAX_DEVICES = 256
_LIST = r"(?P<list>\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,2000})"
_TASKSET = re.compile(rf"pid (?P<pid>\d{{1,10}})'s (?:current|new) affinity list: {_LIST}")
_NUMACTL = re.compile(r"physcpubind: (?P<numbers>\d{1,5}(?: \d{1,5}){0,4000})\s{0,5}")
_LSCPU_COUNT = re.compile(r"CPU\(s\):\s{1,80}(?P<n>\d{1,5})")
_LSCPU_NODE = re.compile(rf"NUMA node(?P<node>\d{{1,4}}) CPU\(s\):\s{{1,80}}{_LIST}")
_TOPO_HEAD = re.compile(r"\s{0,20}GPU0\b.{0,8000}CPU Affinity")
_TOPO_ROW = re.compile(r"GPU(?P<number>\d{1,3})\s")
_PATH = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|C2C")
_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,2000}")


def recognise(head: Head) -> int:
    lines = [
        line.strip() for line in head_lines(without_ansi(decode_text(head.data)), whole=head.whole) if line.strip()
    ]
    if not lines:
        return 0
    if any(_TOPO_HEAD.match(line) for line in lines[:5]):
        return 85
    if all(_TASKSET.fullmatch(line) for line in lines) or any(_NUMACTL.fullmatch(line) for line in lines[:12]):
        return 85
    is_lscpu = lines[0].startswith("Architecture:") and any(_LSCPU_COUNT.fullmatch(line) for line in lines[:20])
    return 85 if is_lscpu else 0


def load(source: Source, sink: Sink) -> None:
    reader = _Reader(sink)
    n_lines = 0
    for number, text, _ in numbered_lines(source, max_chars=_MAX_LINE):
        n_lines += bool(text.strip())
        reader.feed(without_ansi(text), number)
    if not reader.n_facts:
        raise ArtifactError(f"{source.name}: no processors and no paths between devices", byte=0)
    sink.cover("fact", job=True, complete=source.damage is None, n_read=n_lines, n_kept=reader.n_facts)


class _Reader:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._devices: list[str] = []
        self._pids: dict[int, int] = {}
        self.n_facts = 0

    def feed(self, text: str, line: int) -> None:
        stripped = text.strip()
        if found := _TASKSET.fullmatch(stripped):
            pid = int(found["pid"])
            proc = self._pids.setdefault(pid, len(self._pids))
            self._sink.proc(proc, pid=pid)
            self._fact("cpus.allowed", found["list"], "host", line, proc)
        elif found := _NUMACTL.fullmatch(stripped):
            self._sink.proc(0)
            self._fact("cpus.allowed", found["numbers"].replace(" ", ","), "host", line, 0)
        elif found := _LSCPU_NODE.fullmatch(stripped):
            self._fact(f"cpus.node{found['node']}_cpus", found["list"], "host", line)
        elif found := _LSCPU_COUNT.fullmatch(stripped):
            self._fact("cpus.count", found["n"], "host", line)
        elif _TOPO_HEAD.match(text):
            self._devices = [word for word in text.split() if re.fullmatch(r"GPU\d{1,3}", word)][:_MAX_DEVICES]
        elif self._devices and (found := _TOPO_ROW.match(text)):
            self._row(text.split(), int(found["number"]), line)

    def _row(self, words: list[str], number: int, line: int) -> None:
        for other, path in zip(self._devices, words[1:], strict=False):
            if _PATH.fullmatch(path) and int(other[3:]) > number:
                self._fact(f"GPU{number} {other}", path, "device", line)
        near = next((word for word in words[1 + len(self._devices) :] if _CPUS.fullmatch(word)), None)
        if near is not None:
            self._fact(f"GPU{number} near", near, "device", line)

    def _fact(self, key: str, value: str, scope: str, line: int, proc: int | None = None) -> None:
        number = float(value) if value.isdigit() else None
        self._sink.fact(key, value, scope=scope, line=line, number=number, proc=proc)
        self.n_facts += 1
