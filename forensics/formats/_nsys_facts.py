"""Facts of an export: host, devices, versions, the recorded program's options and variables, and nsys' diagnostics."""

from __future__ import annotations

import re
from typing import Any

from forensics.formats._nsys_report import Report
from forensics.redact import MASK, is_secret, masked_text

_MAX_VARIABLES = 2_000
_MAX_DIAGNOSTICS = 200
# Properties of TARGET_INFO_SYSTEM_ENV worth a fact: scope, key.
_PROPERTIES = {
    "Hostname": ("host", "hostname"),
    "OsDescription": ("host", "os"),
    "KernelVersion": ("host", "kernel"),
    "CpuCores": ("host", "cpu_cores"),
    "CpuArchitecture": ("host", "cpu_architecture"),
    "NvDriverVersion": ("version", "nvidia-driver"),
    "CudaDriverVersion": ("version", "cuda-driver"),
}
_GPU = ("name", "uuid", "busLocation", "totalMemory", "smCount", "computeMajor", "computeMinor", "chipName")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_NUMBER = re.compile(r"\d{1,7}")
_EXIT = re.compile(
    r"(?:application|process|target)[^\n]{0,80}(?:non-zero exit code|exit(?:ed with)? code)\s{0,3}:?\s{0,3}(-?\d{1,4})",
    re.IGNORECASE,
)
_LOSES = re.compile(
    r"might (?:not )?have (?:not )?been|overflow|insufficient|not all|no cuda events|dropped|lost|failed to"
    r"|cannot be traced|not supported",
    re.IGNORECASE,
)


def emit_facts(report: Report) -> bool:
    """Emits facts and describes the processes; True when nsys itself says that events may be missing."""
    sink = report.sink
    export = report.settings("META_DATA_EXPORT") or report.settings("EXPORT_META_DATA")
    for name, key in (("EXPORT_PRODUCT_VERSION", "nsight-systems"), ("EXPORT_SCHEMA_VERSION", "nsight-systems-schema")):
        if export.get(name):
            sink.fact(key, export[name], scope="version")
    properties = {
        r["name"]: r["value"]
        for r in report.small("TARGET_INFO_SYSTEM_ENV", ("devStateName", "name", "value"))
        if r.get("name") and r.get("value")
    }
    for name, (scope, key) in _PROPERTIES.items():
        if properties.get(name):
            sink.fact(key, properties[name], scope=scope)
    variables = _emit_options(report, properties.get("DeviceEnvironment", ""))
    _emit_devices(report)
    is_lossy = _emit_diagnostics(report)
    _describe(report, variables, properties.get("Hostname"))
    return is_lossy


def _emit_options(report: Report, environment: str) -> dict[str, str]:
    """The command that nsys ran and its variables; returns the variables."""
    sink = report.sink
    variables: dict[str, str] = {}
    command: dict[str, list[str]] = {}
    for row in report.small("META_DATA_CAPTURE", ("name", "value")):
        name, value = row.get("name") or "", row.get("value") or ""
        process, _, option = name.partition(":")
        if option == "ENVIRONMENT_VARIABLE":
            key, _, content = value.partition("=")
            variables.setdefault(key, content.strip('"'))
        elif option == "COMMAND" or option.startswith("ARGUMENT_"):
            command.setdefault(process, []).append(value)
        elif not process.startswith("PROCESS_") and value:
            sink.fact(name, masked_text(value), scope="profiler")
    for words in command.values():
        sink.fact("command", masked_text(" ".join(words)), scope="command")
    for pair in environment.split(";"):  # only where the capture's own list is absent: values may hold semicolons
        key, is_pair, content = pair.partition("=")
        if is_pair and re.fullmatch(r"[A-Za-z_]\w{0,100}", key):
            variables.setdefault(key, content)
    for key, value in list(variables.items())[:_MAX_VARIABLES]:
        sink.fact(key, MASK if is_secret(key, value) else masked_text(value), scope="variable")
    return variables


def _emit_devices(report: Report) -> None:
    for row in report.small(
        "TARGET_INFO_GPU", ("name", "busLocation", "uuid", "chipName", "ctxswDevPath", "ctrlDevPath")
    ):
        number = row.get("id")
        for name in _GPU:
            value: Any = row.get(name)
            if value not in {None, ""}:
                amount = float(value) if isinstance(value, int) else None
                report.sink.fact(f"gpu{number}.{name}", str(value), scope="device", number=amount)


def _emit_diagnostics(report: Report) -> bool:
    is_lossy = False
    for row in report.small("DIAGNOSTIC_EVENT", ("text",))[:_MAX_DIAGNOSTICS]:
        text, severity = " ".join((row.get("text") or "").split())[:1000], row.get("severity") or 0
        exited = _EXIT.search(text)
        if exited and report.processes:
            report.sink.proc(0, exit_code=int(exited[1]))
        if severity >= 2 and _LOSES.search(text):
            is_lossy = is_lossy or "events" in text.lower()
            report.sink.warn("nsys-diagnostic", text, "what Nsight Systems says it could not record")
        elif severity >= 2 or exited:
            report.sink.fact("diagnostic", text, scope="profiler")
    return is_lossy


def _describe(report: Report, variables: dict[str, str], host: str | None) -> None:
    """Rank and world size are of the program that nsys started: of the first process, where several did CUDA work."""
    for process, number in report.processes.items():
        if process:
            report.sink.proc(number, pid=(process >> 24) & 0xFFFFFF, host=host)
        elif host:
            report.sink.proc(number, host=host)
    rank = _first_number(variables, _RANK)
    if rank is not None and report.processes:
        report.sink.proc(
            0, rank=rank, rank_origin="content", local_rank=_first_number(variables, _LOCAL_RANK),
            world_size=_first_number(variables, _WORLD),
        )  # fmt: skip


def _first_number(variables: dict[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if _NUMBER.fullmatch(variables.get(name, "")):
            return int(variables[name])
    return None
