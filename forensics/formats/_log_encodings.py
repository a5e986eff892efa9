"""Text of logs that is not UTF-8: UTF-16, whole or in parts, and lines in the older encodings of one language.

UTF-16 becomes UTF-8 as it is read. Other lines keep their bytes: their encoding is guessed line by line, only where
UTF-8 fails, strictly, out of a short list, by how usual the characters are that it gives in this and similar lines.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, BinaryIO

from forensics.artifact import Sink

MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
LOOKED_AT = 4096  # bytes that tell UTF-16 without a mark
_CHUNK = 1 << 20
_CARRIED = 64
_RUN = 32  # bytes; as UTF-16, Chinese text of 16 characters is all printable ASCII once in millions of times
_ONE_BYTE = re.compile(rb"[\t\n\r\x20-\x7e]{%d}" % _RUN)
_TWO_BYTES = re.compile(
    rb"(?:[\t\n\r\x20-\x7e]\0){8}|(?:\0[\t\n\r\x20-\x7e]){8}|\xff\xfe(?=[^\0]\0)|\xfe\xff(?=\0[^\0])"
)
_PLAIN_BEGINNING = re.compile(rb"[^\0]{0,1024}?[\t\n\r\x20-\x7e]{16}")
_STUDIED = 500  # lines
_STUDIED_BYTES = 64 * 1024
_LEAST = 0.2  # what the characters of a line must be worth on average for a guess

_CANDIDATES = ("gb18030", "cp932", "cp949", "euc_jp", "cp950", "cp1252")
# First bytes of the commonest characters: level 1 of GB 2312, JIS X 0208 in both encodings, and Big5; Hangul of
# KS X 1001. Trail bytes of two of them are above 0xA0; below lie the rare characters of their extensions.
_FIRST_LEVEL = {
    "gb18030": (0xB0, 0xD8),
    "cp949": (0xB0, 0xC9),
    "cp932": (0x88, 0x98),
    "euc_jp": (0xB0, 0xD0),
    "cp950": (0xA4, 0xC7),
}
_COMMON = {
    "gb18030": "的一是不了在有和人这中大为上个以要时来用到作地于出就分对成会可主发动同能下过子面而方后多定行"
    "法所得经进等部度里如化自理起现实加量都制机当使点从本性应开合还因其些前外日相全表间与关各重新线内数正"
    "明看原利比或但质第向变条只没结解问意无系最已通并提直题程果料位入文总次式设及管件长求基流级少图统接知"
    "将组见计别期根运错误失败警告异常训练存显卡载读取写超连终止找",
    "cp949": "이다는을를의에가하고지한로니있습시스트오류메모리파일수없은도으기사자인대해서어아않실패못했음"
    "할당장치러를작업중됩초과연결종료드학습진행저장경로찾값",
    "cp950": "的一是不了在有和人這中大為上個以要時來用到作地於出就分對成會可發動同能下過子後多定行法無錯誤失敗"
    "找檔案記憶體訓練載入寫讀取連線",
}


def encoding_of(data: bytes) -> str | None:
    """UTF-16 by its mark, or by the zeros that every other byte of its ASCII characters is; None for anything else."""
    if found := MARKS.get(data[:2]):
        return found
    begin = data[: LOOKED_AT & ~1]
    if _PLAIN_BEGINNING.match(begin):
        return None
    even, odd = begin[::2].count(0), begin[1::2].count(0)
    least = max(len(begin) // 10, 4)
    if odd >= least and even * 50 < odd and b"\n\0" in begin:
        return "utf-16-le"
    return "utf-16-be" if even >= least and odd * 50 < even and b"\0\n" in begin else None


def holds_utf16(data: bytes) -> bool:
    """Whether UTF-16 stands somewhere in other text, as after PowerShell appended to a file."""
    return b"\0" in data and _TWO_BYTES.search(data) is not None


class Transcoded(io.RawIOBase):
    """UTF-16 as UTF-8. Parts of the same stream that are of single bytes stay as they are."""

    def __init__(self, stream: BinaryIO, first: bytes, encoding: str | None) -> None:
        """`encoding`: that of the beginning; None where it is of single bytes."""
        self._stream = stream
        self._given = first
        self._encoding = encoding
        self._last = encoding or "utf-16-le"
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            chunk = self._stream.read(_CHUNK)
            self._ended = not chunk
            self._given += chunk
            parts: list[bytes] = []
            while self._given and (part := self._next()) is not None:
                parts.append(part)
            self._ready = b"".join(parts)
        n = min(len(buffer), len(self._ready))
        buffer[:n], self._ready = self._ready[:n], self._ready[n:]
        return n

    def _next(self) -> bytes | None:
        """What can be told of the bytes at hand up to a change of encoding; None: more are needed."""
        encoding, data = self._encoding, self._given
        change = (_ONE_BYTE if encoding else _TWO_BYTES).search(data)
        end = change.start() if change else len(data) - (0 if self._ended else _CARRIED)
        if encoding and change:
            end = _end_of_wide(data, end, encoding)
        elif change:
            end += data[end] == 0x0A  # the end of a line before big-endian text
        elif encoding:
            end -= end & (not self._ended)
        if end <= 0 and change is None:
            return None
        part, self._given = data[: max(end, 0)], data[max(end, 0) :]
        if change:
            self._encoding = None if encoding else _encoding_at(self._given, self._last)
            self._last = self._encoding or self._last
        if encoding is None:
            return part
        return part.decode(encoding, "replace").encode("utf-8", "replace")


def _end_of_wide(data: bytes, at: int, encoding: str) -> int:
    """Where the last two-byte character before single bytes ends, a run of which begins at or shortly before `at`."""
    feed = b"\n\0" if encoding == "utf-16-le" else b"\0\n"
    line = data.rfind(feed, 0, at + 1) + 2
    if line >= 2 and line & 1 == 0 and b"\0" not in data[line:at] and _is_utf8(data[line:at]):
        return line  # what stands between is UTF-8
    if at & 1:
        return at + 1
    return at + 2 if data[at + 1 : at + 2] == b"\0" else at


def _encoding_at(data: bytes, last: str) -> str:
    if found := MARKS.get(data[:2]):
        return found
    return last if b"\0" not in data[:2] else "utf-16-be" if data[:1] == b"\0" else "utf-16-le"


class LineDecoder:
    """Texts of lines that are not UTF-8; tells what was guessed of the first of them, each wording once."""

    def __init__(self) -> None:
        self._worth = dict.fromkeys(_CANDIDATES, 0.0)
        self._n_bytes = 0
        self._studied: dict[bytes, int] = {}  # line of each

    def study(self, texts: Iterable[bytes], line_of: Callable[[int], int]) -> None:
        """Learns from lines without their digits, of which those in UTF-8 say nothing, which encodings the log has.

        `line_of` gives the first line of a text by its place.
        """
        for place, raw in enumerate(texts):
            if len(self._studied) >= _STUDIED or self._n_bytes > _STUDIED_BYTES:
                return
            if raw.isascii() or raw in self._studied or _is_utf8(raw):
                continue
            self._n_bytes += len(raw)
            self._studied[raw] = line_of(place)
            for encoding in _CANDIDATES:
                self._worth[encoding] += _worth(raw, encoding)[0]

    def text(self, raw: bytes) -> str:
        return self._guess(raw)[0]

    def _guess(self, raw: bytes) -> tuple[str, str | None]:
        """The text, and the encoding that was guessed; None where it is UTF-8, damaged at most, or nothing fits."""
        plain = _halves_joined(raw) or raw.decode("utf-8", "replace")
        n_bad = plain.count("\ufffd")
        if n_bad == 0 or sum(character > "\x7f" for character in plain) > 2 * n_bad:
            return plain, None  # damaged UTF-8
        found = {encoding: _worth(raw, encoding) for encoding in _CANDIDATES}
        known = max(2 * len(self._studied), 1)  # the line itself counts twice as much as the log
        best = max(_CANDIDATES, key=lambda encoding: found[encoding][0] + self._worth[encoding] / known)
        worth, text = found[best]
        return (plain, None) if text is None or worth < _LEAST else (text, best)

    def tell(self, sink: Sink) -> None:
        guessed: dict[str, list[int]] = {}
        for raw, line in self._studied.items():
            encoding = self._guess(raw)[1]
            if encoding is not None:
                guessed.setdefault(encoding, []).append(line)
        for encoding, lines in sorted(guessed.items(), key=lambda item: (-len(item[1]), item[1])):
            n, first = len(lines), min(lines)
            told = "1 line that was looked at is" if n == 1 else f"{n} different lines that were looked at are"
            sink.warn(
                "guessed-encoding",
                f"{told} not UTF-8 and read as {encoding}, the likeliest encoding; the first is line {first}",
                "letters other than ASCII in those lines, where the guess is wrong",
                line=first,
            )


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _halves_joined(raw: bytes) -> str | None:
    """Text whose surrogate pairs were encoded one by one (CESU-8); halves without the other become U+FFFD."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined if joined else None


