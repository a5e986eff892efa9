"""Reads what people and scripts write about an environment, one line at a time.

Sentences stay whole as notes: `with half of the batch size: same timeout` is no setting. What decides is the shape of
key and value; see `_labelled`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from forensics.formats._quantities import parse_quantity, parse_size
from forensics.formats._settings import Setting, number_of

_MAX_FLAGS = 300

_EXIT_CODE = re.compile(
    r"(?:exit|return)[ _]?(?:code|status)\s{0,5}[:= ]\s{0,5}(-?[0-9]{1,6})\b(.{0,200})", re.IGNORECASE
)
_ASSIGNED = re.compile(r"(?:export |declare -x |set )?([A-Za-z_][\w.]{0,200}) ?= ?(?!=)(.*)")
_ASSIGNMENTS = re.compile(r"([A-Za-z_][\w.]{0,100})=([^=,()]{0,200})")
_PINNED = re.compile(
    r"(?:\[?(?:pip3?|conda)\]? )?([A-Za-z0-9][\w.-]{0,100}(?:\[[\w,-]{0,100}\])?) ?(?:==|===| @ )(.{1,300})"
)
_CONDA = re.compile(r"\[conda\] ([\w.-]{1,100})\s{1,40}(\S{1,100}).{0,200}")
_COLUMNS = re.compile(r"([A-Za-z0-9][\w.-]{0,100})(?:\t|  )\s{0,80}(\S.{0,200})")
_TWO_WORDS = re.compile(r"([A-Za-z][\w.-]{0,100}) v?([0-9]{1,6}(?:\.[0-9A-Za-z]{1,40}){1,6}(?:\+[\w.]{1,40})?)")
_LABEL = re.compile(r"([A-Za-z/][\w .\-/()#%]{0,60}?)\s{0,40}:(?:\s{1,40}(.*))?")
_SCHEDULER = re.compile(r"#(SBATCH|PBS|BSUB|COBALT)\s{1,20}--?([\w-]{1,60})(?:[= ]\s{0,10}(.{1,300}))?")
_LAUNCHED = re.compile(
    r"(?:python[0-9.]{0,5}|torchrun|accelerate launch|deepspeed|srun|sbatch|mpirun|mpiexec|docker run|ray|vllm serve"
    r"|horovodrun|nsys profile|CUDA_VISIBLE_DEVICES=\S{1,100} python[0-9.]{0,5}) \S.{0,4000}"
)
_INSPECTING = re.compile(
    r"(?:env|printenv|export|pip3?|conda|nvidia-smi|nvcc|uname|ulimit|cat|ls|df|free|ps|which|echo|cd|source|hostname"
    r"|python[0-9.]{0,5} -m (?:torch\.utils\.collect_env|pip))\b"
)
_PID = re.compile(r"(?:job )?pid[ :=]{1,3}([0-9]{1,10})\b")
_CAPABILITY = re.compile(r"compute capability ([0-9]{1,2}\.[0-9])")
_MEMORY_OF_DEVICE = re.compile(r"\b([0-9]{1,4}(?:\.[0-9]{1,2})?) ?(G(?:i?B))\b")
_N_DEVICES = re.compile(r"([0-9]{1,4}) ?(?:x |GPUs?\b)")
_OF_HOST = re.compile(r"ulimit.{0,40}|/dev/shm.{0,40}|shm.{0,40}|ram|memory|swap", re.IGNORECASE)
_DOTTED = re.compile(r"([a-z][\w ()/.]{2,60}?) \.{2,1000} (\S.{0,1000})")  # of ds_report
_RULER = re.compile(r"[-=_*+ ]{3,1000}")
_SYSTEMS = {"linux", "windows", "macos", "darwin"}

# Labels of `torch.utils.collect_env` and of people: (scope, key).
_LABELS = {
    "pytorch version": ("version", "torch"),
    "python version": ("version", "python"),
    "cuda used to build pytorch": ("version", "torch.version.cuda"),
    "torch.version.cuda": ("version", "torch.version.cuda"),
    "rocm used to build pytorch": ("version", "torch.version.hip"),
    "cuda runtime version": ("version", "cuda-runtime"),
    "cuda version": ("version", "cuda_version"),
    "nvidia driver version": ("version", "driver_version"),
    "driver version": ("version", "driver_version"),
    "cudnn version": ("version", "cudnn"),
    "libc version": ("version", "glibc"),
    "os": ("version", "os"),
    "commit": ("version", "git_commit"),
    "git commit": ("version", "git_commit"),
    "is cuda available": ("device", "cuda_available"),
    "gpu models and configuration": ("device", "gpu"),
    "gpu": ("device", "gpu"),
    "gpus": ("device", "gpu"),
    "gpu model": ("device", "gpu"),
    "gpu type": ("device", "gpu"),
    "accelerator": ("device", "gpu"),
    "visible devices": ("device", "visible_devices"),
    "command": ("command", "command"),
    "command line": ("command", "command"),
    "cmd": ("command", "command"),
    "cmdline": ("command", "command"),
    "launch command": ("command", "command"),
    "world size": ("distributed", "world_size"),
    "world_size": ("distributed", "world_size"),
    "rank": ("distributed", "rank"),
    "local rank": ("distributed", "local_rank"),
    "local_rank": ("distributed", "local_rank"),
    "hostname": ("host", "hostname"),
    "host": ("host", "hostname"),
    "node": ("host", "hostname"),
    "pid": ("host", "pid"),
}
_HEADINGS = {"collecting environment information...", "versions of relevant libraries:", "cpu:"}


class SettingLines:
    """Turns lines into settings; remembers under which printed command they stand."""

    def __init__(self) -> None:
        self._mode = ""
        self._of_cpu = False  # inside what torch.utils.collect_env copies from lscpu

    def read(self, line: str, number: int) -> list[Setting]:
        """The settings of one line; a line that has none is one of scope `note`; none for an empty one."""
        text = line.strip()
        if not text:
            self._of_cpu = False
            return []
        heading = text.lower() in _HEADINGS or (text.endswith(":") and text[:-1].lower() in _LABELS)
        if heading or text.startswith("#!") or _RULER.fullmatch(text):
            self._of_cpu = text.lower() == "cpu:"
            return []
        if re.match(r"(?:Package|# Name)\s{1,80}Version\b", text):
            self._mode = "pip"
            return []
        found = [Setting(s.key, s.value, s.scope, number, s.number) for s in self._settings(text)]
        return found or [Setting("note", text, "note", number)]

    def _settings(self, text: str) -> list[Setting]:
        if text.startswith(("$ ", "+ ", "> ")):
            return self._prompted(text[2:].strip())
        scheduled = _SCHEDULER.match(text)
        if scheduled:
            key, value = f"{scheduled[1].lower()}.{scheduled[2]}", (scheduled[3] or "true").strip()
            return [Setting(key, value, "option", number=number_of(key, value))]
        if text.startswith("#"):
            return []
        ended = _EXIT_CODE.match(text)
        if ended:
            return [Setting("exit_code", (ended[1] + ended[2]).strip(), "outcome", number=float(ended[1]))]
        dotted = _DOTTED.fullmatch(text)
        if dotted:
            return [_of_report(dotted[1], dotted[2])]
        return self._assigned(text) or self._version(text) or list(self._labelled(text)) or self._said(text)

    def _prompted(self, command: str) -> list[Setting]:
        self._mode = "pip" if re.match(r"(?:pip3?|conda) (?:list|freeze)", command) else ""
        if _INSPECTING.match(command):
            return [Setting("note", f"$ {command}", "note")]
        return _command(command)

    @staticmethod
    def _assigned(text: str) -> list[Setting]:
        match = _ASSIGNED.fullmatch(text)
        if match is None:
            return []
        several = [_ASSIGNMENTS.fullmatch(part.strip()) for part in text.split(", ")]
        if len(several) > 1 and all(several):
            return [_option(part[1], part[2]) for part in several if part]
        name, value = match[1], _unquoted(match[2].strip())
        exported = text.startswith(("export ", "declare ")) or name.isupper() or name.lower().endswith("_proxy")
        if exported and re.search(r" (?:python[0-9.]{0,5}|torchrun|accelerate|deepspeed|srun) ", f" {value} "):
            return _command(text)
        return [Setting(name, value, "variable", number=number_of(name, value))] if exported else [_option(name, value)]

    def _version(self, text: str) -> list[Setting]:
        match = _CONDA.fullmatch(text) or _PINNED.fullmatch(text) or _TWO_WORDS.fullmatch(text)
        if match is None and self._mode == "pip":
            match = _COLUMNS.fullmatch(text)
        if match is None:
            return [Setting("os", text, "version")] if text.lower() in _SYSTEMS else []
        name, version = match[1].split("[")[0], match[2].strip()
        return [Setting(re.sub(r"[_.-]{1,20}", "-", name).lower(), version, "version")]

    def _labelled(self, text: str) -> Iterator[Setting]:
        """`key: value`, where the key is a known one, or both are as short as those of settings are."""
        match = _LABEL.fullmatch(text)
        if match is None:
            return
        label, value = match[1].strip(), _unquoted((match[2] or "").strip())
        scope, key = _LABELS.get(label.lower(), ("", label))
        if scope == "command":
            yield from _command(value)
        elif scope == "device" and key == "gpu":
            yield from _device("gpu", value) if value else ()
        elif label.endswith(" set to") and label.split()[0].isupper():  # collect_env of CUDA_MODULE_LOADING
            yield Setting(label.split()[0], value, "variable", number=number_of(label, value))
        elif scope:
            # 3.10 is no 3.1
            yield Setting(key, value, scope, number=None if scope == "version" else number_of(key, value))
        elif re.fullmatch(r"gpu ?[0-9]{1,4}", label.lower()):
            yield from _device("name", value, f"gpu.{int(label.lower().removeprefix('gpu'))}.")
        elif label.lower().endswith(" version"):
            yield Setting(label.lower().removesuffix(" version").replace(" ", "-"), value, "version")
        elif _OF_HOST.fullmatch(label):
            yield Setting(label, value, "host", number=number_of("memory" if "ulimit" not in label else label, value))
        elif value and self._is_setting(label, value):
            yield Setting(label, value, "option", number=number_of(label, value))

    def _is_setting(self, label: str, value: str) -> bool:
        n_key, n_value = len(label.split()), len(value.split())
        if self._of_cpu or value[0] in "[{(":
            return True
        short = (n_key == 1 and n_value <= 3) or (n_key <= 3 and n_value == 1)
        return short or (n_key <= 5 and parse_quantity(value) is not None)

    @staticmethod
    def _said(text: str) -> list[Setting]:
        """Lines without any mark: a device, a process id inside a note, a command line."""
        if re.match(r"gpu:? [0-9A-Z]", text):
            return list(_device("gpu", text[3:].lstrip(": ")))
        pid = _PID.match(text)
        if pid:
            return [Setting("pid", pid[1], "option", number=float(pid[1])), Setting("note", text, "note")]
        return _command(text) if _LAUNCHED.fullmatch(text) and ": " not in text else []


def _of_report(label: str, value: str) -> Setting:
    """A line of DeepSpeed's report: `deepspeed info` begins with its version."""
    if label == "deepspeed info":
        return Setting("deepspeed", value.partition(",")[0], "version")
    if label.endswith(" version"):
        name = label.removesuffix(" version")
        return Setting({"torch cuda": "torch.version.cuda"}.get(name, name.replace(" ", "-")), value, "version")
    return _option(label, value)


