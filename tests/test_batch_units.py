"""The unit files in deploy/: their syntax, and that they name commands, options and metrics that exist."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from fleet_rows import make_row, write_fleet
from support import ROOT

from forensics.cli.batch import batch
from forensics.fleet.publish import write_metrics
from forensics.fleet.warehouse import open_fleet

pytestmark = pytest.mark.checkout
DEPLOY = ROOT / "deploy"
_OPTION = re.compile(r"(?<![\w-])--([a-z-]+)")


def options_exist(text: str) -> None:
    known = {name.replace("_", "-") for name in inspect.signature(batch).parameters}
    assert set(_OPTION.findall(text)) <= known


def test_the_script_runs_the_batch_with_what_the_environment_names(tmp_path: Path) -> None:
    script = DEPLOY / "forensics-batch.sh"
    options_exist(
        "\n".join(line for line in script.read_text().splitlines() if "forensics batch" in line or "+=" in line)
    )
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "forensics").write_text('#!/bin/sh\necho "$@" >"$FAKE_OUT"\nexit "$FAKE_CODE"\n')
    (fake / "sacct").write_text("#!/bin/sh\necho 'JobID|State'\n")
    for path in fake.iterdir():
        path.chmod(0o755)
    environment = {
        "PATH": f"{fake}:{os.environ['PATH']}", "FORENSICS_JOBS": "/a b", "FORENSICS_FLEET": "/f", "FORENSICS_SITE": "https://x",
        "FAKE_OUT": str(tmp_path / "out"), "FORENSICS_ALL": "1",
    }  # fmt: skip
    codes = {}
    for code in "012":
        given = {**environment, "FAKE_CODE": code}
        codes[code] = subprocess.run(["bash", str(script)], env=given, check=False).returncode
    assert codes == {"0": 0, "1": 0, "2": 1}
    assert re.fullmatch(r"batch /a b --out /f --sacct \S+ --all --site https://x\n", (tmp_path / "out").read_text())
    del environment["FORENSICS_JOBS"]
    assert subprocess.run(["bash", str(script)], env=environment, capture_output=True, check=False).returncode != 0


def test_shell_and_cron_files_are_well_formed() -> None:
    for name in ("forensics-batch.sh", "forensics-batch.sbatch"):
        assert subprocess.run(["bash", "-n", str(DEPLOY / name)], check=False).returncode == 0
    lines = [line for line in (DEPLOY / "forensics.cron").read_text().splitlines() if line and line[0] not in "#"]
    (entry,) = [line.split() for line in lines if "=" not in line.partition(" ")[0]]
    assert entry[2:5] == ["*", "*", "*"] and int(entry[0]) < 60 and int(entry[1]) < 24 and entry[5] == "forensics"
    assert entry[-1].endswith("/forensics-batch.sh")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="asks systemd")
def test_systemd_finds_no_fault_with_its_units(tmp_path: Path) -> None:
    verify = ["systemd-analyze", "verify", "--man=no"]
    units = [shutil.copy(DEPLOY / f"forensics-batch.{kind}", tmp_path) for kind in ("service", "timer")]
    said = subprocess.run([*verify, *units], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and not [line for line in said.stderr.splitlines() if "forensics" in line], said.stderr
    Path(units[0]).write_text(Path(units[0]).read_text().replace("Type=oneshot", "Type=once"))
    said = subprocess.run([*verify, units[0]], capture_output=True, text=True, check=False)
    assert "once" in said.stderr  # it would have been said


def test_the_schema_of_kubernetes_takes_the_cron_job() -> None:
    validate, yaml = pytest.importorskip("kubernetes_validate"), pytest.importorskip("yaml")
    job = yaml.safe_load((DEPLOY / "forensics-cronjob.yaml").read_text())
    validate.validate(job, "1.29", strict=True)
    job["spec"]["concurrencyPolice"] = "Forbid"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.29", strict=True)


def test_kubernetes_runs_a_batch_that_exists_and_forbids_two_at_a_time() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((DEPLOY / "forensics-cronjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["concurrencyPolicy"]) == ("batch/v1", "CronJob", "Forbid")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options_exist(" ".join(container["command"]))
    assert container["command"][:2] == ["forensics", "batch"]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


def test_alerts_ask_for_metrics_that_are_written(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    fleet = write_fleet(tmp_path, [make_row("a", "host-disk")])
    with closing(open_fleet(fleet)) as con:
        write_metrics(fleet, con, "", 1.0, {"n_found": 3})
    written = (fleet.folder / "metrics.prom").read_text()
    (group,) = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        (name,) = re.findall(r"forensics_\w+", rule["expr"])
        assert f"# TYPE {name} gauge" in written
        labels = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        series = next(line for line in written.splitlines() if line.startswith(f"{name}{{"))
        assert all(f"{label}=" in series for label in labels)
