"""Finds the tensors, and the numbers and texts beside them, in what a checkpoint's pickle denotes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forensics.formats._symbolic_pickle import Opaque, Storage, Tensor
from forensics.formats._text_lines import clean_text

MAX_NODES = 1_000_000  # shared parts can denote far more values than a file has bytes
_MAX_DEPTH = 40
_MAX_NAME = 1000
_MAX_SETTINGS = 300
_SETTINGS_DEPTH = 4
# What torch.save of a whole module puts between the names of its parts.
_BETWEEN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks"}
_STEPS = ("global_step", "step", "global_steps", "iteration", "iter", "num_steps", "trainer_step")


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with the path of keys that leads to it, in the file's order; at most MAX_NODES values are seen."""
    for path, found in _leaves(value):
        if type(found) is Tensor:
            yield path, found


def settings_in(value: Any) -> dict[str, Any]:
    """Numbers and short texts near the top, by path."""
    found: dict[str, Any] = {}
    for path, leaf in _leaves(value):
        if type(leaf) in (str, int, float, bool) and path.count(".") < _SETTINGS_DEPTH:
            found[path] = clean_text(leaf)[:500] if isinstance(leaf, str) else leaf
            if len(found) >= _MAX_SETTINGS:
                break
    return found


def step_in(settings: dict[str, Any]) -> int | None:
    """The step that a checkpoint says it was saved at."""
    for name in _STEPS:
        value = settings.get(name)
        if type(value) is int and 0 <= value < 1 << 62:
            return value
    return None


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    waiting: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    n_seen = 0
    while waiting and n_seen < MAX_NODES:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        n_seen += 1
        path, found = pair
        parts = _parts(path, found)
        if parts is None:
            yield path, found
        elif len(waiting) < _MAX_DEPTH and len(path) < _MAX_NAME:
            waiting.append(parts)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]] | None:
    if type(value) is dict:
        return ((_join(path, key), part) for key, part in value.items())
    if type(value) in (list, tuple):
        return ((_join(path, number), part) for number, part in enumerate(value))
    if type(value) is Opaque:
        return _parts_of_record(path, value)
    if type(value) is Storage:
        return iter(())
    return None


def _parts_of_record(path: str, record: Opaque) -> Iterator[tuple[str, Any]]:
    for value in (record.state, record.arguments, record.items):
        if type(value) is dict:
            yield from ((_join(path, key), part) for key, part in value.items())
        elif value:
            yield path, value


def _join(path: str, key: Any) -> str:
    word = clean_text(key) if isinstance(key, str) else str(key) if type(key) is int else f"<{type(key).__name__}>"
    if word in _BETWEEN:
        return path
    return f"{path}.{word[:_MAX_NAME]}" if path else word[:_MAX_NAME]
