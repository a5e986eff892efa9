from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from stored_states import safetensors

from forensics.cli import main
from forensics.errors import ForensicsError
from forensics.models.checkpoint_diff import diff_states, tree_of


def test_each_tensor_is_told_by_what_became_of_it(tmp_path: Path) -> None:
    base = np.arange(1, 5, dtype=np.float32)
    moved, broken = base.copy(), base.copy()
    moved[0], broken[2] = 4.0, np.nan
    a = {"l.same": base, "l.moved": base, "l.broken": base, "l.shape": base, "l.gone": base, "l.half": base}
    b = {"l.same": base, "l.moved": moved, "l.broken": broken, "l.shape": base.reshape(2, 2), "l.new": base}
    b["l.half"] = base.astype(np.float16)
    safetensors(tmp_path / "a.safetensors", a)
    safetensors(tmp_path / "b.safetensors", b)
    found = {d.name: d for d in diff_states(tmp_path / "a.safetensors", tmp_path / "b.safetensors")}
    assert {name[2:]: d.state for name, d in found.items()} == {
        "same": "equal",
        "moved": "moved",
        "broken": "moved",
        "shape": "shape",
        "gone": "only-a",
        "half": "dtype",
        "new": "only-b",
    }
    assert (found["l.moved"].n_changed, found["l.moved"].max_distance) == (1, 3.0)
    assert found["l.moved"].relative == pytest.approx(3 / 30**0.5)
    assert (found["l.broken"].n_broken, found["l.broken"].max_distance) == (1, 0.0)
    branch = tree_of(list(found.values())).children["l"]
    assert sum(branch.states.values()) == 7
    assert branch.n_broken == 1


def test_a_tensor_of_many_chunks_is_compared_to_its_last_element(tmp_path: Path) -> None:
    values = np.ones(3_000_001, np.float32)
    other = values.astype(np.float64)
    other[-1] = 2
    safetensors(tmp_path / "a", {"w": values})
    safetensors(tmp_path / "b", {"w": other})
    (diff,) = diff_states(tmp_path / "a", tmp_path / "b")
    assert (diff.n_changed, diff.max_distance) == (1, 1.0)


def test_shards_are_one_state_and_what_is_cut_is_not_compared(tmp_path: Path) -> None:
    ones = np.ones(8, np.float32)
    safetensors(tmp_path / "a" / "1.safetensors", {"v": ones})
    safetensors(tmp_path / "a" / "2.safetensors", {"w": ones})
    whole = safetensors(tmp_path / "b" / "all.safetensors", {"v": ones, "w": ones})
    assert {d.state for d in diff_states(tmp_path / "a", tmp_path / "b")} == {"equal"}
    whole.write_bytes(whole.read_bytes()[:-4])
    assert {d.name: d.state for d in diff_states(tmp_path / "a", tmp_path / "b")} == {"v": "equal", "w": "unread"}


def test_the_command_prints_a_tree_and_its_exit_code_says_whether_anything_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    safetensors(tmp_path / "a", {"m.x": np.ones(4, np.float32), "m.y": np.ones(4, np.float32)})
    safetensors(tmp_path / "b", {"m.x": np.ones(4, np.float32), "m.y": np.full(4, 2, np.float32)})
    for arguments, code in (([], 1), (["--format", "json"], 1)):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint-diff", str(tmp_path / "a"), str(tmp_path / "b"), *arguments])
        assert ended.value.code == code
        out = capsys.readouterr().out
        assert "relative" in out
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["equal", "moved"]
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint-diff", str(tmp_path / "a"), str(tmp_path / "a")])
    assert ended.value.code == 0


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="no tensor found"):
        diff_states(tmp_path, tmp_path)


def test_a_tensor_without_a_finite_element_has_no_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = safetensors(tmp_path / "a.safetensors", {"gone": np.ones(3, np.float32), "w": np.ones(3, np.float32)})
    b = safetensors(tmp_path / "b.safetensors", {"gone": np.full(3, np.nan, np.float32), "w": np.ones(3, np.float32)})
    with pytest.raises(SystemExit):
        main(["checkpoint-diff", str(a), str(b), "--format", "json"])
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["gone"]["max_distance"] is None and rows["gone"]["relative_distance"] is None
    assert rows["w"]["max_distance"] == rows["w"]["relative_distance"] == 0
