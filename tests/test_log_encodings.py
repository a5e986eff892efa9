"""Logs in other encodings than UTF-8: wordings of real exceptions beside text of other languages."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import MemorySink, load

from forensics.artifact import Head
from forensics.discovery import discover
from forensics.formats import log

# What Python and libraries say, with the file names and the translated system messages of such machines.
CHINESE = """\
2026-03-01 10:00:00 INFO 开始训练，正在加载数据集 第1轮
2026-03-01 10:00:01 INFO 保存检查点到 /数据/实验一/模型.pt
Traceback (most recent call last):
  File "/home/用户/训练.py", line 12, in 读取配置
    open(路径)
FileNotFoundError: [Errno 2] 系统找不到指定的文件: '/数据/配置文件.json'
2026-03-01 10:00:02 ERROR 训练失败，显存不足
"""
TRADITIONAL = """\
2026-03-01 10:00:00 INFO 開始訓練，正在載入資料集
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
FileNotFoundError: [WinError 2] 系統找不到指定的檔案。: '/資料/設定.json'
2026-03-01 10:00:02 ERROR 訓練失敗，記憶體不足
"""
JAPANESE = """\
2026-03-01 10:00:00 INFO 学習を開始します。データを読み込んでいます
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
FileNotFoundError: [WinError 2] 指定されたファイルが見つかりません。: '設定.json'
2026-03-01 10:00:02 ERROR メモリが不足しています
"""
KOREAN = """\
2026-03-01 10:00:00 INFO 학습을 시작합니다. 데이터를 불러오는 중입니다
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
FileNotFoundError: [WinError 2] 지정된 파일을 찾을 수 없습니다: '설정.json'
2026-03-01 10:00:02 ERROR 메모리가 부족합니다
"""
FRENCH = """\
2026-03-01 10:00:00 INFO démarrage de l'entraînement
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
FileNotFoundError: [WinError 3] Le chemin d'accès spécifié est introuvable: 'réglages.json'
2026-03-01 10:00:02 ERROR mémoire épuisée
"""
LEGACY = [
    (CHINESE, "gb18030"), (CHINESE, "gbk"), (TRADITIONAL, "cp950"), (JAPANESE, "cp932"), (JAPANESE, "euc_jp"),
    (KOREAN, "euc_kr"), (FRENCH, "cp1252"),
]  # fmt: skip
WIDE = [
    (text, encoding, mark)
    for text in (CHINESE, TRADITIONAL, JAPANESE, KOREAN, FRENCH)
    for encoding, mark in (
        ("utf-8", b""), ("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE), ("utf-16-le", b""), ("utf-16-be", b""),
    )
]  # fmt: skip


def read(tmp_path: Path, data: bytes) -> MemorySink:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    return load(log, path)


def said(sink: MemorySink) -> list[tuple[int, str]]:
    rows = sink.rows("log_event")
    return [(r["line"], f"{r['exception']}: {r['message']}" if r["exception"] else r["message"]) for r in rows]


def wanted(text: str, first: int = 1) -> list[tuple[int, str]]:
    lines = enumerate(text.splitlines(), start=first)
    return [(n, line.partition(" ERROR ")[2] or line) for n, line in lines if "Error: " in line or " ERROR " in line]


def codes(sink: MemorySink) -> list[str]:
    return [warning["code"] for warning in sink.warnings]


@pytest.mark.parametrize(("text", "encoding"), LEGACY, ids=[encoding for _, encoding in LEGACY])
def test_lines_in_the_encoding_of_a_language_are_readable_and_the_guess_is_told(
    tmp_path: Path, text: str, encoding: str
) -> None:
    data = text.encode(encoding)
    sink = read(tmp_path, data)
    assert said(sink) == wanted(text)
    assert codes(sink) == ["guessed-encoding"]
    for row in sink.rows("log_event"):
        assert data[: row["byte"]].count(b"\n") == row["line"] - 1
        assert data[row["byte"] - 1 :][:1] == b"\n"
    assert log.recognise(Head("x", data, True)) >= 40


@pytest.mark.parametrize(("text", "encoding", "mark"), WIDE)
def test_unicode_text_needs_no_guess(tmp_path: Path, text: str, encoding: str, mark: bytes) -> None:
    data = mark + text.encode(encoding)
    sink = read(tmp_path, data)
    assert said(sink) == wanted(text)
    assert codes(sink) == []
    assert log.recognise(Head("x", data, True)) >= 40


def test_names_of_functions_and_files_in_stacks_are_readable(tmp_path: Path) -> None:
    frames = read(tmp_path, CHINESE.encode("gbk")).rows("stack")
    assert [(frame["function"], frame["file"]) for frame in frames] == [("读取配置", "/home/用户/训练.py")]


def test_each_line_of_several_encodings_is_read_in_its_own(tmp_path: Path) -> None:
    parts = [(CHINESE, "gbk"), (JAPANESE, "cp932"), (KOREAN, "euc_kr"), (CHINESE, "utf-8"), (FRENCH, "cp1252")]
    data = b"".join(text.encode(encoding) for text, encoding in parts)
    sink = read(tmp_path, data)
    first, expected = 1, []
    for text, _ in parts:
        expected += wanted(text, first)
        first += text.count("\n")
    assert said(sink) == expected
    assert {w["message"].split(" the likeliest")[0].rsplit(" ", 1)[1] for w in sink.warnings} == {
        "gb18030,", "cp932,", "cp949,", "cp1252,",
    }  # fmt: skip


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, b"\0", b"\0" * 300])
def test_marks_and_zeros_between_joined_files_move_nothing(tmp_path: Path, mark: bytes) -> None:
    head = b"start\n" * 20
    data = head + mark + CHINESE.encode()
    sink = read(tmp_path, data)
    assert said(sink) == wanted(CHINESE, 21)
    row = sink.rows("log_event")[0]
    assert data[row["byte"] :].startswith(b"FileNotFoundError: ")
    assert codes(sink) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("order", ["wide-last", "wide-first", "wide-between"])
def test_utf_16_before_or_behind_other_text_is_read(tmp_path: Path, encoding: str, marked: bool, order: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}[encoding] if marked else b""
    wide, plain = mark + JAPANESE.encode(encoding), CHINESE.encode()
    parts = {"wide-last": [plain, wide], "wide-first": [wide, plain], "wide-between": [plain, wide, plain]}[order]
    sink = read(tmp_path, b"".join(parts))
    first, expected = 1, []
    for part in parts:
        text = CHINESE if part is plain else JAPANESE
        expected += wanted(text, first)
        first += text.count("\n")
    assert said(sink) == expected
    assert codes(sink) == []


def test_damaged_utf_8_and_halves_of_pairs_are_not_taken_for_another_encoding(tmp_path: Path) -> None:
    cut = "RuntimeError: 显存不足，无法分配".encode()[:-1] + b"\n"
    half = b"ValueError: bad \xed\xa0\x80 token\n"
    pair = b"KeyError: '\xed\xa0\xbd\xed\xb8\x80'\n"
    sink = read(tmp_path, cut + half + pair)
    assert [text for _, text in said(sink)] == [
        "RuntimeError: 显存不足，无法分\ufffd", "ValueError: bad \ufffd token", "KeyError: '😀'",
    ]  # fmt: skip
    assert codes(sink) == []


def test_bytes_that_no_encoding_explains_are_replaced(tmp_path: Path) -> None:
    sink = read(tmp_path, b"RuntimeError: bad \xff\xfe\x80\x81\xff value\n")
    assert len(said(sink)) == 1
    assert codes(sink) == []


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=400), st.sampled_from(["gbk", "cp932", "utf-16-le", "utf-16-be", "utf-8"]), st.integers(0, 3))
def test_no_mixture_of_bytes_raises_or_loses_lines_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, encoding: str, cut: int
) -> None:
    text = "x\n".encode(encoding) * 40 + "RuntimeError: boom\n".encode(encoding)
    sink = read(tmp_path_factory.mktemp("mixed"), text + b"\n" + noise[cut:])
    assert (41, "RuntimeError: boom") in said(sink)


_FAILED = b'starts\nTraceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: no such shard\n'


@pytest.mark.parametrize("n_zeros", [512, 70_000, 3 << 20])
def test_a_log_behind_the_zeros_of_a_crash_is_read(tmp_path: Path, n_zeros: int) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(bytes(n_zeros) + _FAILED)
    (found,) = discover(path, tmp_path / "work")
    assert found.format == "log"
    assert [code for code, *_ in found.problems] == ["zeros"]
    (event,) = load(log, path).rows("log_event")
    assert event["message"] == "no such shard"
    assert event["byte"] == n_zeros + _FAILED.index(b"ValueError")


def test_a_hole_inside_a_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"step 1 loss 2.5\n" + bytes(9000) + _FAILED)
    sink = load(log, path)
    assert [(w["code"], w["message"].split()[0]) for w in sink.warnings] == [("zeros", "9000")]
    assert (sink.quality, len(sink.rows("log_event"))) == ("partial", 1)


@pytest.mark.parametrize("content", [bytes(9000), bytes(600) + gzip.compress(_FAILED), gzip.compress(_FAILED)[30:]])
def test_what_is_lost_for_a_log_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(content)
    (found,) = discover(path, tmp_path / "work")
    assert found.format is None
    assert found.problems


def test_the_guess_is_told_of_lines_that_say_nothing_and_once_for_lines_that_differ_in_digits(tmp_path: Path) -> None:
    text = "".join(f"第 {n} 步的训练已经完成\n" for n in range(40)) + "模型已经保存\n"
    sink = read(tmp_path, ("start\n" + text).encode("gb18030"))
    assert codes(sink) == ["guessed-encoding"]
    assert sink.warnings[0]["message"].startswith("2 different lines that were looked at are not UTF-8")
    assert sink.warnings[0]["line"] == 2
