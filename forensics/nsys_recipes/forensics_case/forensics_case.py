"""A recipe that `nsys recipe` runs, in Nsight's Python: `forensics analyze` over each report, its tables as Parquet.

Made for `nsys_recipe` of Nsight Systems 2023.4, whose names are checked before they are used.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from nsys_recipe.lib import helpers, recipe
from nsys_recipe.lib.args import Option
from nsys_recipe.log import logger

_QUERIES = {
    "finding": "SELECT * FROM finding ORDER BY id",
    "slice": "SELECT s.* EXCLUDE (name_id), n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id"
    " ORDER BY s.artifact_id, s.row",
    "sample": "SELECT * EXCLUDE (name_id, entity_id) FROM metric ORDER BY artifact_id, row",
    "fact": "SELECT * FROM fact ORDER BY artifact_id, line, scope, key, value",
    "ingest_warning": "SELECT * FROM ingest_warning ORDER BY ALL",
}
_NEEDED = (
    (recipe, "Recipe"),
    (helpers, "filter_none"),
    (Option, "INPUT"),
    (Option, "OUTPUT"),
    (Option, "FORCE_OVERWRITE"),
)
for _owner, _name in _NEEDED:
    if not hasattr(_owner, _name):
        raise ImportError(f"nsys_recipe has no {_name}; this recipe was made for that of Nsight Systems 2023.4")


class ForensicsCase(recipe.Recipe):  # type: ignore[misc]
    @staticmethod
    def _mapper_func(report_path: str, cases: str) -> dict[str, pd.DataFrame] | None:
        name = Path(report_path).stem
        out = Path(cases) / name
        command = shlex.split(os.environ.get("FORENSICS_COMMAND", "forensics"))
        analyzed = subprocess.run(  # noqa: S603 - the site's own command
            [*command, "analyze", report_path, "--out", str(out), "--fail-on", "never", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        if analyzed.returncode != 0:
            logger.error(f"{report_path}: {analyzed.stderr.strip()[-500:]}")
            return None
        tables = {}
        for table, sql in _QUERIES.items():
            asked = subprocess.run(  # noqa: S603
                [*command, "query", str(out), sql, "--format", "csv"], capture_output=True, text=True, check=True
            )
            tables[table] = pd.read_csv(io.StringIO(asked.stdout), low_memory=False).assign(File=name)
        return tables

    def run(self, context: Any) -> None:
        super().run(context)
        cases = str(Path(self.get_output_dir()) / "cases")
        found = context.wait(context.map(self._mapper_func, self._parsed_args.input, cases=cases))
        answers = helpers.filter_none(found)
        for table in _QUERIES:
            frames = [tables[table] for tables in answers if not tables[table].empty]
            if frames:
                # Columns that are empty in one report would make one of objects of different kinds.
                joined = pd.concat(frames, ignore_index=True).dropna(axis="columns", how="all")
                joined.to_parquet(self.add_output_file(f"{table}.parquet"))
        self._analysis_dict.update(
            {"EndTime": str(datetime.now()), "InputFiles": self._parsed_args.input, "Outputs": self._output_files}
        )
        self.create_analysis_file()

    @classmethod
    def get_argument_parser(cls) -> Any:
        parser = super().get_argument_parser()
        parser.add_recipe_argument(Option.INPUT)
        parser.add_recipe_argument(Option.OUTPUT)
        parser.add_recipe_argument(Option.FORCE_OVERWRITE)
        return parser
