"""Loads the rule library: every rule file below `rules/` and below a site's own folders."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from forensics.errors import RuleError
from forensics.resources import resource_folder
from forensics.rule import PythonRule, Question, Row, Rule, Threshold, Variant, alternatives
from forensics.states import CAPABILITIES, SEVERITIES, STATES, STRENGTHS

_FRONT = re.compile(r"\A\s*/\*(.*?)\*/(.*)\Z", re.DOTALL)
_SECTION = re.compile(r"^--\s*(variant|against):\s*([\w-]+)\s*$", re.MULTILINE)
# Their result depends on the order in which rows arrive, which no SELECT promises.
_ORDER_DEPENDENT = re.compile(
    r"\b(first|last|any_value|arbitrary|list|array_agg|string_agg|group_concat)\s*\(", re.IGNORECASE
)
_TEXTS = ("title", "proves", "cannot_prove", "message", "fix")
_MEASURED = re.compile(r"([a-z]\w*( / [\w.]+)?)?")
_VARIANT_KEYS = {"needs", "strength", "proves", "says"}
_KEYS = {*_TEXTS, "severity", "role", "scope", "causes", "requires", "references", "thresholds", "variant"}


def load_rules(folders: Sequence[Path] = (), thresholds: Mapping[str, Mapping[str, float]] | None = None) -> list[Rule]:
    """All rules sorted by id; `folders` adds a site's rules, `thresholds` overrides values by rule and name.

    Raises RuleError naming the file and what is wrong with it.
    """
    found: dict[str, Rule] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RuleError(f"{folder}: not found; expected a folder of rules")
        stray = sorted([*folder.glob("*.sql"), *folder.glob("*.py")])
        if stray:
            raise RuleError(f"{stray[0]}: lies directly in the folder of rules; expected {folder}/FAMILY/NAME.sql")
    for root in (resource_folder("rules"), *folders):
        for path in sorted([*root.glob("*/*.sql"), *root.glob("*/*.py")]):
            if path.parent.name.startswith("_") or path.name.startswith("_"):
                continue
            loaded = _loaded_once(path, *_version(path))
            if loaded.id in found:
                raise RuleError(f"{path}: rule {loaded.id} is already defined by {found[loaded.id].path}; rename one")
            found[loaded.id] = loaded
    for name, values in (thresholds or {}).items():
        if name not in found:
            raise RuleError(f"configuration: thresholds for {name}; there is no such rule")
        found[name] = _override(found[name], values)
    return [found[name] for name in sorted(found)]


def load_views(folders: Sequence[Path] = ()) -> list[str]:
    """SQL of the shared views in `_views` folders, in the order of their names."""
    files = [path for root in (resource_folder("rules"), *folders) for path in sorted(root.glob("_views/*.sql"))]
    return [path.read_text(encoding="utf-8") for path in files]


def _version(path: Path) -> tuple[int, int]:
    told = path.stat()
    return told.st_mtime_ns, told.st_size


@lru_cache(maxsize=1024)
def _loaded_once(path: Path, modified_ns: int, size: int) -> Rule:
    """Rules never change once loaded, and reading all of them takes a fifth of the time of a small analysis."""
    return load_rule(path)


def load_rule(path: Path) -> Rule:
    """One rule file; raises RuleError."""
    try:
        return _parsed(path, path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise RuleError(f"{path}: {error}; expected a rule as rules/README.md describes it") from error


@lru_cache(maxsize=1024)
def _parsed(path: Path, content: str) -> Rule:
    """The same content is parsed once; `content` is what the file holds now."""
    rule_id = f"{path.parent.name}-{path.stem.replace('_', '-')}"
    return _python_rule(rule_id, path) if path.suffix == ".py" else _sql_rule(rule_id, path, content)


def _sql_rule(rule_id: str, path: Path, content: str) -> Rule:
    parts = _FRONT.match(content)
    if not parts:
        raise RuleError(f"{path}: no front matter; expected TOML in a block comment at the top")
    pieces = _SECTION.split(parts[2])
    if pieces[0].strip():
        raise RuleError(f"{path}: SQL before the first '-- variant: NAME' line")
    bodies: dict[str, dict[str, str]] = {"variant": {}, "against": {}}
    for section, name, sql in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        bodies[section][name] = sql.strip().rstrip(";")
        _check_sql(path, name, bodies[section][name])
    if stray := sorted(bodies["against"].keys() - bodies["variant"].keys()):
        raise RuleError(f"{path}: '-- against: {stray[0]}' has no variant of that name")
    return _build(rule_id, path, tomllib.loads(parts[1]), bodies["variant"], {}, bodies["against"])


def _check_sql(path: Path, variant: str, sql: str) -> None:
    bare = re.sub(r"--[^\n]*|'(?:[^']|'')*'", " ", sql)
    for match in _ORDER_DEPENDENT.finditer(bare):
        depth, end = 1, match.end()
        while depth and end < len(bare):
            depth += {"(": 1, ")": -1}.get(bare[end], 0)
            end += 1
        if not re.search(r"\bORDER\s+BY\b", bare[match.end() : end], re.IGNORECASE):
            raise RuleError(
                f"{path}: variant {variant} uses {match[1]}() without ORDER BY; its result depends on row order"
            )
    if not re.search(r"\bORDER\s+BY\b[^()]*\Z", bare, re.IGNORECASE):
        raise RuleError(f"{path}: variant {variant} does not end in ORDER BY; findings need a fixed order")


def _python_rule(rule_id: str, path: Path) -> Rule:
    name = f"forensics_rule_{rule_id.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path}: cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up there while it executes
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RuleError(f"{path}: {type(error).__name__}: {error}") from error
    declared = [value for value in vars(module).values() if isinstance(value, PythonRule)]
    if len(declared) != 1:
        raise RuleError(f"{path}: found {len(declared)} functions with @rule; expected one")
    return _build(rule_id, path, declared[0].front, {}, declared[0].functions, {})


def _build(
    rule_id: str,
    path: Path,
    front: Mapping[str, Any],
    bodies: Mapping[str, str],
    functions: Mapping[str, Callable[[Question], Iterable[Row]]],
    against: Mapping[str, str],
) -> Rule:
    _check_front(path, front, {*bodies, *functions})
    variants = [
        Variant(
            name,
            tuple(given["needs"]),
            given["strength"],
            _line(given.get("proves", "")) or _line(front.get("proves", "")),
            given.get("says", "").strip(),
            bodies.get(name),
            functions.get(name),
            against.get(name),
        )
        for name, given in front["variant"].items()
    ]
    variants.sort(key=lambda v: STRENGTHS.index(v.strength))
    return Rule(
        id=rule_id,
        path=str(path),
        **{key: _line(front[key]) for key in _TEXTS if key != "proves"},
        proves=_line(front.get("proves", "")) or " ".join(dict.fromkeys(v.proves for v in variants)),
        severity=front["severity"],
        role=front.get("role", "cause"),
        scope=front.get("scope", "process"),
        causes=tuple(front.get("causes", ())),
        requires=tuple(front.get("requires", ())),
        references=tuple(front.get("references", ())),
        thresholds={
            name: Threshold(name, float(t["value"]), t["unit"], t["why"], t.get("measured", ""))
            for name, t in front.get("thresholds", {}).items()
        },
        variants=tuple(variants),
    )


def _line(text: str) -> str:
    return " ".join(text.split())


def _check_front(path: Path, front: Mapping[str, Any], bodies: set[str]) -> None:
    problems = [f"unknown key {key}" for key in front if key not in _KEYS]
    variants = front.get("variant", {})
    told = {"proves"} if variants and all(variant.get("proves") for variant in variants.values()) else set()
    problems += [
        f"{key} is missing" for key in (*_TEXTS, "severity", "variant") if key not in told and not front.get(key)
    ]
    if front.get("severity") not in SEVERITIES:
        problems.append(f"severity {front.get('severity')!r} is none of {', '.join(SEVERITIES)}")
    if front.get("role", "cause") not in {"cause", "symptom", "performance"}:
        problems.append(f"role {front.get('role')!r} is none of cause, symptom, performance")
    if front.get("scope", "process") not in {"process", "job"}:
        problems.append(f"scope {front.get('scope')!r} is neither process nor job")
    for link in (*front.get("causes", ()), *front.get("requires", ())):
        state = STATES.get(link.get("state", ""))
        if state is None:
            problems.append(f"unknown state {link.get('state')!r}")
        elif link.get("of", state.entity) != state.entity:
            problems.append(f"{link['state']} is a state of a {state.entity}, not of a {link['of']}")
    for name, variant in variants.items():
        problems += [f"variant {name}: unknown key {key}" for key in variant if key not in _VARIANT_KEYS]
        if name not in bodies:
            problems.append(f"variant {name} has no SQL")
        if variant.get("strength") not in STRENGTHS:
            problems.append(f"variant {name}: strength {variant.get('strength')!r} is none of {', '.join(STRENGTHS)}")
        needs = variant.get("needs", [])
        problems += [
            f"variant {name}: unknown capability {n}" for n in needs if not set(alternatives(n)) <= set(CAPABILITIES)
        ]
        if not needs:
            problems.append(f"variant {name} needs no capability")
    problems += [f"SQL for the undeclared variant {name}" for name in bodies - set(variants)]
    problems += [
        f"threshold {name}: measured is none of column, column / column, column / number"
        for name, threshold in front.get("thresholds", {}).items()
        if not _MEASURED.fullmatch(threshold.get("measured", ""))
    ]
    if problems:
        raise RuleError(f"{path}: {'; '.join(problems)}")


def _override(found: Rule, values: Mapping[str, float]) -> Rule:
    from dataclasses import replace

    unknown = set(values) - set(found.thresholds)
    if unknown:
        raise RuleError(f"configuration: {found.id} has no threshold {', '.join(sorted(unknown))}")
    changed = {n: replace(t, value=float(values.get(n, t.value))) for n, t in found.thresholds.items()}
    return replace(found, thresholds=changed)
