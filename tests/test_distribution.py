"""What a distribution asks for is what its modules import."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest
from support import ROOT

import forensics

OPTIONAL = {"dask", "distributed", "fsspec", "pandas"}  # of extras, and named where they are asked for and absent
ELSEWHERE = {"nsys_recipe", "pandas"}  # of Nsight Systems, which runs this module
THROUGH_OTHERS = {"markupsafe"}  # jinja2 is made of it


def modules() -> list[str]:
    return [found.name for found in pkgutil.walk_packages(forensics.__path__, "forensics.")]


@pytest.mark.installed
@pytest.mark.parametrize("name", [name for name in modules() if "nsys_recipes" not in name and "__main__" not in name])
def test_a_module_can_be_imported_with_what_is_installed(name: str) -> None:
    importlib.import_module(name)


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names of packages that are imported, and whether at once."""
    for node in ast.iter_child_nodes(tree):
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _only_for_types(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0], True
        yield from ((name, at_once and not inner) for name, at_once in imports(node))


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.checkout
def test_only_declared_packages_are_imported_and_those_of_extras_only_when_they_are_needed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    always = declared | THROUGH_OTHERS | set(sys.stdlib_module_names) | {"forensics"}
    for path in (ROOT / "forensics").rglob("*.py"):
        for name, at_once in imports(ast.parse(path.read_text("utf-8"))):
            known = always | (ELSEWHERE if "nsys_recipes" in path.parts else set()) | (set() if at_once else OPTIONAL)
            assert name in known, f"{path.relative_to(ROOT)} imports {name}"
