"""The server of reports: only for this machine, nothing written without the token, no path out of its folder."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from forensics.review_server import serve_reports
from forensics.reviews import read_reviews

pytestmark = pytest.mark.installed

TOKEN = "t0ken"
REVIEWS = json.dumps({"format": "forensics.reviews/1", "reviews": [{"fingerprint": "abc", "state": "confirmed"}]})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    case = tmp_path / "root" / "job <b>"
    case.mkdir(parents=True)
    (case / "report.html").write_text("<p>the page</p>")
    (case / "report.json").write_text(json.dumps({"findings": [{"fingerprint": "abc", "rule": "host-oom"}]}))
    (tmp_path / "secret.txt").write_text("secret")
    with serve_reports(tmp_path / "root", TOKEN) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port, case
        running.shutdown()
        thread.join()


def ask(port: int, path: str, form: dict[str, str] | None = None, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = urlencode(form) if form is not None else None
    connection.request("POST" if body is not None else "GET", path, body, {"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_lists_and_shows_reports(server: tuple[int, Path]) -> None:
    port, _ = server
    status, text = ask(port, "/")
    assert status == 200 and "job &lt;b&gt;" in text and "<form" not in text and TOKEN not in text
    assert "<form" in ask(port, f"/?token={TOKEN}")[1]
    assert ask(port, "/job%20%3Cb%3E/report.html") == (200, "<p>the page</p>")


def test_it_shows_nothing_else(server: tuple[int, Path]) -> None:
    port, _ = server
    for path in (
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/job%20%3Cb%3E/../../../secret.txt",
        "/job%20%3Cb%3E/report.json",
    ):
        status, text = ask(port, path)
        assert status == 404 and "secret" not in text
    assert ask(port, "/", host="evil.example")[0] == 403


def test_a_review_is_recorded_with_the_token_only(server: tuple[int, Path]) -> None:
    port, case = server
    assert ask(port, "/job%20%3Cb%3E", {"token": "wrong", "reviews": REVIEWS})[0] == 403
    assert ask(port, "/job%20%3Cb%3E", {"token": TOKEN, "reviews": "{"})[0] == 400
    assert read_reviews(case) == {}
    assert ask(port, "/job%20%3Cb%3E", {"token": TOKEN, "reviews": REVIEWS})[0] == 200
    assert read_reviews(case)["abc"].state == "confirmed"
