"""Finds the files that ship with the package: in the wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import ResourceNotFound

_PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """Folder `rules` or `reports`; raises ResourceNotFound when neither wheel nor checkout holds it."""
    shipped = _PACKAGE / f"_{name}"
    if shipped.is_dir():
        return shipped
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise ResourceNotFound(f"{shipped}: not found; expected a folder that ships with the package; install it again")


def schema_sql() -> str:
    return (_PACKAGE / "schema.sql").read_text(encoding="utf-8")
