"""Pickles of no kind known: none is executed, and each is listed with the reason."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from forensics.artifact import Head
from forensics.discovery import discover
from forensics.formats import other_pickle
from forensics.ingest import ingest


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def listed(folder: Path, tmp_path: Path) -> dict[str, tuple[str | None, str, list[tuple[str, str]]]]:
    loaded = ingest(discover(folder, tmp_path / "work"), tmp_path / "cache")
    return {
        item.found.source.name: (
            item.found.format,
            item.meta["quality"],
            [(w["code"], w["message"]) for w in item.meta["warnings"]],
        )
        for item in loaded
    }


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_asks_for_a_call_is_refused_with_the_reason(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    asked = Hostile(tmp_path / "made")
    values = {"alone.pkl": asked, "deep.pkl": {"rows": [[1, 2, {"x": asked}]]}, "nccl_trace_rank_0": {
        "version": "2.4", "pg_config": {}, "pg_status": asked, "entries": []}}  # fmt: skip
    for name, value in values.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol))
    found = listed(folder, tmp_path)
    opcode = "GLOBAL" if protocol < 4 else "STACK_GLOBAL"
    for name, (format_name, quality, warnings) in found.items():
        ((code, message),) = warnings
        assert code == "refused" and f"refused: untrusted opcode {opcode} (posix.mkdir)" in message
        known = name == "nccl_trace_rank_0"
        assert (format_name, quality) == (("flight_recorder", "failed") if known else ("other_pickle", "unknown"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x02\x82\x01.", "untrusted opcode EXT1"),
        (b"\x80\x02X\x01\0\0\0aQ.", "untrusted opcode BINPERSID"),
        (b"\x80\x04\x95\xff\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94K\x01K\x02K\x03K\x04", "damaged"),
        (pickle.dumps({"vocabulary": ["a", "b"]}), 'no kind known here: {"vocabulary": "<list of 2>"}'),
    ],
)
def test_what_else_a_pickle_is_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "x.pkl").write_bytes(data)
    ((format_name, quality, warnings),) = listed(tmp_path / "artifacts", tmp_path).values()
    assert (format_name, quality, len(warnings)) == ("other_pickle", "unknown", 1)
    assert said in warnings[0][1]


@pytest.mark.parametrize(
    "text",
    [
        b"(EngineCore pid=71) INFO started\n(EngineCore pid=71) INFO ended\n",
        b"Vendor line\nVerbose line\n.\n",
        b"core dumped\nat main\n",
        b"c10::Error\nwhat\n",
        b"}\n]\n(dp0 is no pickle)\n",
        b"\x80\x02",
        b"\x80\x99.",
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    ],
)
def test_texts_and_other_bytes_are_no_pickles(text: bytes) -> None:
    assert other_pickle.recognise(Head("x", text, True)) == 0
