"""What a browser makes of the page: it asks for nothing, complains of nothing, and reads without scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_demo as demo
from browser import AXE, CHROMIUM, Page, browser
from page_checks import faults
from test_report_page import hostile_report

from forensics.pipeline import analyze
from forensics.report.html import render_html
from forensics.report.view import Report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is absent")
REPORTS = {
    "root-cause": demo.root_cause,
    "not-established": demo.not_established,
    "healthy": demo.healthy,
    "hostile": hostile_report,
}
# The contrast of every text with what is behind it, where both are plain colours (WCAG 2.2 AA: 4.5, large text 3).
CONTRAST = """(() => {
  const rgb = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest("svg, .out, .say, :disabled")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgb(style.color)), light(behind(node))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) poor.push(`${node.className}: ${node.textContent.slice(0, 40)}`);
  }
  return [...new Set(poor)];
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def written(report: Report, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_bytes(render_html(report).encode("utf-8", "replace"))
    return file


@pytest.mark.parametrize("name", list(REPORTS))
def test_the_page_asks_for_nothing_and_complains_of_nothing(name: str, page: Page, tmp_path: Path) -> None:
    file = written(REPORTS[name](), tmp_path)
    page.open(file)
    assert page.requests == [file.as_uri(), *[r for r in page.requests[1:] if r == "data:,"]]
    assert page.complaints == []
    assert page.run("document.querySelectorAll('script').length") == 1
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert page.run("document.querySelectorAll('button').length") > 2, "the page's own script ran"


def test_every_text_has_contrast_in_light_and_dark(page: Page, tmp_path: Path) -> None:
    file = written(demo.root_cause(), tmp_path)
    for dark in (False, True):
        page.dark(dark)
        page.open(file)
        assert page.run(CONTRAST) == []
    page.dark(False)


@pytest.mark.skipif(AXE is None, reason="axe-core is absent")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["root-cause", "not-established", "healthy"])
def test_axe_finds_nothing(name: str, dark: bool, page: Page, tmp_path: Path) -> None:
    page.open(written(REPORTS[name](), tmp_path))
    assert page.axe(dark=dark) == []


