"""Where processes may run and what lies near, from taskset, numactl, lscpu and nvidia-smi topo -m."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import load

from forensics.artifact import Head
from forensics.errors import ArtifactError
from forensics.formats import cpu_places

TOPO = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tPIX\t0-31,64-95\t0\t\tN/A
GPU1\tNV18\t X \tPHB\tPIX\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t32-63,96-127\t1\t\tN/A
NIC0\tPIX\tPIX\tSYS\t X \t\t\t\t

Legend:
  X    = Self
"""
NUMACTL = "policy: default\npreferred node: current\nphyscpubind: 0 1 2 3 \ncpubind: 0 \nnodebind: 0 \nmembind: 0 \n"
LSCPU = """\
Architecture:                            x86_64
CPU op-mode(s):                          32-bit, 64-bit
CPU(s):                                  128
On-line CPU(s) list:                     0-127
NUMA node(s):                            2
NUMA node0 CPU(s):                       0-31,64-95
NUMA node1 CPU(s):                       32-63,96-127
"""
TASKSET = "pid 4242's current affinity list: 0,2-7\npid 4243's current affinity list: 1\n"


def facts(text: str, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "places.txt"
    path.write_text(text)
    assert cpu_places.recognise(Head("places.txt", text.encode(), True)) > 80
    return {fact["key"]: fact["value"] for fact in load(cpu_places, path).facts}


def test_a_topology_gives_paths_between_devices_and_processors_next_to_them(tmp_path: Path) -> None:
    assert facts(TOPO, tmp_path) == {
        "GPU0 GPU1": "NV18",
        "GPU0 GPU2": "SYS",
        "GPU0 near": "0-31,64-95",
        "GPU1 GPU2": "PHB",
        "GPU1 near": "0-31,64-95",
        "GPU2 near": "32-63,96-127",
    }


def test_lscpu_and_numactl_give_processors_and_nodes(tmp_path: Path) -> None:
    assert facts(NUMACTL, tmp_path) == {"cpus.allowed": "0,1,2,3"}
    found = facts(LSCPU, tmp_path)
    assert found == {"cpus.count": "128", "cpus.node0_cpus": "0-31,64-95", "cpus.node1_cpus": "32-63,96-127"}


def test_taskset_gives_those_of_each_process(tmp_path: Path) -> None:
    path = tmp_path / "taskset.txt"
    path.write_text(TASKSET)
    sink = load(cpu_places, path)
    assert [(sink.procs[fact["proc"]]["pid"], fact["value"]) for fact in sink.facts] == [(4242, "0,2-7"), (4243, "1")]


@pytest.mark.parametrize("text", ["", "step 1\nGPU0 is busy\n", "pid 4242's current affinity list: 0\nTraceback\n"])
def test_texts_that_only_mention_it_are_left_to_other_formats(text: str) -> None:
    assert cpu_places.recognise(Head("rank_0.log", text.encode(), True)) == 0


@pytest.mark.parametrize("end", [0, 20, 70, 140, 200])
def test_a_cut_topology_gives_only_what_the_whole_one_gives(end: int, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(TOPO[:end])
    try:
        found = {(fact["key"], fact["value"]) for fact in load(cpu_places, path).facts}
    except ArtifactError:
        found = set()
    assert {pair for pair in found if " GPU" in pair[0]} <= set(facts(TOPO, tmp_path).items())
