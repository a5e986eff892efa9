"""A page in a real Chromium, driven over its debugging pipe: what it asks for, says and shows. No library needed."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _axe_core() -> Path | None:
    """The script of axe-core, as the Python package carries it; nothing else of that package is used."""
    spec = importlib.util.find_spec("axe_playwright_python")
    file = Path(spec.origin or "").with_name("axe.min.js") if spec else None
    return file if file and file.is_file() else None


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
_DEADLINE_S = 60.0  # of one answer, on a machine that does much else
AXE = _axe_core()


class Page:
    """One tab. `requests`: addresses that it asked for; `complaints`: errors, warnings and violations of its policy."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._rest, self._n, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.dark(False)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._answer(self._send(method, params))

    def _answer(self, number: int) -> dict[str, Any]:
        while True:
            answer = self._read()
            if answer.get("id") == number:
                result: dict[str, Any] = answer["result"]
                return result

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._n

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _DEADLINE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._rest += part
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        assert "error" not in message, message["error"]
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method:
            self._events.append({"method": method, **params})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.complaints.append(str(params["args"])[:500])

    def open(self, file: Path | str, *, width: int = 1280, height: int = 900) -> None:
        """Loads a file and waits until it and its scripts are done."""
        self.resize(width, height)
        self.requests.clear()
        self.complaints.clear()
        self._events.clear()
        self.call("Page.navigate", url=file.as_uri() if isinstance(file, Path) else file)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool = True, media: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # where a page scrolls to, it is at once
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme, still])

    def scripts(self, on: bool) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """The keys one after the other; they are answered in this order, so that only the last is waited for."""
        number = 0
        for key in keys:
            typed = {"text": key} if len(key) == 1 else {"Enter": {"text": "\r"}}.get(key, {})
            code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27}.get(key, 0)
            named = {"key": key, "windowsVirtualKeyCode": code}
            self._send("Input.dispatchKeyEvent", {"type": "keyDown", **named, **typed})
            number = self._send("Input.dispatchKeyEvent", {"type": "keyUp", **named})
        self._answer(number)

    def picture(self, selector: str = "") -> bytes:
        """A PNG of the window, or of the whole of one element."""
        clip: dict[str, Any] = {}
        if selector:
            box = self.run(
                f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                " return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()"
            )
            clip = {"clip": dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}}
            clip["captureBeyondViewport"] = True
        return base64.b64decode(self.call("Page.captureScreenshot", **clip)["data"])

    def axe(self, *, dark: bool = False) -> list[str]:
        """What axe-core finds in the open page with everything unfolded: rules of WCAG and good practice.

        `dark`: only its contrasts; nothing else of a page depends on colours.
        """
        assert AXE is not None
        self.dark(dark)
        if not self.run("'axe' in globalThis"):
            self.run(AXE.read_text(encoding="utf-8") + ";true")
        self.run("[...document.querySelectorAll('details')].map((n) => (n.open = true)).length")
        only = "runOnly: ['color-contrast'], " if dark else ""
        found = self.run(
            f"axe.run(document, {{ {only}resultTypes: ['violations'] }}).then((r) => r.violations.map((v) =>"
            " `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)).join(' | ')}`))"
        )
        self.dark(False)
        return list(found)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one page; it ends with the block."""
    to_child, ours_out = os.pipe()
    ours_in, from_child = os.pipe()

    def place_pipe() -> None:
        """The browser expects its pipe at 3 and 4, where other files may be now."""
        read, write = os.dup2(to_child, 103), os.dup2(from_child, 104)
        os.dup2(read, 3)
        os.dup2(write, 4)

    command = [CHROMIUM or "", *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    options: dict[str, Any] = {"preexec_fn": place_pipe, "close_fds": False}  # all others close themselves
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    os.close(to_child)
    os.close(from_child)
    try:
        yield Page(ours_out, ours_in)
    finally:
        child.terminate()
        child.wait(timeout=30)
        os.close(ours_out)
        os.close(ours_in)