@pytest.mark.skipif(AXE is None, reason="axe-core is absent")
def test_axe_is_not_silent_over_a_page_that_cannot_be_read(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "poor.html"
    file.write_text("<title>poor</title><img src='data:,'><button></button><p style='color:#ccc'>pale</p>")
    page.open(file)
    named = {said.partition(":")[0] for said in page.axe()}
    assert {"image-alt", "button-name", "html-has-lang", "color-contrast"} <= named


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_runs_out_of_the_page(width: int, page: Page, tmp_path: Path) -> None:
    page.open(written(demo.root_cause(), tmp_path), width=width)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_without_scripts_every_finding_picture_and_table_is_there(page: Page, tmp_path: Path) -> None:
    page.scripts(False)
    try:
        page.open(written(demo.root_cause(), tmp_path))
        shown = "[...document.querySelectorAll('svg.plot')].filter((n) => n.getBoundingClientRect().width > 0).length"
        assert page.run(shown) == 10
        assert page.run("document.querySelector('h1').innerText").startswith("A NaN was born")
        assert page.run("document.querySelectorAll('button').length") == 0
    finally:
        page.scripts(True)


def test_the_keyboard_reaches_findings_drawings_and_reviews(page: Page, tmp_path: Path) -> None:
    page.open(written(demo.root_cause(), tmp_path))
    page.press("Tab")
    assert page.run("document.activeElement.className") == "skip"
    page.press("j")
    assert page.run("document.activeElement.tagName") == "SUMMARY"
    page.run("document.querySelector('.picture').focus()")
    before = page.run("document.querySelector('.picture svg').getAttribute('viewBox')")
    page.press("+")
    assert page.run("document.querySelector('.picture svg').getAttribute('viewBox')") != before
    page.press("0")
    assert page.run("document.querySelector('.picture svg').getAttribute('viewBox')") == before
    page.run("document.querySelector('svg.memory').focus()")
    page.press("ArrowRight")
    assert "live" in page.run("document.querySelector('.say').textContent")
    page.run("document.querySelector('.review button').focus()")
    page.press("Enter")
    assert page.run("document.querySelector('#tools').innerText").endswith("Export 1 review")
    assert page.complaints == []


def test_a_drawing_is_read_under_the_pointer(page: Page, tmp_path: Path) -> None:
    page.open(written(demo.root_cause(), tmp_path))
    x, y = page.run(
        "(() => { const s = document.querySelector('svg.memory'); s.scrollIntoView({ behavior: 'instant' });"
        " const b = s.getBoundingClientRect(); return [b.x + b.width / 2, b.y + 40]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert "MiB" in page.run("document.querySelector('svg.memory .read:last-child').textContent")


def test_it_prints_all_that_is_folded(page: Page, tmp_path: Path) -> None:
    report = demo.root_cause()
    page.open(written(report, tmp_path))
    printed = page.pdf()
    assert printed.startswith(b"%PDF-")
    page.open(written(dataclasses.replace(report, findings=report.findings[:1]), tmp_path))
    assert len(page.pdf()) < len(printed), "findings that are folded are printed too"


def test_the_fullest_page_opens_at_once_and_its_lines_follow_the_pointer(page: Page, tmp_path: Path) -> None:
    """8 ranks with 100 000 points each, every picture at its bound. In ms of the browser's own clock."""
    page.open(written(demo.fullest(), tmp_path))
    loaded = page.run("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    moved = page.run(
        """(() => {
          const times = [];
          for (const svg of document.querySelectorAll('svg.series')) {
            const box = svg.getBoundingClientRect();
            for (let i = 1; i < 20; i++) {
              const before = performance.now();
              const at = { clientX: box.x + box.width * i / 20, clientY: box.y + 60, bubbles: true };
              svg.dispatchEvent(new PointerEvent('pointermove', at));
              times.push(performance.now() - before);
            }
          }
          return times.sort((a, b) => a - b);
        })()"""
    )
    assert page.complaints == []
    assert loaded < 20_000, "six seconds were measured where nine processes shared two cores"
    assert len(moved) == 19 * 5 and moved[len(moved) // 2] < 16, "a frame of the screen"


def test_a_job_with_hostile_names_and_lines_gets_a_page_that_keeps_to_its_policy(page: Page, tmp_path: Path) -> None:
    artifacts = tmp_path / "<svg onload=alert(1)>"
    artifacts.mkdir()
    name = "\"><img src=x onerror=alert(2)>&'.log"
    (artifacts / name).write_text(
        "Traceback (most recent call last):\n"
        '  File "</script><script>alert(3)</script>.py", line 3, in <module>\n'
        "RuntimeError: <iframe src=https://example.org></iframe> \u202e {{7*7}} \x1b[31m" + "w" * 3000 + "\n"
    )
    analyze(artifacts, tmp_path / "out")
    assert faults(page, tmp_path / "out" / "report.html") == []
    assert page.run("document.querySelectorAll('img, iframe, svg[onload], script').length") == 1
    assert "<img src=x onerror=alert(2)>" in page.run("document.body.textContent")


def test_each_check_of_a_page_finds_what_it_is_for(page: Page, tmp_path: Path) -> None:
    whole = written(demo.root_cause(), tmp_path)
    assert faults(page, whole) == []
    text = whole.read_text(encoding="utf-8")
    body = text.index("<main")
    place = text.index(">", body) + 1
    bad = (
        "<p><a href='javascript:x()'>a</a><i>one</i><b>two</b></p><p style='width:900px'>broad</p>"
        "<p hidden>unseen</p><p><a href='#x' class='bare'>b</a></p><button>of its own</button>"
        "<svg role='img' class='plot' viewBox='0 0 100 50'><text x='5' y='20'>first</text>"
        "<text x='8' y='21'>second</text></svg>"
    )
    broken = tmp_path / "broken.html"
    broken.write_text(text[:place] + bad + text[place:], encoding="utf-8")
    found = "\n".join(faults(page, broken))
    for said in (
        "without scripts: its own script ran",
        "Applying inline style violates",
        "not inert: <a href",
        "runs together: onetwo",
        '"first" on "second"',
        "not printed: unseen",
        "axe: ",
    ):
        assert said in found, found
