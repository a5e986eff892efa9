"""What `nvidia-smi` and `nvidia-smi -q` print, once or in a loop, and the errors that they print instead.

The table changed its widths several times, so cells are told by their content. Times are local. Device numbers of `-q`
are the order of its sections, which is that of the indices; a section alone among several attached devices (`-i`) has
no number. Lines that are neither stay as notes.
"""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._device_fields import DeviceSamples
from forensics.formats._nvidia_smi_query import QueryText, is_device_heading
from forensics.formats._nvidia_smi_table import TableText
from forensics.formats._quantities import parse_time
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines, without_ansi
from forensics.redact import masked_text

VERSION = 1
TITLE = "nvidia-smi: table, -q, errors"
PROVIDES = ("sample.device", "fact")

_ERRORS = (
    "Unable to determine the device handle for",
    "No devices were found",
    "Failed to initialize NVML",
    "NVIDIA-SMI has failed because",
    "NVIDIA-SMI couldn't find",
    "GPU is lost",
    "Unable to retrieve",
    "Driver/library version mismatch",
)
_QUERY_SIGNS = (
    "FB Memory Usage",
    "ECC Errors",
    "Product Name",
    "Remapped Rows",
    "Clocks Event Reasons",
    "Attached GPUs",
)
_LOG_SIGNS = ("Traceback (most recent call last)", "Error: ", "srun: ", "slurmstepd: ")
_MAX_LINE = 4096
_MAX_NOTES = 100


def recognise(head: Head) -> int:
    lines = [line for line in head_lines(without_ansi(decode_text(head.data)), whole=head.whole) if line.strip()]
    if not lines:
        return 0
    start = "\n".join(lines[:12])
    if "NVSMI LOG" in start or (any(map(is_device_heading, lines[:12])) and any(s in start for s in _QUERY_SIGNS)):
        return 90
    drawn = sum(line.lstrip().startswith(("|", "+")) for line in lines)
    table = "NVIDIA-SMI" in start and "Version" in start
    if table and drawn >= 0.5 * len(lines):
        rest = [line for line in lines if not line.lstrip().startswith(("|", "+"))]
        return 30 if any(sign in line for line in rest for sign in _LOG_SIGNS) else 90
    if len(lines) <= 20 and any(sign in start for sign in _ERRORS):
        share = 0.3 if "smi" in head.name.lower() else 0.8  # logs of jobs quote these messages too
        return 70 if sum(any(sign in line for sign in _ERRORS) for line in lines) >= share * len(lines) else 0
    return 0


def load(source: Source, sink: Sink) -> None:
    samples = DeviceSamples(sink)
    table, query = TableText(samples), QueryText(samples)
    n_lines = n_notes = n_errors = 0
    for number, text, _whole in numbered_lines(source, max_chars=_MAX_LINE):
        line = without_ansi(text).rstrip()
        if not line.strip():
            continue
        n_lines += 1
        moment = parse_time(line)
        if moment is not None:
            table.ts_ns = moment.ns
        elif any(sign in line for sign in _ERRORS):
            n_errors += 1
            samples.fact("error", line.strip(), scope="device", line=number)
        elif not table.read(line, number) and not query.read(line, number) and n_notes < _MAX_NOTES:
            n_notes += 1
            sink.fact("note", masked_text(line.strip())[:2000], scope="note", line=number)
    query.finish()
    cut = table.is_cut or query.is_cut
    if cut:
        sink.warn("truncated", "the output ends inside a table or section", "devices and processes that follow")
        sink.damaged("partial")
    samples.finish(n_read=n_lines, complete=not cut and source.damage is None)
    if not samples.count and not n_errors:
        raise ArtifactError(f"{source.name}: no device and no error message; expected the output of nvidia-smi", byte=0)
