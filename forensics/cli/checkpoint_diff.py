"""`forensics checkpoint-diff A B`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forensics.models.checkpoint_diff import Branch

_STATES = {
    "moved": "moved",
    "equal": "equal",
    "shape": "of another shape",
    "dtype": "of another type",
    "only-a": "only in A",
    "only-b": "only in B",
    "unread": "not compared",
}
_SHOWN = 20  # children of one branch


def checkpoint_diff(a: Path, b: Path, /, *, depth: int = 3, format: Literal["tree", "json"] = "tree") -> int:
    """Compare two stored states: what moved, how far, and what only one of them holds.

    Parameters
    ----------
    a
        A checkpoint file, or the folder of one (shards).
    b
        The other one.
    depth
        Parts of the names that the tree shows.
    format
        tree, or json: one line a tensor.

    Exits with 1 when the states differ, with 0 when every tensor is equal.
    """
    from forensics.errors import ForensicsError
    from forensics.models.checkpoint_diff import diff_states, tree_of

    if depth < 0:
        raise ForensicsError(f"checkpoint-diff: --depth {depth}; expected 0 or more")
    diffs = diff_states(a, b)
    if format == "json":
        import orjson

        for diff in diffs:
            row = {"name": diff.name, "state": diff.state, "detail": diff.detail, "n_elements": diff.n_elements}
            row |= {"n_changed": diff.n_changed, "n_not_finite_any_more": diff.n_broken}
            known = diff.n_compared > 0  # a tensor without a finite element has no distance
            row |= {"max_distance": diff.max_distance if known else None}
            row |= {"relative_distance": diff.relative if known else None}
            print(orjson.dumps(row).decode())
    else:
        _print_branch(tree_of(diffs), 0, depth)
    return int(any(diff.state != "equal" for diff in diffs))


def _print_branch(branch: Branch, level: int, depth: int) -> None:
    said = ", ".join(f"{branch.states[state]} {word}" for state, word in _STATES.items() if state in branch.states)
    if branch.squares:
        said += f"; relative distance {branch.relative:.3g}, largest {branch.max_distance:.3g}"
    if branch.n_broken:
        said += f"; {branch.n_broken} elements not finite any more"
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in branch.name)[:200]
    print(f"{'  ' * level}{name or 'all'}: {said}")
    if level >= depth or set(branch.states) == {"equal"}:
        return
    ranked = sorted(branch.children.values(), key=lambda child: (-child.n_broken, _is_equal(child), -child.relative))
    for child in ranked[:_SHOWN]:
        _print_branch(child, level + 1, depth)
    if len(ranked) > _SHOWN:
        print(f"{'  ' * (level + 1)}… {len(ranked) - _SHOWN} more; --format json gives all")


def _is_equal(branch: Branch) -> bool:
    return set(branch.states) == {"equal"}
