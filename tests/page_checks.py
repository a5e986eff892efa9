"""What every report is held to in a real browser: asks for nothing, reads by keyboard, on paper and without scripts."""

from __future__ import annotations

from pathlib import Path

from browser import AXE, Page

_SCRIPT = Path(__file__).with_suffix(".js")
PAPER_PX = 688  # of a sheet of A4 between its margins
NARROW_PX, WIDE_PX = 320, 1280


def faults(page: Page, file: Path, read: Path | None = None) -> list[str]:
    """Everything that is wrong with a report.

    `read`: a file that keeps the kinds of sections and drawings of pages before. A page of the same kinds as another
    is not opened without scripts, printed and steered by keyboard again; where none of its kinds is new, what takes
    long is left out, too: axe-core in light and dark, Tab through the whole page, a PDF.
    """
    found = _opened(page, file, WIDE_PX)
    kinds = _asked(page, "kinds")
    seen = set(read.read_text(encoding="utf-8").splitlines()) if read is not None and read.exists() else set()
    is_new, is_other = not set(kinds) <= seen, " ".join(kinds) not in seen
    if read is not None and is_other:
        read.write_text("\n".join(sorted({*kinds, " ".join(kinds), *seen})), encoding="utf-8")
    words, n_drawn = _ask(page, "words"), _ask(page, "nDrawn")
    found += _by_keyboard(page, all_stops=is_new) if is_other else []
    page.run("pageChecks.unfold()")
    found += _asked(page, "inert") + _asked(page, "joined") + _asked(page, "drawings")
    if AXE is not None and is_new:
        found += [f"axe: {said}" for said in page.axe()] + [f"axe, dark: {said}" for said in page.axe(dark=True)]
    page.resize(NARROW_PX)
    found += _asked(page, "wide")
    if is_other:
        page.run("pageChecks.fold()")
        found += _on_paper(page, as_file=is_new)
        found += _without_scripts(page, file, words, n_drawn)
    return found


def _ask(page: Page, check: str) -> object:
    return page.run(f"pageChecks.{check}()")


def _asked(page: Page, check: str) -> list[str]:
    found = _ask(page, check)
    assert isinstance(found, list)
    return found


def _opened(page: Page, file: Path, width: int) -> list[str]:
    page.open(file, width=width)
    page.run(_SCRIPT.read_text(encoding="utf-8"))
    found = [f"asked for {url}" for url in page.requests if url not in {file.as_uri(), "data:,"}]
    return found + page.complaints


def _without_scripts(page: Page, file: Path, words: object, n_drawn: object) -> list[str]:
    """`words`, `n_drawn`: what the page tells and draws with its scripts."""
    page.scripts(False)
    try:
        found = _opened(page, file, NARROW_PX)
        found += ["its own script ran"] if page.run("document.querySelectorAll('button').length") else []
        found += ["it reads otherwise"] if (_ask(page, "words"), _ask(page, "nDrawn")) != (words, n_drawn) else []
        found += _asked(page, "wide")
    finally:
        page.scripts(True)
    return [f"without scripts: {said}" for said in found]


def _by_keyboard(page: Page, *, all_stops: bool) -> list[str]:
    """Tab from the top through the page, in its order and out of it again; Enter unfolds and folds."""
    n = page.run("pageChecks.beginWalk()")
    page.press(*["Tab"] * (n if all_stops else 1))
    found = _asked(page, "endWalk") if all_stops else []
    if not page.run("pageChecks.toFolded()"):
        return found
    page.press("Enter")
    opened = page.run("document.activeElement.parentElement.open")
    page.press("Enter")
    closed = not page.run("document.activeElement.parentElement.open")
    return found if opened and closed else [*found, "Enter does not unfold and fold"]


def _on_paper(page: Page, *, as_file: bool) -> list[str]:
    page.dark(False, media="print")
    page.resize(PAPER_PX)
    found = _asked(page, "printed") + [f"on paper: {said}" for said in _asked(page, "wide")]
    page.dark(False)
    if as_file and not page.pdf().startswith(b"%PDF-"):
        found.append("gives no PDF")
    return found
