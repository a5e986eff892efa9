from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from support import SHARED, needs_artifacts

from forensics.discovery import discover
from forensics.formats import _log_catalogue
from forensics.formats._log_catalogue import FOLDER, Catalogue, Signature, catalogue, read_signatures
from forensics.formats._log_fields import typed
from forensics.ingest import ingest

SIGNATURES = read_signatures(FOLDER)
ROLES = {"primary", "symptom", "secondary", "evidence", "performance", "noise"}
LEVELS = {None, "debug", "info", "warning", "error", "fatal"}
GIB, MIB = 1 << 30, 1 << 20


def named(signature: Signature) -> str:
    return signature.name


@pytest.mark.parametrize("signature", SIGNATURES, ids=named)
def test_an_entry_matches_its_examples_and_not_its_near_misses(signature: Signature) -> None:
    for example in signature.examples:
        assert signature.name in {match.name for match in catalogue().match(example)}, example
    for near_miss in signature.near_misses:
        assert signature.match(near_miss) is None, near_miss


@pytest.mark.parametrize("signature", SIGNATURES, ids=named)
def test_an_entry_keeps_to_the_vocabulary(signature: Signature) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", signature.name)
    assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", signature.cls)
    assert signature.role in ROLES
    assert signature.level in LEVELS
    assert signature.hints and all(len(hint) >= 3 for hint in signature.hints)
    assert signature.near_misses
    known = {other.name for other in SIGNATURES}
    assert signature.refines <= known - {signature.name}
    for case in signature.cases:
        assert case.changes.get("role", "primary") in ROLES
        assert case.changes.get("level") in LEVELS
        groups = set(signature.regex.groupindex) | set(signature.parts)
        assert case.when in groups, f"{case.when} is never captured"


@pytest.mark.parametrize("signature", SIGNATURES, ids=named)
def test_an_entrys_hints_are_in_its_examples(signature: Signature) -> None:
    for example in signature.examples:
        assert any(hint in example for hint in signature.hints), example


