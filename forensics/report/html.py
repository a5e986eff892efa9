"""Renders a report as one HTML file that asks for nothing: no network, no script needed to read it.

Style and script are inlined and named by hash in the content policy, so nothing that an artifact holds can run or
style the page, even if an escape were missed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from forensics.report import text
from forensics.report.page import is_prose, prepare
from forensics.report.svg import severity_mark
from forensics.report.view import EvidenceView, Report
from forensics.resources import resource_folder
from forensics.states import QUALITIES, SEVERITIES

MAX_EVIDENCE = 12  # places of one finding
_LINK_LIMIT = 500
_LONG_WORD = 18  # characters; shorter ones fit any column
_BREAK = re.compile(r"(?<=[/\\=:,])(?=\w)|(?<=\w)(?=\()")
_SCRIPTS = ("page.js", "pictures.js", "review.js")  # one after the other, named by one hash
_QUALITIES = (*QUALITIES, "unknown")


def render_html(report: Report) -> str:
    """The page. The same report gives the same bytes."""
    css, script = asset("page.css"), "".join(asset(name) for name in _SCRIPTS)
    template = _environment().get_template("page.html.j2")
    return template.render(
        page=prepare(report),
        report=report,
        css=Markup(css),  # noqa: S704  our own file
        script=Markup(script),  # noqa: S704  our own file
        policy=content_policy(css, script),
    )


def warm_up() -> None:
    """Parses the templates, which the first page otherwise does."""
    for name in _environment().list_templates(filter_func=lambda name: not name.startswith("fleet")):
        if name.endswith(".j2"):
            _environment().get_template(name)


def content_policy(css: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def asset(name: str) -> str:
    # A browser hashes the text after turning line ends into \n.
    return (resource_folder("reports") / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(resource_folder("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )
    filters: dict[str, Any] = {
        "line": line,
        "breakable": breakable,
        "plain": text.one_line,  # for attributes and the title, where no markup can stand
        "block": block,
        "rows": numbered_rows,
        "percent": text.percent,
        "percent_range": text.percent_range,
        "size": text.size,
        "moment": text.moment,
        "plural": text.plural,
        "place": place,
        "link": link,
        "drawing": Markup,  # markup of the drawing modules, which escape what they draw
        "px": lambda value: f"{value:.2f}",
    }
    environment.filters.update(filters)
    environment.globals.update(
        glyph=glyph,
        known=known,
        is_prose=is_prose,
        severities=SEVERITIES,
        qualities=_QUALITIES,
        MAX_EVIDENCE=MAX_EVIDENCE,
        days=days,
    )
    return environment


def finalize(value: object) -> object:
    """Catches texts that a template shows without a filter; blanks at their ends, which part them from others, stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    before, after = (" " * end.isspace() for end in (value[:1], value[-1:]))
    return before + line(value) + after


def marked(value: str, *, keep: str = "") -> Markup:
    """Escaped markup in which the escapes of invisible characters stand out."""
    parts = [
        Markup('<span class="esc">{}</span>').format(part) if is_escape else escape(part)
        for part, is_escape in text.pieces(value, keep=keep)
    ]
    return Markup("").join(parts)


def line(value: object, limit: int = text.LINE_LIMIT) -> Markup:
    head, left_out = text.shorten(str(value), limit)
    return marked(" ".join(head.split())) + _note(text.left_out_note(left_out))


def breakable(value: str, limit: int = text.LINE_LIMIT) -> Markup:
    """One line whose long words may break after the signs that part paths and names; what is copied stays the same."""
    head, left_out = text.shorten(value, limit)
    words = [_BREAK.split(word) if len(word) > _LONG_WORD else [word] for word in head.split()]
    return Markup(" ").join(Markup("<wbr>").join(map(marked, parts)) for parts in words) + _note(
        text.left_out_note(left_out)
    )


def block(value: str, limit: int = text.BLOCK_LIMIT, lines: int = text.BLOCK_LINES) -> Markup:
    body, note = text.cut_block(value, limit, lines)
    return marked(body, keep="\n\t") + _note(note)


def numbered_rows(evidence: EvidenceView) -> Markup:
    """The excerpt line by line; numbers come from the style sheet, so that copying leaves them out."""
    body, note = text.cut_block(evidence.text, 4_000, 24)
    number = evidence.position if evidence.kind == "line" else None
    rows = []
    for i, row in enumerate(body.split("\n")):
        shown = marked(row, keep="\t")
        if number is None:
            rows.append(shown)
        else:
            rows.append(Markup('<span class="row" data-n="{}">{}</span>').format(number + i, shown))
    return Markup("\n").join(rows) + _note(f"\n{note}" if note else "")


def _note(note: str) -> Markup:
    return Markup('<span class="left-out">{}</span>').format(note) if note else Markup("")


def place(evidence: EvidenceView) -> str:
    return text.place(evidence.kind, evidence.position)


def link(url: str) -> Markup:
    """A reference; only web addresses become links."""
    shown = line(url, 200)
    if len(url) > _LINK_LIMIT or not url.isprintable() or not url.startswith(("https://", "http://")):
        return shown
    return Markup('<a href="{}" rel="noopener noreferrer">{}</a>').format(url, shown)


def glyph(severity: str) -> Markup:
    # The mark is drawn by us from one of four names.
    return Markup(f'<svg class="glyph" viewBox="0 0 16 16" aria-hidden="true">{severity_mark(severity, 8, 8)}</svg>')  # noqa: S704


def known(value: str, names: Sequence[str]) -> str:
    """A value that becomes a class name: one of ours, never a text of an artifact."""
    return value if value in names else names[-1]


def days(times: Sequence[int]) -> list[str]:
    """The calendar days on which moments lie, for the heading of a table that shows clock times only."""
    return sorted({day for ts_ns in times if (day := text.day_of(ts_ns))})
