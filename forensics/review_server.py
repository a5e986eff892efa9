"""Reports of a folder in a browser, on this machine only; records their reviews, and nothing without a token.

The listing may be read by whoever reaches the port; the address with the token, which only the terminal shows, has the
forms that record. Names come from a listing made here, never from a path in a request.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from forensics.errors import ForensicsError
from forensics.report.html import asset, content_policy
from forensics.report.text import one_line
from forensics.reviews import exported, known_findings, record

HOST = "127.0.0.1"
MAX_BODY = 4 << 20
MAX_REPORTS = 2000
_SECONDS = 10.0  # that a request may take to arrive


def found_reports(folder: Path) -> dict[str, Path]:
    """Name → folder of each case in `folder`, or of `folder` itself where it is one."""
    candidates = [folder, *sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())]
    cases = [p for p in candidates if (p / "report.html").is_file() and (p / "report.json").is_file()]
    return {p.resolve().name: p for p in cases[:MAX_REPORTS]}


def serve_reports(folder: Path, token: str, port: int = 0) -> ThreadingHTTPServer:
    """A server that is bound and not yet running; `port` 0 takes a free one."""

    class Handler(_Handler):
        root = folder
        secret = token

    return ThreadingHTTPServer((HOST, port), Handler)


class _Handler(BaseHTTPRequestHandler):
    root: Path
    secret: str
    timeout = _SECONDS
    server_version, sys_version = "forensics", ""

    def do_GET(self) -> None:
        if not self._is_local():
            return
        address = urlsplit(self.path)
        reports = found_reports(self.root)
        if address.path == "/":
            given = parse_qs(address.query).get("token", [""])[0]
            self._answer(200, _listing(reports, self.secret if self._holds(given) else "").encode(), page=True)
            return
        name, _, rest = unquote(address.path).strip("/").partition("/")
        if name in reports and rest == "report.html":
            self._answer(200, (reports[name] / "report.html").read_bytes())
        else:
            self._answer(404, b"not found", kind="text/plain")

    def do_POST(self) -> None:
        if not self._is_local():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self._answer(413, b"too large", kind="text/plain")
            return
        form = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
        reports = found_reports(self.root)
        name = unquote(urlsplit(self.path).path).strip("/")
        if not self._holds(form.get("token", [""])[0]):
            self._answer(403, b"no token", kind="text/plain")
        elif name not in reports:
            self._answer(404, b"not found", kind="text/plain")
        else:
            self._record(reports[name], form.get("reviews", [""])[0])

    def _record(self, case: Path, text: str) -> None:
        try:
            n = record(case, exported(text.encode(), known_findings(case)))
        except ForensicsError as error:
            self._answer(400, str(error).encode(), kind="text/plain")
        else:
            said = f"{n} reviews recorded; analyze again to see them in the report"
            self._answer(200, said.encode(), kind="text/plain")

    def _holds(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.secret.encode())

    def _is_local(self) -> bool:
        """Whether the browser meant this server: a name that some page made to point here is refused."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host in {HOST, "localhost"}:
            return True
        self._answer(403, b"not this host", kind="text/plain")
        return False

    def _answer(self, code: int, body: bytes, *, kind: str = "text/html", page: bool = False) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if page:
            policy = content_policy(asset("page.css"), "").replace("form-action 'none'", "form-action 'self'")
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Addresses hold the token: nothing is logged."""


def _listing(reports: Mapping[str, Path], token: str) -> str:
    rows = "".join(_row(name, token) for name in reports) or "<p>No report in this folder.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Reports</title>'
        f"<style>{asset('page.css')}</style></head><body><main><h1>Reports</h1>{rows}</main></body></html>"
    )


def _row(name: str, token: str) -> str:
    shown, path = escape(one_line(name, 200)), quote(name, safe="")
    link = f'<p><a href="/{path}/report.html">{shown}</a></p>'
    if not token:
        return link
    return (
        f'{link}<form method="post" action="/{path}"><input type="hidden" name="token" value="{escape(token)}">'
        f'<label>Reviews that its page exported <textarea name="reviews" rows="2" required></textarea></label>'
        "<button>Record</button></form>"
    )
