"""Small exports in NVIDIA's own layout, for what needs a GPU to record: one failed capture, and its healthy twin."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

PID, TID = 4242, 4243
GLOBAL_PID = (1 << 48) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID
UTC_NS = 1_700_000_000_000_000_000

_INT = {"start", "end"}
_SCHEMA: dict[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, "
        "shortName INTEGER NOT NULL, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start INTEGER NOT NULL, globalPid INTEGER, deviceId INTEGER, contextId INTEGER, address INTEGER, pc INTEGER, "
        "bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER, name TEXT, correlationId INTEGER"
    ),
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "TARGET_INFO_GPU_METRICS": (
        "typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, "
        "value TEXT NOT NULL"
    ),
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, "
        "severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER"
    ),
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}  # fmt: skip


class Export:
    """Writes an export table by table; texts of calls and kernels are interned as NVIDIA does it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._con = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self._correlation = 0

    def add(self, table: str, **values: Any) -> None:
        self._con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_SCHEMA[table]})")
        columns = ", ".join(f'"{name}"' for name in values)
        self._con.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})", list(values.values())
        )

    def text(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def call(
        self, start: int, name: str, result: int = 0, *, dur: int = 10, tid: int = GLOBAL_TID, driver: bool = False
    ) -> int:
        self._correlation += 1
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + dur, eventClass=int(driver), globalTid=tid,
            correlationId=self._correlation, nameId=self.text(name), returnValue=result,
        )  # fmt: skip
        return self._correlation

    def kernel(self, start: int, name: str, correlation: int, **more: Any) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=start + 100, deviceId=0, contextId=1, streamId=7,
            correlationId=correlation, globalPid=GLOBAL_PID, demangledName=self.text(name), shortName=self.text(name),
            **more,
        )  # fmt: skip

    def push_pop(self, start: int, end: int | None, text: str, **more: Any) -> None:
        self.add(
            "NVTX_EVENTS",
            **{"start": start, "end": end, "eventType": 59, "text": text, "globalTid": GLOBAL_TID, **more},
        )

    def session(self) -> None:
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS, utcTime="2023-11-14T22:13:20")
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.24.14")

    def close(self) -> Path:
        self._con.commit()
        self._con.close()
        return self.path


def captured_job(path: Path, *, broken: bool) -> Path:
    """Steps with NVTX, then a graph capture: one that works and is launched, or one that `.item()` breaks."""
    export = Export(path)
    export.session()
    for step in range(3):
        at = 1000 + step * 1000
        export.push_pop(at, at + 900, f"iteration {step}")
        export.push_pop(at + 100, at + 300, f"aten::mm, seq = {step}, sizes = [[2, 3], [3, 4]], op_id = {step}")
        export.kernel(at + 200, "sgemm", export.call(at + 150, "cudaLaunchKernel_v7000"))
    export.push_pop(5000, None if broken else 5900, "capture")
    export.call(5000, "cudaStreamBeginCapture_v10000")
    export.call(5100, "cudaLaunchKernel_v7000")
    if broken:
        export.call(5200, "cudaStreamSynchronize_v3020", 900)
        export.call(5300, "cudaLaunchKernel_v7000", 901)
        export.call(5400, "cudaStreamEndCapture_v10000", 901)
    else:
        export.call(5200, "cudaEventQuery_v3020", 600)
        export.call(5400, "cudaStreamEndCapture_v10000")
        export.call(5500, "cudaGraphInstantiateWithFlags_v11040")
        launch = export.call(5600, "cudaGraphLaunch_v10000")
        export.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5700, end=9700, deviceId=0, contextId=1, streamId=7,
            correlationId=launch, globalPid=GLOBAL_PID, graphId=2, graphExecId=3,
        )  # fmt: skip
    return export.close()
