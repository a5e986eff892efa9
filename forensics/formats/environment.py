"""Environment and settings: env.txt, pip and collect_env lists, command lines, job scripts, option files.

Every line becomes at least one fact: what is no version, variable, option, command, device, host or outcome stays as a
note with its line number, so that rules can cite it. Names that look secret lose their values.
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._lenient_json import JsonWalk
from forensics.formats._settings import Setting, SettingFacts
from forensics.formats._settings_documents import YamlSettings, json_settings, looks_like_yaml
from forensics.formats._settings_lines import SettingLines
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines, read_text, without_ansi

VERSION = 3
TITLE = "Environment and settings (env.txt, config.json, pip freeze, collect_env)"
PROVIDES = ("fact",)

_MAX_BYTES = 16 << 20
_MAX_LINE = 16_384
_LOOK_AT_LINES = 400
_NAMED_SETTINGS = re.compile(
    r"(?:^|[_.\-])(?:env|environment|collect_env|config|configs|settings?|args|arguments|hparams|hyperparams|params|pip|freeze"
    r"|requirements|conda|versions?|packages|sysinfo|system_info|cmd|command|cmdline|sbatch|ds|zero|deepspeed|accelerate"
    r"|recipe)(?:[_.\-]|$)",
    re.IGNORECASE,
)
_NAMED_LOG = re.compile(r"(?:^|[_.\-])(?:log|logs|stdout|stderr|out|err|console)(?:[_.\-0-9]|$)", re.IGNORECASE)
# A job script's `echo $? > exit_code`: nothing but the number, so here the name has to say what it is.
_NAMED_EXIT = re.compile(r"(?:^|[_.\-])(?:exit|return)[_.\-]?(?:code|status)", re.IGNORECASE)
_BARE_NUMBER = re.compile(r"\s{0,20}(-?[0-9]{1,6})\s{0,20}")
# Texts of logs, kernel messages, cluster events and dumps, whatever else stands beside them.
_FOREIGN = re.compile(
    r"Traceback \(most recent call last\)|OOMKilled|oom-kill|Killed process|NVRM: Xid|slurmstepd|Evicted|BackOff"
    r"|lastState:|exitCode:|[Cc]ontainerStatuses:"
    r"|# (?:HELP|TYPE) |NVSMI LOG|\| NVIDIA-SMI|^Thread 0x|Fatal Python error|\[__recompiles\]"
    r"|PyTorch CUDA memory summary",
    re.MULTILINE,
)
_JSON_LIST = re.compile(r"\s{0,100}\[\s{0,100}(?:[\[{\"\]]|-?[0-9])")  # not the section of an INI file
# Documents that are no settings: traces, dumps, indices, vocabularies, lists of records.
_FOREIGN_DOCUMENT = re.compile(
    r'"(?:traceEvents|log_history|weight_map|resourceSpans|device_traces|pg_config|added_tokens|stackFrames|vocab)"\s{0,20}:'
    r'|"(?:data|items|nodes|spans|entries|segments)"\s{0,20}:\s{0,200}\[\s{0,200}\{'
)
# fmt: off
_OPTION_KEYS = {
    "model_type", "torch_dtype", "architectures", "learning_rate", "lr", "fp16", "bf16", "batch_size",
    "zero_optimization", "train_batch_size", "gradient_checkpointing", "optimizer", "max_grad_norm", "grad_clip",
    "seed", "world_size", "dtype", "env", "versions", "deepspeed", "num_workers", "attn_implementation",
}
# fmt: on
_STRONG_SCOPES = {"version", "variable", "command", "outcome", "device", "host", "distributed"}


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff")
    if _FOREIGN.search(text) or _JSON_LIST.match(text):
        return 0
    name = head.name.rpartition("/")[2]
    if head.whole and _NAMED_EXIT.search(name) and _BARE_NUMBER.fullmatch(text):
        return 80
    named = bool(_NAMED_SETTINGS.search(name))
    if text.lstrip().startswith("{"):
        return _rate_document(text, named)
    lines = [line for line in head_lines(text, whole=head.whole)[:_LOOK_AT_LINES] if line.strip()]
    named = named or name.endswith((".yaml", ".yml"))
    rate = _rate_lines(lines, named) if lines else 0
    collected = text.lstrip().startswith(("Collecting environment information", "PyTorch version:"))
    if collected and (named or rate >= 60):  # logs of jobs may begin with such a report
        return 85
    return 0 if _NAMED_LOG.search(name) and rate < 60 else rate


def _rate_document(text: str, named: bool) -> int:
    if _FOREIGN_DOCUMENT.search(text):
        return 0
    settings, walk = json_settings(text)
    top = {setting.key.split(".", 1)[0] for setting in settings}
    if not settings or len(settings) > 5000 or _is_lines(text, walk):
        return 0
    if walk.damage is not None and not named:
        return 20 if top & _OPTION_KEYS else 0
    longest = max(len(setting.value) for setting in settings)
    if longest > 4000:  # tensors, traces, texts
        return 0
    if top & _OPTION_KEYS:
        return 60 if named else 45
    return 45 if named else 25


def _is_lines(text: str, walk: JsonWalk) -> bool:
    """Whether another document follows the first one."""
    return walk.damage is not None and text[walk.damage : walk.damage + 1] == "{"


def _rate_lines(lines: list[str], named: bool) -> int:
    if any(line.startswith(("#SBATCH ", "#PBS ", "#BSUB ")) for line in lines):
        return 60
    if looks_like_yaml(lines):  # a policy may name what logs report: above the log's own certainty
        return 50 if named else 30
    reader = SettingLines()
    found = [setting for number, line in enumerate(lines, start=1) for setting in reader.read(line, number)]
    typed = [setting for setting in found if setting.scope != "note"]
    told = {(setting.scope, setting.key) for setting in typed}
    n_lines = len({setting.line for setting in typed})
    if len(told) < 0.7 * len(typed):  # the same keys again and again: progress, not settings
        return 0
    strong = len({setting.line for setting in typed if setting.scope in _STRONG_SCOPES})
    n_read = len({setting.line for setting in found})  # without headings
    if strong >= 0.6 * n_read and (named or strong >= 3):
        return 60
    loose = n_lines >= 0.5 * n_read > 0
    return 20 * loose + 10 * (named and loose) or 20 * named


def load(source: Source, sink: Sink) -> None:
    facts = SettingFacts(sink)
    head = source.head()
    text = decode_text(head.data).lstrip("\ufeff")
    bare = _BARE_NUMBER.fullmatch(text) if head.whole else None
    if bare:
        facts.add(Setting("exit_code", bare[1], "outcome", 1, float(bare[1])))
        n_read, complete = 1, True
    elif text.lstrip().startswith("{"):
        n_read, complete = _load_document(source, sink, facts)
    else:
        n_read, complete = _load_lines(source, facts, yaml=looks_like_yaml(head_lines(text, whole=head.whole)))
    kept = facts.finish(n_read=n_read, complete=complete and source.damage is None)
    if not kept:
        raise ArtifactError(f"{source.name}: no setting and no text; expected lines such as `key: value`", byte=0)


def _load_document(source: Source, sink: Sink, facts: SettingFacts) -> tuple[int, bool]:
    text, more = read_text(source, _MAX_BYTES)
    settings, walk = json_settings(text)
    for setting in settings:
        facts.add(setting)
    if walk.damage is not None:
        byte = len(text[: walk.damage].encode())
        line = text.count("\n", 0, walk.damage) + 1
        reason = f"more than {_MAX_BYTES} bytes" if more else walk.reason
        sink.warn("truncated", f"no JSON from line {line} on ({reason})", "settings that follow", byte=byte, line=line)
        sink.damaged("partial", byte=byte)
    return len(settings), walk.damage is None


def _load_lines(source: Source, facts: SettingFacts, *, yaml: bool) -> tuple[int, bool]:
    reader, documents = SettingLines(), YamlSettings()
    n_read = 0
    complete = True
    for number, line, whole in numbered_lines(source, max_chars=_MAX_LINE):
        n_read += 1
        complete = complete and whole
        read: list[Setting] = documents.read(line, number) if yaml else reader.read(without_ansi(line), number)
        for setting in read:
            facts.add(setting)
    return n_read, complete
