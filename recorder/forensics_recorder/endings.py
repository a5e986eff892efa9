"""How the process ended: exceptions, signals, exits, crashes of native code, and standstill.

`end.json` says it in one object; its absence says that nothing could run any more (`kill -9`, `os._exit`, a host that
went). Handlers that others have set are kept and called after ours.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Callable

from forensics_recorder.journal import encode, write_whole

FORMAT = "forensics.end/1"
# What schedulers send before they kill: SLURM and Kubernetes TERM, time limits USR1 or XCPU, terminals HUP and INT.
_DEADLY = ("SIGTERM", "SIGHUP", "SIGXCPU")
_MAX_TEXT = 100_000


class Endings:
    """Watches one process. `flush()` is called before the end is written, whatever the end is."""

    def __init__(self, folder: Path, header: dict[str, Any], flush: Callable[[], None]) -> None:
        self._folder = folder
        self._header = header | {"format": FORMAT}
        self._flush = flush
        self._owner = os.getpid()
        self._told = False
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # for the end of a job without descriptors
        self._previous: dict[int, Any] = {}
        self._stacks: Any = None
        self._hook = sys.excepthook
        self._thread_hook = threading.excepthook

    def watch(self) -> None:
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        atexit.register(self._on_exit)
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            for name in _DEADLY:
                number = getattr(signal, name)
                self._previous[number] = signal.signal(number, self._on_signal)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stacks = (self._folder / "faulthandler.log").open("w")
            faulthandler.enable(self._stacks, all_threads=True)
            faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=True, chain=True)
        except (OSError, RuntimeError, AttributeError):
            self._stacks = None

    def leave(self) -> None:
        """Puts back the handlers, unless someone has set others since."""
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook
        if threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._thread_hook
        atexit.unregister(self._on_exit)
        for number, before in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
        if self._stacks is not None:
            faulthandler.unregister(signal.SIGUSR2)
            faulthandler.enable()  # to stderr, so that no crash goes unsaid after us
            self._stacks.close()
            if (self._folder / "faulthandler.log").stat().st_size == 0:
                (self._folder / "faulthandler.log").unlink()
            self._stacks = None

    def tell(self, how: str, **known: Any) -> None:
        """Writes `end.json` once: the first end told is the one that counts."""
        if self._told or os.getpid() != self._owner:
            return
        self._told = True
        os.close(self._reserve)
        try:
            self._flush()
        except Exception as error:  # an end that cannot be flushed is still an end
            known["flush_error"] = f"{type(error).__name__}: {error}"
        write_whole(self._folder / "end.json", encode(self._header | {"ts_ns": time.time_ns(), "how": how} | known))

    def exception(self, error: BaseException) -> None:
        """Tells an exception that leaves the recorded block, and keeps its text as launchers' error files have it."""
        if isinstance(error, SystemExit):
            self.tell("exit", code=error.code if isinstance(error.code, int) else str(error.code))
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_TEXT:]
        known = {"exception": type(error).__name__, "message": str(error)[:_MAX_TEXT], "traceback": text}
        self.tell("exception", **known)

    def stacks_now(self, why: str) -> None:
        """Stacks of all threads into `faulthandler.log`, for a process that stands still."""
        if self._stacks is not None and os.getpid() == self._owner:
            os.write(self._stacks.fileno(), f"\n{time.time():.6f} {why}\n".encode())
            faulthandler.dump_traceback(self._stacks, all_threads=True)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == self._owner:
            self.exception(error.with_traceback(trace))
        self._hook(kind, error, trace)

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        # The process lives on: kept beside, since the end is still to come.
        if os.getpid() == self._owner and args.exc_value is not None:
            thread = args.thread.name if args.thread else "?"
            text = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
            write_whole(self._folder / f"thread-{thread[:60].replace(os.sep, '_')}.log", text[-_MAX_TEXT:])
        self._thread_hook(args)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            stack = "".join(traceback.format_stack(frame))[-_MAX_TEXT:] if frame else ""
            self.tell("signal", signal=number, name=signal.Signals(number).name, stack=stack)
        before = self._previous.get(number)
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _on_exit(self) -> None:
        self.tell("exit", code=None)