def _worth(raw: bytes, encoding: str) -> tuple[float, str | None]:
    """How usual the characters are that a line would have, from -1 to 1, and the line; None where it has none."""
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        return -1.0, None
    worths = [_worth_of(text, at, encoding) for at, character in enumerate(text) if character > "\x7f"]
    return (sum(worths) / len(worths) if worths else -1.0), text


def _worth_of(text: str, at: int, encoding: str) -> float:
    character = text[at]
    if encoding == "cp1252":
        beside = text[max(at - 1, 0) : at] + text[at + 1 : at + 2]
        letter = "\u00c0" <= character <= "\u00ff" and beside.isascii() and any(c.isalpha() for c in beside)
        return 1.0 if letter else 0.2 if character in "\u2018\u2019\u201c\u201d\u2013\u2026\u00b0\u00b5\u00a0" else -1.0
    if "\u3000" <= character <= "\u3020" or "\uff01" <= character <= "\uff5e":
        return 0.3
    if "\u3041" <= character <= "\u30ff":
        return 1.0 if encoding in {"cp932", "euc_jp"} else -1.0
    if "\uac00" <= character <= "\ud7a3" and encoding != "cp949":
        return -1.0
    if character in _COMMON.get(encoding, ""):
        return 1.0
    return 0.4 if character in _first_level(encoding) else -1.0


@lru_cache(maxsize=len(_CANDIDATES))
def _first_level(encoding: str) -> frozenset[str]:
    first = 0xA1 if encoding in {"gb18030", "cp949"} else 0x40
    leads = range(*_FIRST_LEVEL.get(encoding, (0, 0)))
    pairs = (bytes((lead, trail)) for lead in leads for trail in range(first, 0xFF))
    return frozenset(pair.decode(encoding, "ignore") for pair in pairs)
