"""What a browser makes of the page: the policy admits our script, and without it everything is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import report_demo as demo
from report_tree import Node, parse
from test_report_page import hostile_report

from forensics.report.html import render_html
from forensics.report.view import Report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is absent")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"),
]


def opened(report: Report, folder: Path, *flags: str) -> Node:
    """The document after the browser has loaded it and run its script."""
    file = folder / "report.html"
    file.write_text(render_html(report), encoding="utf-8")
    command = [CHROMIUM or "", *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, file.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return parse(done.stdout.decode("utf-8"))


def test_the_script_adds_copy_buttons_and_a_filter(tmp_path: Path) -> None:
    page = opened(demo.root_cause(), tmp_path)
    assert all(box.one("button").text == "Copy" for box in page.all("div", "copy"))
    tools = page.by_id("tools")
    assert "hidden" not in tools.attributes
    assert tools.one("label").attributes["for"] == tools.one("input").attributes["id"]
    assert [button.text for button in tools.all("button")] == ["Expand all", "Keys j k e /"]


def test_a_hostile_report_runs_nothing_of_its_own(tmp_path: Path) -> None:
    page = opened(hostile_report(), tmp_path)
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert page.by_id("tools").all("input"), "the page's own script still ran"
