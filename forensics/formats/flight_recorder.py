"""Flight recorder dumps of torch.distributed (NCCL, gloo and others), pickle or JSON, from PyTorch 2.2 on.

A dump is what one rank recorded: the last collectives that it called (a ring buffer), its process groups and how far
each got. Nothing in it is the rank; groups of which the rank is the only common member tell it, else the file's name
does. Times are ns since the epoch of the rank's host; starts and completions are when its watchdog looked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from typing import Any

from forensics.artifact import Head, Place, Sink, Source, Stacks
from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats._columns import Columns, clean_text
from forensics.formats._flight_calls import Call, call_keys, gathered
from forensics.formats._flight_entries import EntryRows
from forensics.formats._flight_groups import Groups
from forensics.formats._lenient_json import JsonWalk, as_int
from forensics.formats._pickle import gc_paused, read_pickle, shown, walk_pickle
from forensics.formats._text_lines import decode_text

VERSION = 3
TITLE = "Flight recorder dump of collectives (pickle or JSON)"
PROVIDES = ("collective", "collective.stack", "collective.complete", "process_group", "fact")

MAX_BYTES = 1 << 29  # decompressed; an entry takes about 300 bytes, 1 KB with its stack
MAX_ENTRIES = 1_000_000
_TOP_KEYS = {"version", "entries", "pg_config", "pg_status", "comm_lib_version", "nccl_version", "nccl_comm_state"}
_ENTRY_KEYS = {"profiling_name", "collective_seq_id", "seq_id", "record_id", "pg_id", "process_group"}
_MAX_COMM_FACTS = 200
_FIRST_LOOK = 4096  # bytes
# `<prefix><rank>`: _dump_0, nccl_trace_rank_3, comm_lib_trace_rank_3, trace_node-7_12, and what was put behind it.
_TRAILING_RANK = re.compile(r"(?:^|\D)(\d{1,6})(?:\.(?:json|pickle|pkl|bin|dump|gz|zst|xz))*$")
_NAMED_RANK = re.compile(r"(?<![a-z])rank[_.\-=]?(\d{1,6})(?!\d)", re.IGNORECASE)


def recognise(head: Head) -> int:
    data = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if data.startswith(b"{"):
        keys = [key for key in _TOP_KEYS if f'"{key}"'.encode() in data]
        foreign = any(key in data for key in (b'"traceEvents"', b'"schema"', b'"segments"'))
        # The order of keys is alphabetic: version comes last and may lie behind the head.
        is_one = "pg_status" in keys or b'"profiling_name"' in data or b'"comm_lib_version"' in data
        return 90 if is_one and len(keys) >= 2 and not foreign else 0
    if data[:1] not in (b"\x80", b"(", b"]", b"}"):
        return 0
    if not any(key in data for key in (b"pg_config", b"pg_status", b"profiling_name", b"comm_lib_version")):
        return 0
    for part in (data[:_FIRST_LOOK], data):  # most tell at once what they are; walking the head of each takes longer
        try:
            if _as_dump(walk_pickle(part).value) is not None:
                return 95
        except Untrusted:  # whose file it is, and why it is refused, can still be said
            return 30 if data[:1] == b"\x80" else 0
        except ArtifactError:
            continue
    return 0


def locate(source: Source, row: int, near: object = None) -> Place | None:
    """Where a row is: its ordinal among the entries."""
    return Place(row=row)


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        data = stream.read(MAX_BYTES + 1)
    try:
        with gc_paused():
            _load(data[:MAX_BYTES], source, sink, more=len(data) > MAX_BYTES)
    except ArtifactError as error:
        raise type(error)(f"{source.name}: {error}", byte=error.byte) from None


def _load(data: bytes, source: Source, sink: Sink, *, more: bool) -> None:
    is_json = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    value, error, n_lost = _read_json(data) if is_json else _read_pickle(data)
    dump = _as_dump(value)
    if dump is None:
        raise error or ArtifactError(f"holds {shown(value, 80)}; expected entries, pg_config or pg_status")
    _Loader(source, sink, dump, damaged=error is not None or more).run()
    if error is not None:
        missing = [key for key in ("entries", "pg_config", "pg_status") if key not in dump]
        hides = "collectives behind the damage" + "".join(f"; {key} entirely" for key in missing)
        code = "truncated" if isinstance(error, Truncated) else "damaged-json" if is_json else "damaged-pickle"
        sink.damaged("partial", byte=error.byte, lost_bytes=n_lost)
        if isinstance(error, Untrusted):
            raise error
        sink.warn(code, f"{error}; what came before was kept. {source.damage or ''}".strip(), hides, byte=error.byte)


def _read_pickle(data: bytes) -> tuple[Any, ArtifactError | None, int]:
    pickled = read_pickle(data)
    if pickled.error is not None and type(pickled.value) is dict:
        entries = pickled.value.get("entries")
        last = entries[-1] if type(entries) is list and entries else None
        if type(entries) is list and type(last) is dict and not {"profiling_name", "state"} <= last.keys():
            entries.pop()  # cut in its middle
    return pickled.value, pickled.error, len(data) - pickled.end


def _read_json(data: bytes) -> tuple[Any, ArtifactError | None, int]:
    """The document with what is whole of its entries, the damage if any, and the bytes behind it."""
    text = decode_text(data).lstrip("\ufeff")
    walk = JsonWalk(text, lambda path, first: path[:1] != ("entries",) or len(path) == 2 if path else first == "[")
    dump: dict[str, Any] = {}
    whole: Any = dump
    for leaf in walk.leaves():
        if not leaf.path:
            whole = leaf.value
        elif leaf.path[0] == "entries" and len(leaf.path) == 2:
            dump.setdefault("entries", []).append(leaf.value)
        else:
            dump[str(leaf.path[0])] = leaf.value
    if walk.damage is None:
        return whole, None, 0
    byte = len(text[: walk.damage].encode("utf-8", "replace"))
    kind = Truncated if walk.damage >= len(text.rstrip()) - 1 or "nterminated" in walk.reason else ArtifactError
    return whole, kind(f"no JSON from byte {byte} on ({walk.reason})", byte=byte), len(data) - byte


def _as_dump(value: Any) -> dict[str, Any] | None:
    """The value as a dump; None when it is something else, such as a memory snapshot."""
    if type(value) is list:  # PyTorch 2.2 and 2.3 wrote the entries alone
        first = value[0] if value else None
        is_one = type(first) is dict and "profiling_name" in first and len(_ENTRY_KEYS.intersection(first)) > 1
        return {"entries": value} if is_one else None
    if type(value) is not dict or "segments" in value or "device_traces" in value:
        return None
    keys = _TOP_KEYS.intersection(k for k in value if isinstance(k, str))
    return value if len(keys) > 1 and keys - {"version", "entries"} else None


class _Loader:
    def __init__(self, source: Source, sink: Sink, dump: dict[str, Any], *, damaged: bool) -> None:
        self.source = source
        self.sink = sink
        self.dump = dump
        self.damaged = damaged
        self.columns = Columns()
        told = dump.get("entries")
        listed: list[Any] = list(told) if isinstance(told, list | tuple) else []
        self.n_read = len(listed)
        entries = [entry for entry in listed[:MAX_ENTRIES] if type(entry) is dict]
        self.given, self.n_entries = gathered(entries), len(entries)
        records = self.given["record_id"]
        if set(map(type, records)) != {int}:
            records = [as_int(record, 0) for record in records]
        self.first = records[0] if records else None
        self.gaps = _missing_records(records)
        n_bad = len(listed[:MAX_ENTRIES]) - self.n_entries
        self.columns.bad["entries"] += n_bad + (told is not None and not isinstance(told, list | tuple))

    def run(self) -> None:
        groups, stacks = Groups(self.columns), Stacks()
        keys = call_keys(self.given)
        calls = {key: Call(*key) for key in dict.fromkeys(keys)}
        groups.read(self.dump.get("pg_config"), list(calls.values()), self.dump.get("pg_status"))
        rows = EntryRows(self.sink, self.columns, stacks)
        rows.add(self.given, keys, {key: groups.called(call) for key, call in calls.items()})
        if groups.by_name:
            self.sink.emit("process_group", groups.table())
        if rows.n_stacks:
            self.sink.emit("stack", stacks.table())
        self.describe_process(groups)
        self.tell_facts()
        self.cover(rows, groups)
        self.warn_of_gaps(groups)
        self.warn_of_content(groups)

    def describe_process(self, groups: Groups) -> None:
        candidates = groups.candidates()
        named = _rank_of(self.source)
        sizes = [len(g.ranks) for g in groups.by_name.values() if g.ranks and g.name in ("0", "default_pg")]
        rank, origin = named, "file-name" if named is not None else "none"
        if candidates is not None and len(candidates) == 1:
            rank, origin = next(iter(candidates)), "content"
        if candidates and named is not None and named not in candidates:
            who = "rank " + ", ".join(map(str, sorted(candidates)[:10]))
            text = f"the file's name says rank {named}, but its groups are those of {who}"
            self.sink.warn("rank-mismatch", text, "whose dump this is, where several ranks remain possible")
        self.sink.proc(0, rank=rank, rank_origin=origin, world_size=sizes[0] if sizes else None)

    def tell_facts(self) -> None:
        for key, told, scope in (
            ("version", "flight-recorder", "version"),
            ("comm_lib_version", "comm-lib", "version"),
            ("nccl_version", "nccl", "version"),
        ):
            value = self.columns.text(key, self.dump.get(key))
            if value:
                self.sink.fact(told, value[:200], scope=scope, proc=0)
        states = self.dump.get("nccl_comm_state")
        for name, state in list(states.items())[:_MAX_COMM_FACTS] if type(states) is dict else ():
            if type(state) is dict:
                self.sink.fact(
                    f"nccl_comm_state.{clean_text(str(name), 100)}", shown(state), scope="distributed", proc=0
                )

    def cover(self, rows: EntryRows, groups: Groups) -> None:
        span: dict[str, Any] = {"from_ns": rows.span[0], "to_ns": rows.span[1]}
        whole = not self.damaged and self.n_read == rows.count
        if rows.span[0] is not None:
            self.sink.clock("epoch")
        if "entries" in self.dump or not self.damaged:
            # An empty list still says something: nothing was left unfinished, or nothing was recorded.
            self.sink.cover("collective", complete=whole, n_read=self.n_read, n_kept=rows.count, **span)
            if whole and self.first == 0 and not self.gaps:
                self.sink.cover("collective.complete", n_read=self.n_read, n_kept=rows.count, **span)
        if rows.n_stacks:
            complete = rows.n_stacks == rows.count
            self.sink.cover("collective.stack", complete=complete, n_read=rows.count, n_kept=rows.n_stacks, **span)
        n_groups = len(groups.by_name)
        if n_groups:
            is_possible = not any(_is_ahead(g.progress) for g in groups.by_name.values())
            complete = not self.damaged and not groups.n_unjoined and is_possible
            self.sink.cover("process_group", complete=complete, n_read=n_groups + groups.n_dropped, n_kept=n_groups)

    def warn_of_gaps(self, groups: Groups) -> None:
        """What a whole dump does not hold: finished collectives, overwritten ones, everything."""
        enqueued = [g.progress.get("last_enqueued") for g in groups.by_name.values()]
        if not self.n_entries:
            n_called = sum(1 for n in enqueued if n)
            behind = [g for g in groups.by_name.values() if _is_behind(g.progress)]
            if behind:
                text = f"no collective is recorded, although {len(behind)} groups have unfinished ones"
                self.sink.warn("recorder-off", text + ": the recorder was off (buffer size 0)", "which they are")
            elif n_called:
                text = f"no collective is recorded: all those of {n_called} groups were finished, or recording was off"
                self.sink.warn("no-entries", text, "what this rank called last, and from where")
            elif not self.damaged:
                text = "neither collectives nor progress are recorded: recording was off, or nothing was ever called"
                self.sink.warn("empty-dump", text, "what this rank called")
            return
        first, gaps = self.first, self.gaps
        finished = "completed" in self.given["state"] or any(retired is True for retired in self.given["retired"])
        if (first or gaps) and not finished:
            text = (
                f"only unfinished collectives are in the dump; {(first or 0) + sum(gaps)} earlier records are left out"
            )
            self.sink.warn("unfinished-only", text, "what finished before and between them")
        elif first:
            text = f"the ring buffer wrapped: it starts with record {first} of {first + self.n_entries}"
            self.sink.warn("wrapped-buffer", text, "collectives before the first record")

    def warn_of_content(self, groups: Groups) -> None:
        warn = self.sink.warn
        if self.n_read > MAX_ENTRIES:
            warn("too-many-entries", f"{self.n_read} entries; {MAX_ENTRIES} were read", "the others")
        if groups.n_unjoined:
            text = f"the progress of {groups.n_unjoined} groups (pg_status) cannot be joined to their names"
            warn("unjoined-status", text, "how far these groups got on this rank")
        ahead = [g.name for g in groups.by_name.values() if _is_ahead(g.progress)]
        if ahead:
            text = f"impossible: more collectives of {len(ahead)} groups ({', '.join(ahead[:5])}) ended than were begun"
            warn("impossible-state", text, "how far these groups got on this rank")
            self.sink.damaged("partial")
        unknown = sorted(shown(k, 40) for k in self.dump if k not in _TOP_KEYS)
        if unknown:
            warn("unknown-keys", f"keys unknown here: {', '.join(unknown[:10])}", "what these keys say")
        bad = +self.columns.bad
        if bad:
            fields = ", ".join(f"{name} ({n})" for name, n in sorted(bad.items())[:20])
            warn("bad-values", f"values of the wrong kind or out of range: {fields}", "these values")


def _rank_of(source: Source) -> int | None:
    found = _NAMED_RANK.search(source.own_name) or _TRAILING_RANK.search(source.own_name)
    return int(found[1]) if found else None


def _is_behind(progress: dict[str, int | None]) -> bool:
    return (progress.get("last_enqueued") or 0) > (progress.get("last_completed") or 0)


def _is_ahead(progress: dict[str, int | None]) -> bool:
    enqueued, completed = progress.get("last_enqueued"), progress.get("last_completed")
    return enqueued is not None and completed is not None and completed > enqueued


def _missing_records(numbers: Sequence[int | None]) -> list[int]:
    """How many records are missing at each gap between the entries."""
    if None in numbers:
        pairs = [(a, b) for a, b in pairwise(numbers) if a is not None and b is not None]
        return [b - a - 1 for a, b in pairs if b - a > 1]
    return [step - 1 for step in map(sub, numbers[1:], numbers) if step > 1]
