"""Reads settings out of documents: JSON objects, and the part of YAML that configurations and manifests use.

Keys are joined with dots. YAML's anchors and tags are read as text; block scalars are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from forensics.formats._lenient_json import JsonWalk, Path, as_float, flatten
from forensics.formats._settings import Setting, number_of
from forensics.formats._text_lines import LineCounter

_MAX_DEPTH = 32
_MAX_LIST = 64
_YAML_KEY = re.compile(
    r"(\"[^\"]{1,200}\"|'[^']{1,200}'|[^\s:#{}\[\],&*!|>'\"%@`][^:#{}\[\]\"]{0,200}?)\s{0,20}:(?:\s{1,200}(.*))?"
)
_YAML_LINE = re.compile(r"\s{0,200}(?:- \S|-$|[\w.\-/\"']{1,200}:(?:\s|$)|#|---|\.\.\.$)")
_FLOW_MAP = re.compile(r"\{([^{}\[\]\"']{0,2000})\}")
# Top-level names under which snapshots of an environment keep what has a scope of its own.
_SCOPES = {
    "env": "variable",
    "environ": "variable",
    "environment": "variable",
    "variables": "variable",
    "versions": "version",
    "packages": "version",
}


def looks_like_yaml(lines: list[str]) -> bool:
    """Whether most lines are of YAML (block scalars hold any text), and at least one belongs to a block."""
    filled = [line for line in lines if line.strip()]
    nested = sum(line.startswith(("  ", "- ")) for line in filled)
    return (
        len(filled) > 1
        and nested > 0
        and sum(_YAML_LINE.match(line) is not None for line in filled) > 0.75 * len(filled)
    )


def json_settings(text: str) -> tuple[list[Setting], JsonWalk]:
    """Settings of a JSON object as far as it can be read, and the walk, which knows of damage."""
    walk = JsonWalk(text, lambda path, first: first == "[" or len(path) >= _MAX_DEPTH)
    lines = LineCounter(text)
    settings: list[Setting] = []
    for leaf in walk.leaves():
        settings += _of_value(leaf.path, leaf.value, lines.at(leaf.position))
    return settings, walk


def _of_value(path: Path, value: Any, line: int) -> Iterator[Setting]:
    if isinstance(value, list) and len(path) < _MAX_DEPTH and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value[:_MAX_LIST]):
            for key, inner in flatten(item, "."):
                yield from _of_value((*path, index, *([key] if key else [])), inner, line)
        return
    if isinstance(value, list | dict):
        text = _as_json(value[:_MAX_LIST] if isinstance(value, list) else value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        text = str(value)
    number = as_float(value) if not isinstance(value, str) else number_of(str(path[-1]) if path else "", value)
    yield scoped([str(part) for part in path], text, line, number)


def _as_json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested too deep, or integers beyond 64 bits
        return "…"


def scoped(names: list[str], value: str, line: int, number: float | None) -> Setting:
    """The setting at a path; what a snapshot of an environment keeps apart gets its scope."""
    if len(names) > 2 and names[-1] == "value":  # Weights & Biases writes {"lr": {"desc": null, "value": 0.1}}
        names = names[:-1]
    scope = _SCOPES.get(names[0], "option") if len(names) == 2 else "option"
    if scope != "option":
        key = names[1].lower().replace("_", "-") if scope == "version" else names[1]
        return Setting(key, value, scope, line, number)
    key = ".".join(names)
    if key in {"command", "cmd", "argv"}:
        return Setting("command", value, "command", line)
    if key in {"exit_code", "exitcode", "exitCode", "returncode"} and number is not None:
        return Setting("exit_code", value, "outcome", line, number)
    if key in {"rank", "world_size", "local_rank"}:
        return Setting(key, value, "distributed", line, number)
    return Setting(key, value, "host" if key == "hostname" else "option", line, number)


@dataclass(frozen=True)
class _Open:
    indent: int
    name: str
    is_item: bool


class YamlSettings:
    """Settings of YAML, line by line."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._counts: dict[tuple[str, ...], int] = {}
        self._block_indent: int | None = None

    def read(self, line: str, number: int) -> list[Setting]:
        content = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if self._block_indent is not None:
            if not content or indent > self._block_indent:
                return []
            self._block_indent = None
        if not content or content.startswith(("#", "---", "...", "%")):
            return []
        return self._read(indent, content, number, 0)

    def _read(self, indent: int, content: str, number: int, depth: int) -> list[Setting]:
        is_item = content == "-" or content.startswith("- ")
        while self._open and self._closes(self._open[-1], indent, is_item):
            self._open.pop()
        if len(self._open) >= _MAX_DEPTH or depth > 8:
            return []
        path = [entry.name for entry in self._open]
        if is_item:
            index = self._counts.get(tuple(path), 0)
            if len(self._counts) < 10_000 or tuple(path) in self._counts:
                self._counts[tuple(path)] = index + 1
            self._open.append(_Open(indent, str(index), True))
            rest = content[1:].lstrip()
            return self._read(indent + len(content) - len(rest), rest, number, depth + 1) if rest else []
        return self._read_pair(path, indent, content, number)

    def _read_pair(self, path: list[str], indent: int, content: str, number: int) -> list[Setting]:
        match = _YAML_KEY.fullmatch(content)
        if match is None:
            return [self._setting(path, content, number)] if path and self._open[-1].is_item else []
        name, value = match[1].strip("\"'"), (match[2] or "").split(" #")[0].strip()
        if not value:
            self._open.append(_Open(indent, name, False))
            return []
        if re.fullmatch(r"[|>][+-]?[0-9]?", value):
            self._block_indent = indent
            return []
        flow = _FLOW_MAP.fullmatch(value)
        pairs = [_YAML_KEY.fullmatch(part.strip()) for part in flow[1].split(",")] if flow else []
        if pairs and all(pairs):
            return [self._setting([*path, name, pair[1].strip("\"'")], pair[2] or "", number) for pair in pairs if pair]
        return [self._setting([*path, name], value, number)]

    @staticmethod
    def _closes(entry: _Open, indent: int, is_item: bool) -> bool:
        """A list may stand at the indentation of its key."""
        return entry.indent > indent or (entry.indent == indent and not (is_item and not entry.is_item))

    @staticmethod
    def _setting(names: list[str], value: str, number: int) -> Setting:
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        return scoped(names, value, number, number_of(names[-1], value))
