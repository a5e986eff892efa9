"""Where things lie in the folder of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from forensics.errors import ForensicsError

FORMAT = "forensics.fleet/1"


@dataclass(frozen=True)
class Fleet:
    """Paths of one fleet. `open_fleet` checks that there is one, `create_fleet` makes it."""

    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    @property
    def rows(self) -> Path:
        return self.folder / "rows"

    @property
    def packed(self) -> Path:
        return self.folder / "packed"

    @property
    def derived(self) -> Path:
        return self.folder / "derived"

    @property
    def pages(self) -> Path:
        return self.folder / "pages"

    @property
    def rule_pages(self) -> Path:
        return self.folder / "rules"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def row(self, key: str) -> Path:
        return self.rows / f"{key}.parquet"

    @property
    def _mark(self) -> Path:
        return self.folder / "fleet.json"

    def create(self) -> None:
        """Makes the folders. Raises ForensicsError where the folder holds something else."""
        if self.folder.exists() and not self._mark.exists() and self.folder.is_dir():
            strange = [p.name for p in self.folder.iterdir() if p.name not in {"lock", "jobs", "rows", "packed"}]
            if strange:
                raise ForensicsError(f"{self.folder}: holds {strange[0]}; expected a fleet, or an empty or new folder")
        for folder in (self.jobs, self.rows, self.packed):
            folder.mkdir(parents=True, exist_ok=True)
        if not self._mark.exists():
            write_whole(self._mark, orjson.dumps({"format": FORMAT}) + b"\n")

    def check(self) -> None:
        """Raises ForensicsError where there is no fleet that this version can read."""
        try:
            said = orjson.loads(self._mark.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise ForensicsError(f"{self.folder}: no fleet; expected what `forensics batch --out` wrote") from error
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise ForensicsError(f"{self._mark}: not of format {FORMAT}; expected a fleet that this version wrote")


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file: readers see the old content or the new, never a part."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
