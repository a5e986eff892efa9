"""Matrices of p2pBandwidthLatencyTest: pairs of devices, one way, as the GPU measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import load

from forensics.artifact import Head
from forensics.errors import ArtifactError
from forensics.formats import p2p_test

TEXT = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA RTX A6000, pciBusID: 41, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CANNOT Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0	     1     1
     1	     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 672.17  17.35
     1  17.40 671.31
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 679.61  11.10
     1  11.12 679.90
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.56 49204.50
     1   1.92   1.55

   CPU     0      1
     0   2.60 9999.00
     1   2.12   2.45
"""


def facts(text: str, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "p2p.txt"
    path.write_text(text)
    return {fact["key"]: fact["value"] for fact in load(p2p_test, path).facts}


def test_each_pair_has_access_bandwidth_one_way_and_latency_of_the_gpu(tmp_path: Path) -> None:
    assert p2p_test.recognise(Head("p2p.txt", TEXT.encode(), True)) == 90
    assert facts(TEXT, tmp_path) == {
        "p2p GPU0 GPU1 access": "yes",
        "p2p GPU1 GPU0 access": "no",
        "p2p GPU0 GPU1 GB/s disabled": "17.35",
        "p2p GPU1 GPU0 GB/s disabled": "17.40",
        "p2p GPU0 GPU1 us enabled": "49204.50",
        "p2p GPU1 GPU0 us enabled": "1.92",
    }


@pytest.mark.parametrize("end", [0, 30, 200, 340, 420, len(TEXT) - 70])
def test_a_cut_text_gives_nothing_but_what_the_whole_one_gives(end: int, tmp_path: Path) -> None:
    try:
        found = facts(TEXT[:end].rpartition("\n")[0], tmp_path)
    except ArtifactError:
        found = {}
    assert found.items() <= facts(TEXT, tmp_path).items()
