"""Environments that jobs print into their logs: which lines are facts, whose they are, and what is no setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.formats import log

START = "2026-11-29 14:53:20,954 | INFO | job starts\n"
END = "2026-11-29 14:53:29,000 | ERROR | RuntimeError: it broke\n"
COLLECT_ENV = """\
Collecting environment information...
PyTorch version: 2.4.0+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1

OS: Ubuntu 22.04.4 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Libc version: glibc-2.35

Python version: 3.10.14 (main, May  6 2024, 19:42:50) [GCC 11.2.0] (64-bit runtime)
Is CUDA available: True
CUDA runtime version: 12.1.105
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 535.161.08
cuDNN version: Could not collect

CPU:
Architecture:                    x86_64
CPU(s):                          192

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.4.0+cu121
[conda] Could not collect
"""
FREEZE = "certifi==2024.2.2\nflash-attn==2.5.8\nmypkg @ file:///srv/mypkg\ntorch==2.3.1+cu121\n"
LIST = """\
Package                  Version      Editable project location
------------------------ ------------ -------------------------
accelerate               0.30.1
my-trainer               0.1.0        /srv/job
torch                    2.3.1+cu121
"""
ENV = """\
SHELL=/bin/bash
PWD=/srv/job
NCCL_DEBUG=INFO
HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789
HOME=/root
PATH=/usr/bin:/bin
"""
REPORT = """\
--------------------------------------------------
DeepSpeed C++/CUDA extension op report
--------------------------------------------------
async_io ............... [YES] ...... [OKAY]
--------------------------------------------------
DeepSpeed general environment info:
torch install path ............... ['/usr/lib/python3/dist-packages/torch']
torch version .................... 2.1.2+cu121
deepspeed info ................... 0.12.6, unknown, unknown
torch cuda version ............... 12.1
nvcc version ..................... 12.2
shared memory (/dev/shm) size .... 31.25 GB
"""


def read(tmp_path: Path, text: str) -> MemorySink:
    (tmp_path / "stderr.log").write_text(START + text + END)
    return load(log, tmp_path / "stderr.log")


def facts(sink: MemorySink) -> dict[str, str]:
    return {fact["key"]: fact["value"] for fact in sink.facts}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            COLLECT_ENV,
            {"torch": "2.4.0+cu121", "driver_version": "535.161.08", "numpy": "1.26.4", "glibc": "glibc-2.35"},
        ),
        (FREEZE, {"flash-attn": "2.5.8", "torch": "2.3.1+cu121", "mypkg": "file:///srv/mypkg"}),
        (LIST, {"accelerate": "0.30.1", "torch": "2.3.1+cu121"}),
        (ENV, {"NCCL_DEBUG": "INFO", "PWD": "/srv/job"}),
        (ENV.replace("SHELL", "declare -x SHELL"), {"NCCL_DEBUG": "INFO"}),
        (REPORT, {"torch": "2.1.2+cu121", "deepspeed": "0.12.6", "torch.version.cuda": "12.1", "nvcc": "12.2"}),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "node-3: "])
def test_a_printed_environment_becomes_facts(tmp_path: Path, text: str, told: dict[str, str], prefix: str) -> None:
    sink = read(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert told.items() <= facts(sink).items()
    assert "it broke" in sink.rows("log_event")[-1]["message"]
    first = next(fact for fact in sink.facts if fact["key"] == next(iter(told)))
    lines = (START + text).splitlines()
    assert first["value"].split(",")[0] in lines[first["line"] - 1]


def test_secrets_in_a_printed_environment_are_masked(tmp_path: Path) -> None:
    assert "abcdefghijklmnop" not in str(read(tmp_path, ENV).facts)


@pytest.mark.parametrize(
    "text",
    [
        "LR=0.1\nBATCH_SIZE=32\nEPOCHS=3\nSEED=1\nNAME=run\n",  # a script's own, whatever it means
        "torch==2.3.1 is required\n",
        "ERROR: a==1.0 and b==2.0 conflict\ntorch==2.3.1\n",
        "step=1 loss=2.0\nstep=2 loss=1.5\nstep=3 loss=1.4\nstep=4 loss=1.2\n",
        "Package version mismatch\nfoo 1.0\n",
        "loading ........ done\nsaving ........ done\n",
    ],
)
def test_lines_that_only_look_like_settings_are_none(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text).facts == []


def test_lines_behind_a_report_are_none_of_its(tmp_path: Path) -> None:
    assert not {"Epoch", "loss"} & facts(read(tmp_path, COLLECT_ENV + "Epoch: 1\nloss: 0.5\n")).keys()


def test_a_rank_that_its_environment_tells_is_that_of_the_writer_unless_several_write(tmp_path: Path) -> None:
    one = "RANK=3\nWORLD_SIZE=8\nLOCAL_RANK=3\nMASTER_ADDR=node-0\nMASTER_PORT=29500\n"
    sink = read(tmp_path, one)
    assert (sink.procs[0]["rank"], sink.procs[0]["world_size"]) == (3, 8)
    assert {fact["proc"] for fact in sink.facts} == {0}
    sink = read(tmp_path, one + START + one.replace("RANK=3", "RANK=4"))
    assert "rank" not in sink.procs.get(0, {})
    assert sink.facts == []


CSV = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB]
2026/11/29 14:53:21.000, 0, NVIDIA H100 80GB HBM3, 99 %, 71234 MiB
2026/11/29 14:53:21.000, 1, NVIDIA H100 80GB HBM3, 0 %, 4 MiB
"""


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_rows_of_nvidia_smi_as_csv_become_samples(tmp_path: Path, prefix: str) -> None:
    sink = read(tmp_path, "".join(f"{prefix}{line}\n" for line in CSV.splitlines()) + "epoch 3, 4, 5\n")
    rows = [(r["name"], r["device"], r["value"], r["line"]) for r in sink.rows("sample") if r["source"] == "nvidia-smi"]
    assert ("memory.used", 0, 71234 * 1024**2, 3) in rows
    assert ("utilization.gpu", 1, 0.0, 4) in rows
    assert len(rows) == 4


def test_a_sentence_about_fields_of_nvidia_smi_begins_no_table(tmp_path: Path) -> None:
    sink = read(tmp_path, "we log memory.used, memory.total and more\n1, 2\n")
    assert [row for row in sink.rows("sample") if row["source"] == "nvidia-smi"] == []