@pytest.mark.parametrize("signature", SIGNATURES, ids=named)
def test_no_pattern_is_slow_on_long_lines(signature: Signature) -> None:
    example = signature.examples[0]
    cut = example[: max(len(example) * 2 // 3, 4)]
    fillers = [filler * (32768 // len(filler)) + signature.hints[0] for filler in (" ", "0", ".", "a", ": ", "a.")]
    words = (signature.hints[0] + " ") * (16384 // (len(signature.hints[0]) + 1))
    for text in (cut * (16384 // len(cut)), words, *fillers):
        began = time.perf_counter()
        signature.match(text)
        assert time.perf_counter() - began < 1.0


def test_a_name_is_used_once(tmp_path: Path) -> None:
    keys = {"pattern": "x", "class": "a", "role": "noise", "source": "job", "example": "x", "near_miss": "y"}
    entry = "[a]\n" + "\n".join(f'{key} = "{value}"' for key, value in keys.items())
    (tmp_path / "one.toml").write_text(entry)
    (tmp_path / "two.toml").write_text(entry)
    with pytest.raises(ValueError, match="names are unique"):
        read_signatures(tmp_path)


def test_an_entry_that_refines_another_is_given_alone() -> None:
    error = "CUDA error: operation not permitted when stream is capturing"
    text = f"Process group watchdog thread terminated with exception: {error}"
    assert [match.name for match in catalogue().match(text)] == ["capture-watchdog"]


def test_hints_that_hold_digits_are_found() -> None:
    assert [m.name for m in catalogue().match("Error 802: system not yet initialized")] == ["system-not-initialized"]
    assert not catalogue().match("Error 803: all is well")


def test_texts_that_differ_in_digits_only_are_told_apart() -> None:
    same = Catalogue(SIGNATURES)
    assert [m.fields["xid"] for m in same.match("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, lost")] == [79]
    match = same.match("NVRM: Xid (PCI:0000:3b:00): 45, pid=1, lost")[0]
    assert (match.fields["xid"], match.role) == (45, "secondary")


ASKED = "CUDA out of memory. Tried to allocate"


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        (
            f"{ASKED} 20.00 MiB (GPU 3; 7.93 GiB total capacity; 6.70 GiB already allocated; 18.50 MiB free;"
            " 6.78 GiB reserved in total by PyTorch)",
            "cuda-oom-old",
            {
                "requested_bytes": 20 * MIB,
                "device": 3,
                "free_bytes": int(18.5 * MIB),
                "reserved_bytes": int(6.78 * GIB),
            },
        ),
        (
            f"{ASKED} 2.00 GiB (GPU 0; 23.65 GiB total capacity; 9.00 GiB already allocated; 12.00 GiB free;"
            " 11.82 GiB allowed; 10.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated",
            "cuda-oom-old",
            {"allowed_bytes": int(11.82 * GIB), "free_bytes": 12 * GIB, "allocated_bytes": 9 * GIB},
        ),
        (
            f"{ASKED} 1.00 MiB (GPU 0; 15.75 GiB total capacity; 1.00 GiB already allocated; 0 bytes free;"
            " 137.70 MiB cached)",
            "cuda-oom-old",
            {"free_bytes": 0, "cached_bytes": int(137.7 * MIB)},
        ),
        (
            f"{ASKED} 108.00 MiB. GPU 1 has a total capacty of 7.75 GiB of which 93.25 MiB is free."
            " Process 11 has 1.00 GiB memory in use. Process 12 has 512.00 MiB memory in use."
            " Including non-PyTorch memory, this process has 6.00 GiB memory in use. Of the allocated memory"
            " 5.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.",
            "cuda-oom",
            {
                "device": 1,
                "capacity_bytes": int(7.75 * GIB),
                "process_bytes": 6 * GIB,
                "other_bytes": GIB + 512 * MIB,
                "n_other_processes": 2,
                "allocated_bytes": 5 * GIB,
                "reserved_unallocated_bytes": 200 * MIB,
            },
        ),
        (
            "HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 64.00 GiB of which 0 bytes"
            " is free. Of the allocated memory 50.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private"
            " pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but unallocated.",
            "cuda-oom",
            {"private_pool_bytes": 2 * GIB, "free_bytes": 0},
        ),
        (
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
            " per_process_memory_fraction limit. Requested size: 2.00 GiB",
            "cuda-oom-fraction",
            {"requested_bytes": 2 * GIB},
        ),
    ],
)
def test_every_era_of_the_out_of_memory_text_gives_its_numbers(text: str, name: str, fields: dict[str, int]) -> None:
    found = [match for match in catalogue().match(text) if match.role == "primary"]
    assert [match.name for match in found] == [name]
    assert {key: found[0].fields.get(key) for key in fields} == fields


def test_the_own_process_is_found_where_a_container_hides_which_it_is() -> None:
    text = (
        f"{ASKED} 1.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0 bytes is free."
        " Process 900 has 30.00 GiB memory in use. Process 901 has 49.00 GiB memory in use. Of the allocated memory"
        " 28.50 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    fields = catalogue().match(text)[0].fields
    assert (fields["process_bytes"], fields["other_bytes"]) == (30 * GIB, 49 * GIB)


def test_numbers_that_no_device_can_have_are_left_out() -> None:
    text = (
        f"{ASKED} 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free."
        " Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."
    )
    assert "process_bytes" not in catalogue().match(text)[0].fields


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512 bytes", 512),
        ("31786400kB", 31786400 * 1024),
        ("0.50 GiB", GIB // 2),
        ("4 GB", 4 * GIB),
        ("2,048", 2048),
        ("2048.00 TiB", None),
        ("some", None),
    ],
)
def test_sizes_are_read_in_bytes(text: str, size: int | None) -> None:
    assert typed("limit_bytes", text) == size


def test_the_suffix_of_a_fields_name_says_its_type() -> None:
    assert typed("lagging_ranks", "1, 2") == [1, 2]
    assert typed("step_id", "18835145.0") == "18835145.0"
    assert typed("timeout_ms", "600000") == 600000
    assert typed("loss_scale", "0.5") == 0.5
    assert typed("pid", "<unknown>") is None
    assert typed("reason", "'quoted'") == "quoted"


@needs_artifacts
def test_the_reference_catalogue_is_covered() -> None:
    entries = json.loads((SHARED / "errors.json").read_text())
    for entry in entries:
        matches = catalogue().match(entry["example"])
        assert matches, entry["id"]
        if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", entry["cls"]):
            assert entry["cls"] in {match.cls for match in matches}, entry["id"]


@pytest.mark.parametrize("name", ["rank_0.log", "error.json"])
def test_rows_in_the_cache_are_not_used_again_once_the_catalogue_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "artifacts").mkdir()
    text = {"rank_0.log": "ERROR it broke\n", "error.json": '{"message": {"message": "it broke", "extraInfo": {}}}'}
    (tmp_path / "artifacts" / name).write_text(text[name])

    def reused() -> list[bool]:
        found = discover(tmp_path / "artifacts", tmp_path / "work")
        return [item.reused for item in ingest(found, tmp_path / "cache")]

    try:
        assert (reused(), reused()) == ([False], [True])
        copy = shutil.copytree(_log_catalogue.FOLDER, tmp_path / "signatures")
        monkeypatch.setattr(_log_catalogue, "FOLDER", copy)
        _log_catalogue.catalogue_edition.cache_clear()
        assert reused() == [True]  # the same content elsewhere
        with (copy / "memory.toml").open("a", encoding="utf-8") as file:
            file.write("# one more line\n")
        _log_catalogue.catalogue_edition.cache_clear()
        assert reused() == [False]
    finally:
        _log_catalogue.catalogue_edition.cache_clear()