def _option(key: str, value: str) -> Setting:
    value = _unquoted(value.strip())
    return Setting(key, value, "option", number=number_of(key, value))


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value


def _device(key: str, value: str, of: str = "") -> Iterator[Setting]:
    """What the description of a device says; `of` goes before the keys of one numbered device."""
    yield Setting(of + key, value, "device")
    capability = _CAPABILITY.search(value)
    if capability:
        yield Setting(f"{of}compute_capability", capability[1], "device", number=float(capability[1]))
    memory = _MEMORY_OF_DEVICE.findall(value)
    if len(memory) == 1:
        size = parse_size("".join(memory[0]))
        yield Setting(
            f"{of or 'gpu.'}memory", " ".join(memory[0]), "device", number=None if size is None else float(size)
        )
    count = _N_DEVICES.match(value)
    if count and not of:
        yield Setting("gpu.count", count[1], "device", number=float(count[1]))


def _command(text: str) -> list[Setting]:
    """A command line, and the options and variables on it under their names without dashes."""
    try:
        words = shlex.split(text)[:_MAX_FLAGS]
    except ValueError:  # unbalanced quotes
        words = text.split()[:_MAX_FLAGS]
    settings = [Setting("command", text, "command")]
    launched = False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        variable = None if launched else re.fullmatch(r"([A-Z_][A-Z0-9_]{0,100})=(.*)", word, re.DOTALL)
        flag = re.fullmatch(r"--([A-Za-z][\w.-]{0,100})(?:=(.*))?", word, re.DOTALL)
        launched = launched or variable is None
        if variable:
            settings.append(Setting(variable[1], variable[2], "variable", number=number_of(variable[1], variable[2])))
        elif flag:
            value = (
                flag[2] if flag[2] is not None else "true" if following.startswith("--") or not following else following
            )
            settings.append(_option(flag[1], value))
    return settings
