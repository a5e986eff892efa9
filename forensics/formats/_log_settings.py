"""Environments that jobs print into their logs: package lists, variables, `torch.utils.collect_env`, `ds_report`.

Only runs of lines count, of which several look alike or a heading tells what they are: `name=value` alone may be
anything. They are read as the lines of a file of settings are; nothing is taken away from the log's own reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._log_lines import Block
from forensics.formats._log_marks import Labels
from forensics.formats._log_prefix import parse
from forensics.formats._log_processes import Processes
from forensics.formats._settings import Setting, SettingFacts
from forensics.formats._settings_lines import SettingLines

_MAX_LINE = 16_384
_MAX_RUN = 5000  # lines
_MAX_GAP = 4  # lines in between that are none of a run's: blank ones, values that go on
_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}

# In RE2 syntax: lines without their digits that may be of such a run, behind what launchers put before them.
_CANDIDATE = (
    r"(?:^|\]:? ?|: |> ?)(?:export |declare -x )?(?:[A-Za-z_][A-Za-z0-9_]*="
    r"|[A-Za-z0-9][\w.-]*(?:\[[\w,-]+\])?(?:==| @ )\S|\[(?:pip3?|conda)\] |Package +Version|-{3,} -{3,}"
    r"|PyTorch version: |torch (?:version|install path|cuda version|hip version) \.{3,}|nvcc version \.{3,}"
    r"|deepspeed (?:info|install path|wheel compiled w\.) \.{2,}|shared memory \(/dev/shm\) size \.{3,})"
)
_LIST_ROW = re.compile(r"[A-Za-z0-9][\w.-]{0,100}\s{1,80}v?\d[\w.+!-]{0,60}(?:\s{1,80}\S.{0,300})?$")
_RULE = re.compile(r"-{3,} -{3,}")
_REPORT_LINE = re.compile(r"[A-Za-z][\w .\-/()]{0,60}:(?: |$)|GPU \d|\[(?:pip3?|conda)\] ")
_END_OF_REPORT = re.compile(r"\[(?:pip3?|conda)\] |Versions of relevant libraries:")
_ENV = re.compile(r"(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_]*)=")
_FROZEN = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,-]+\])?(?:==| @ )\S+$")
_DOTTED = re.compile(r"[a-z][\w ()/.]{2,60} \.{2,} \S")
# What nearly every environment has, and what names variables of this kind of job.
_USUAL = {
    *("PATH", "HOME", "PWD", "USER", "SHELL", "HOSTNAME", "LANG", "SHLVL", "LOGNAME", "TERM", "OLDPWD"),
    "LD_LIBRARY_PATH",
}
_OF_JOBS = re.compile(
    r"(?:CUDA|NCCL|TORCH|PYTORCH|PYTHON|SLURM|OMP|MKL|OMPI|PMI|MASTER|GLOO|UCX|HF|TRITON|NVIDIA|KUBERNETES|RAY|TPU|XLA"
    r"|ROCR|HIP|DEEPSPEED|VLLM|ACCELERATE|TOKENIZERS|WANDB)_"
    r"|(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK)$"
)
_LEAST = {"env": 4, "frozen": 3, "list": 2, "report": 3, "dotted": 2}


@dataclass
class _Run:
    kind: str
    lines: list[tuple[int, str]] = field(default_factory=list)  # number, text
    last: int = 0
    ends: bool = False  # the last part of a report

    def takes(self, text: str) -> bool:
        if self.kind == "report":
            self.ends |= _END_OF_REPORT.match(text) is not None
            pattern = _END_OF_REPORT if self.ends else _REPORT_LINE
            return pattern.match(text) is not None or (not self.ends and text.startswith("  "))
        if self.kind == "list":
            return _LIST_ROW.match(text) is not None or _RULE.match(text) is not None
        return _kind_of(text) == self.kind

    @property
    def is_one(self) -> bool:
        """Whether it is what its lines look like."""
        if len(self.lines) < _LEAST[self.kind]:
            return False
        if self.kind == "env":
            names = [m[1] for _, text in self.lines if (m := _ENV.match(text))]
            n_usual = len(_USUAL.intersection(names))
            n_of_jobs = len({name for name in names if _OF_JOBS.match(name)})
            return n_usual >= 3 or (n_of_jobs >= 3 and (n_usual + n_of_jobs) * 2 > len(set(names)))
        return self.kind != "list" or any(_RULE.match(text) for _, text in self.lines[:3])


def _kind_of(text: str) -> str | None:
    if text.startswith("PyTorch version: "):
        return "report"
    if re.match(r"Package\s+Version", text):
        return "list"
    if _FROZEN.match(text):
        return "frozen"
    if _DOTTED.match(text):
        return "dotted"
    return "env" if _ENV.match(text) else None


class _OfProcess:
    """A sink for the settings that one process of a log printed."""

    def __init__(self, sink: Sink, proc: int, learn: Callable[[dict[str, Any]], None]) -> None:
        self._sink, self._proc, self._learn = sink, proc, learn

    def proc(self, number: int, **known: Any) -> None:
        self._learn({key: value for key, value in known.items() if key != "rank_origin"})

    def fact(self, key: str, value: str, **more: Any) -> None:
        proc = more.pop("proc", None)
        self._sink.fact(key, value, proc=None if proc is None else self._proc, **more)

    def cover(self, capability: str, **about: Any) -> None:
        about.pop("complete", None)
        self._sink.cover(capability, complete=False, **about)  # what a log prints is seldom all there is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class SettingTexts:
    """Feed it the blocks of a log."""

    def __init__(self, sink: Sink, labels: Labels, processes: Processes) -> None:
        self._sink = sink
        self._labels = labels
        self._processes = processes
        self._runs: dict[int, _Run] = {}
        self._found: dict[int, list[_Run]] = {}

    def read(self, block: Block) -> None:
        suspects = pc.match_substring_regex(pa.array(block.words, pa.binary()), _CANDIDATE)
        if not pc.any(suspects).as_py():
            return
        places = pc.indices_nonzero(suspects.take(block.codes)).to_pylist()
        at = 0
        for place in places:
            if place < at:
                continue
            at = self._take(block, place) + 1

    def _take(self, block: Block, index: int) -> int:
        """Takes a line, and those below it where it opens a list or report; the last one."""
        proc, number, text = self._line(block, index)
        run = self._runs.get(proc)
        if run is not None and number - run.last <= _MAX_GAP and run.takes(text):
            self._add(run, number, text)
        else:
            kind = _kind_of(text)
            if kind is None:
                return index
            self._end(proc)
            run = self._runs[proc] = _Run(kind)
            self._add(run, number, text)
        if run.kind not in {"list", "report"}:
            return index
        return self._follow(block, index, proc, run)

    def _follow(self, block: Block, index: int, proc: int, run: _Run) -> int:
        last = index
        for below in range(index + 1, min(index + _MAX_RUN, len(block))):
            writer, number, text = self._line(block, below)
            if writer != proc:
                continue
            if not text.strip() and number - run.last <= _MAX_GAP:
                continue
            if not run.takes(text):
                break
            self._add(run, number, text)
            last = below
        return last

    @staticmethod
    def _add(run: _Run, number: int, text: str) -> None:
        run.last = number
        if len(run.lines) < _MAX_RUN:
            run.lines.append((number, text))

    def _line(self, block: Block, index: int) -> tuple[int, int, str]:
        piece = block[index]
        line = parse(piece.text[:_MAX_LINE], self._labels)
        proc = self._processes.find(line)
        return proc or 0, piece.number, line.text.rstrip()

    def _end(self, proc: int) -> None:
        run = self._runs.pop(proc, None)
        if run is not None and run.is_one:
            self._found.setdefault(proc, []).append(run)

    def close(self, *, n_read: int) -> None:
        for proc in list(self._runs):
            self._end(proc)
        for proc, runs in sorted(self._found.items()):
            settings = [setting for run in runs for setting in _settings(run)]
            ranks = {setting.value for setting in settings if setting.key in _RANKS}

            def learn(known: dict[str, Any], proc: int = proc, several: bool = len(ranks) > 1) -> None:
                if not several:  # else lines of several ranks stand side by side
                    self._processes.learn(proc, **known)

            facts = SettingFacts(_OfProcess(self._sink, proc, learn))  # type: ignore[arg-type]
            for setting in settings:
                if len(ranks) <= 1 or setting.scope == "version":
                    facts.add(setting)
            facts.finish(n_read=n_read, complete=False)


def _settings(run: _Run) -> list[Setting]:
    reader = SettingLines()
    found = [setting for number, text in run.lines for setting in reader.read(text, number)]
    return [setting for setting in found if setting.scope != "note"]
