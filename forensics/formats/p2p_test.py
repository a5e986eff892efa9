"""What `p2pBandwidthLatencyTest` of the CUDA samples prints: which devices reach each other, and how fast.

Facts of scope `device`, a pair a fact: `p2p GPU0 GPU1 access` (yes, no), `p2p GPU0 GPU1 GB/s disabled`, `… enabled`
(one way), `p2p GPU0 GPU1 us disabled`, `… enabled` (latency as the GPU measures it).
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._text_lines import decode_text, numbered_lines

VERSION = 1
TITLE = "p2pBandwidthLatencyTest (text)"
PROVIDES = ("fact",)

_MAX_LINE = 8000
_MAX_DEVICES = 64
_TITLE = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"
_ACCESS = re.compile(r"Device=(?P<a>\d{1,3}) (?P<can>CAN|CANNOT) Access Peer Device=(?P<b>\d{1,3})")
_MATRIX = re.compile(
    r"(?:(?P<ways>Uni|Bi)directional )?P2P=(?P<how>Enabled|Disabled) (?P<what>Bandwidth|Latency) "
    r"(?:\(P2P Writes\) )?Matrix"
)
_COLUMNS = re.compile(r"\s{0,20}(?P<who>D\\D|GPU|CPU)\s{1,40}0\b")
_ROW = re.compile(r"\s{0,20}(?P<a>\d{1,3})((?:\s{1,20}\d{1,9}\.\d{1,3}){1,64})\s{0,20}")


def recognise(head: Head) -> int:
    return 90 if _TITLE in decode_text(head.data[:8192]) else 0


def load(source: Source, sink: Sink) -> None:
    unit: str | None = None
    n_lines = n_facts = 0
    for number, text, _ in numbered_lines(source, max_chars=_MAX_LINE):
        n_lines += bool(text.strip())
        if found := _ACCESS.search(text):
            value = "yes" if found["can"] == "CAN" else "no"
            sink.fact(f"p2p GPU{found['a']} GPU{found['b']} access", value, scope="device", line=number)
            n_facts += 1
        elif found := _MATRIX.search(text):
            kept = found["ways"] != "Bi"
            unit = f"{'GB/s' if found['what'] == 'Bandwidth' else 'us'} {found['how'].lower()}" if kept else None
        elif found := _COLUMNS.match(text):
            unit = None if found["who"] == "CPU" else unit
        elif unit is not None and (found := _ROW.fullmatch(text)):
            n_facts += _tell_row(sink, int(found["a"]), found[2].split(), unit, number)
    if not n_facts:
        raise ArtifactError(f"{source.name}: no pair of devices in the text of the test", byte=0)
    sink.cover("fact", job=True, complete=source.damage is None, n_read=n_lines, n_kept=n_facts)


def _tell_row(sink: Sink, device: int, values: list[str], unit: str, line: int) -> int:
    for other, value in enumerate(values[:_MAX_DEVICES]):
        if other != device:
            sink.fact(f"p2p GPU{device} GPU{other} {unit}", value, scope="device", line=line, number=float(value))
    return len(values) - 1
