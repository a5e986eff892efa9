"""Reviews are kept by fingerprint over a re-run, packed cases hold no secret, and --no-redact shows what is there."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.errors import ForensicsError
from forensics.investigation import Case
from forensics.reviews import Review, exported, read_reviews, record

pytestmark = pytest.mark.installed

LOG = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/home/alice/train.py", line 3, in <module>\n'
    "[rank0]: OSError: [Errno 28] No space left on device: '/home/alice/a.pt' (password: hunter2hunter2,"
    " hf_abcdefghijklmnopqrstuv)\n"
)
SECRETS = (b"hunter2hunter2", b"hf_abcdefghijklmnopqrstuv", b"/home/alice")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    inside = folder / "artifacts" / SECRETS[1].decode()  # paths are texts of artifacts too
    inside.mkdir(parents=True)
    (inside / "rank0.log").write_text(LOG)
    run("analyze", str(folder / "artifacts"), "--out", str(folder / "out"), "--quiet", "--no-redact")
    assert SECRETS[0] in (folder / "out" / "report.json").read_bytes(), "--no-redact shows it"
    run("pack", str(folder / "out"), "--out", str(folder / "raw.zip"))
    first = json.loads((folder / "out" / "report.json").read_bytes())["findings"][0]["fingerprint"]
    assert run("review", str(folder / "out"), first[:8], "--confirm", "--note", "seen <b>twice</b>") == 0
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run("analyze", str(folder / "artifacts"), "--out", str(folder / "out"))
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


def test_no_secret_is_in_page_json_or_pack(analyzed: Path, tmp_path: Path) -> None:
    out = analyzed / "out"
    record(out, [Review("0" * 24, "open", "see password: hunter2hunter2")])
    assert run("pack", str(out), "--out", str(tmp_path / "a.zip")) == 0
    held = {
        "terminal": (analyzed / "printed.txt").read_bytes(),
        "page": (out / "report.html").read_bytes(),
        "json": (out / "report.json").read_bytes(),
    }
    for archive in (tmp_path / "a.zip", analyzed / "raw.zip"):
        with zipfile.ZipFile(archive) as bundle:
            held |= {f"{archive.name}/{name}": bundle.read(name) for name in bundle.namelist()}
    assert "a.zip/report.html" in held and "raw.zip/report.html" not in held, "an unmasked page is left out"
    assert [(name, secret) for name, content in held.items() for secret in SECRETS if secret in content] == []
    json.loads(held["a.zip/report.json"])


def test_a_packed_case_answers_as_the_case_does(analyzed: Path, tmp_path: Path) -> None:
    run("pack", str(analyzed / "out"), "--out", str(tmp_path / "a.zip"))
    with zipfile.ZipFile(tmp_path / "a.zip") as bundle:
        bundle.extract("case.duckdb", tmp_path)
    sql = "SELECT (SELECT count(*) FROM log_event), (SELECT count(*) FROM string), (SELECT count(*) FROM finding)"
    with Case(tmp_path) as packed, Case(analyzed / "out") as whole:
        assert packed.query(sql).fetchall() == whole.query(sql).fetchall()
        message = packed.query("SELECT message FROM log WHERE exception IS NOT NULL").fetchall()[0][0]
        assert "***" in message and "No space left" in message


def test_a_review_is_kept_over_a_rerun_and_shown(analyzed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = analyzed / "out"
    findings = json.loads((out / "report.json").read_bytes())["findings"]
    page = (out / "report.html").read_text()
    assert "Confirmed in review." in page and "seen &lt;b&gt;twice" in page
    capsys.readouterr()
    assert run("review", str(out)) == 0
    assert f"confirmed  {findings[0]['rule']}" in capsys.readouterr().out


def test_an_exported_file_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    known = {"abc": "host-oom"}
    good = {"format": "forensics.reviews/1", "reviews": [{"fingerprint": "abc", "state": "dismissed", "note": "n"}]}
    assert exported(json.dumps(good).encode(), known) == [Review("abc", "dismissed", "n", "host-oom")]
    for bad in (
        b"{",
        b"[]",
        json.dumps({**good, "reviews": [*good["reviews"], {"fingerprint": "zzz", "state": "confirmed"}]}).encode(),
        json.dumps({**good, "reviews": [{"fingerprint": "abc", "state": "<b>"}]}).encode(),
    ):
        with pytest.raises(ForensicsError):
            exported(bad, known)


def test_the_last_word_counts_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, [Review("abc", "confirmed"), Review("abc", "dismissed", "no")])
    with (tmp_path / "reviews.jsonl").open("ab") as file:
        file.write(b'{"fingerprint": "abc", "sta')
    assert read_reviews(tmp_path) == {"abc": Review("abc", "dismissed", "no")}
