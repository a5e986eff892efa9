"""Every mechanism that breaks a capture is told by its own example, and its near miss is told as something else."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

import pytest

from forensics.models.capture_mechanisms import Clues, mechanism_of, mechanisms

ENTRIES: dict[str, dict[str, Any]] = tomllib.loads(
    files("forensics.models").joinpath("capture_mechanisms.toml").read_text(encoding="utf-8")
)


def clues(given: dict[str, Any]) -> Clues:
    names = {"class": "cls", "thread": "other_thread"}
    return Clues(
        **{names.get(key, key): value == "other" if key == "thread" else value for key, value in given.items()}
    )


def told(given: dict[str, Any]) -> str | None:
    found = mechanism_of(clues(given))
    return found[0].name if found else None


@pytest.mark.parametrize("name", ENTRIES)
def test_a_mechanism_is_told_by_its_example_and_not_by_its_near_miss(name: str) -> None:
    assert told(ENTRIES[name]["example"]) == name
    assert told(ENTRIES[name]["near_miss"]) != name


@pytest.mark.parametrize("name", ENTRIES)
def test_a_mechanism_can_be_told_in_every_way_it_names(name: str) -> None:
    for way in ENTRIES[name]["seen"]:
        assert set(way) <= {"class", "code", "frames", "message", "call", "op", "result", "thread"}
        for key in set(way) - {"class", "result", "thread"}:
            re.compile(way[key])


def test_there_are_many_distinct_mechanisms_each_with_a_fix_of_its_own() -> None:
    assert len(mechanisms()) >= 20
    assert len({mechanism.fix for mechanism in mechanisms()}) == len(mechanisms())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if (x > 0).any():", "item"),
        ("n = int(lengths.max())", "item"),
        ("values = scores.tolist()", "item"),
        ("tokens = tokens[tokens != pad]", "nonzero"),
        ("x = x[~mask]", "nonzero"),
        ("rows, = torch.where(x > 0)", "nonzero"),
        ("y = torch.where(x > 0, x, 0)", None),
        ("labels = labels.to('cpu')", "to-host"),
        ("w = torch.tensor([1.0, 2.0]).cuda()", "from-host"),
        ("return F.linear(x, self.weight)", None),
        ("x = x[:, idx]", None),
        ("if x.shape[0] > 4:", None),
        ("torch.cuda.synchronize()", "synchronise"),
        ("torch.cuda.empty_cache()", "cache-flush"),
        ("scaler.step(optimizer)", "scaler"),
        ("torch.manual_seed(step)", "generator-seed"),
        ("dist.barrier()", "collective"),
        ("print(f'loss {loss}')", "printing"),
    ],
)
def test_the_line_tells_what_a_forbidden_call_was(code: str, expected: str | None) -> None:
    assert told({"class": "capture.unsupported", "code": code}) == expected


@pytest.mark.parametrize(
    ("call", "op", "result", "expected"),
    [
        ("cudaStreamSynchronize", "aten::item\naten::_local_scalar_dense", 900, "item"),
        ("cudaStreamSynchronize", "aten::index\naten::nonzero", 900, "nonzero"),
        ("cudaStreamSynchronize", "aten::to\naten::_to_copy\naten::copy_", 900, "host-copy"),
        ("cudaDeviceSynchronize", "", 900, "synchronise"),
        ("cudaStreamSynchronize", "step 3\nhead", 900, "stream-wait"),
        ("cudaMalloc", "", 900, "raw-allocation"),
        ("cudaMalloc", "cublasCreate_v2", 900, "library-init"),
        ("cudaHostAlloc", "", 900, "host-memory"),
        ("cudaEventQuery", "", 907, "event-timing"),
        ("cuModuleLoadData", "", 900, "module-load"),
        ("cudaStreamWaitEvent", "autograd::engine::evaluate_function: AddBackward0", 905, "backward-outside"),
        ("cudaStreamWaitEvent", "", 905, "isolation"),
        ("cudaStreamEndCapture", "", 904, "unjoined"),
        ("cudaLaunchKernel", "aten::add", 906, "legacy-stream"),
        ("cudaLaunchKernel", "aten::add", 900, None),
    ],
)
def test_the_call_and_the_operators_around_it_tell_the_mechanism(
    call: str, op: str, result: int, expected: str | None
) -> None:
    assert told({"call": call, "op": op, "result": result}) == expected
