from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from stored_states import raw_safetensors, safetensors

from forensics.artifact import Source
from forensics.cli import main
from forensics.errors import ForensicsError
from forensics.formats._checkpoint_layout import at_places
from forensics.formats._safetensors_layout import read_safetensors
from forensics.models.key_collisions import FORMAT, apply_patch, find_collisions, keep_first


def merged(folder: Path) -> Path:
    """An adapter whose state dict was merged from two savings of it, one of them wrapped."""
    rows = {
        "base_model.model.q_proj.lora_A.weight": np.full((2, 3), 1, np.float32),
        "base_model.model.q_proj.lora_A.default.weight": np.full((2, 3), 2, np.float32),
        "base_model.model.q_proj.lora_B.weight": np.full((4, 2), 3, np.float16),
        "module.base_model.model.q_proj.lora_B.weight": np.full((4, 2), 4, np.float16),
        "base_model.model.v_proj.lora_A.weight": np.full((2, 3), 5, np.float32),
    }
    return safetensors(folder / "adapter_model.safetensors", rows, metadata={"format": "pt"})


def values(path: Path) -> dict[str, float]:
    with at_places(Source(path, path.name)) as (file, size):
        layout = read_safetensors(file, size)
    assert layout.problems == []
    data = path.read_bytes()
    kinds = {"float32": np.float32, "float16": np.float16}
    return {t.name: float(np.frombuffer(data, kinds[t.dtype], 1, t.start or 0)[0]) for t in layout.tensors}


def test_keys_that_write_one_parameter_are_found_with_all_their_sources(tmp_path: Path) -> None:
    merged(tmp_path)
    found = find_collisions(tmp_path)
    assert [c.key for c in found] == ["q_proj.lora_A.weight", "q_proj.lora_B.weight"]
    assert [tensor.name for _, tensor in found[1].sources][1].startswith("module.")


def test_the_patch_keeps_the_first_and_is_taken_back_byte_by_byte(tmp_path: Path) -> None:
    path = merged(tmp_path)
    before = path.read_bytes()
    patch = json.loads(json.dumps(keep_first(find_collisions(tmp_path))))
    assert path.read_bytes() == before
    apply_patch(patch, tmp_path)
    assert values(path) == {
        "base_model.model.q_proj.lora_A.weight": 1.0,
        "base_model.model.q_proj.lora_B.weight": 3.0,
        "base_model.model.v_proj.lora_A.weight": 5.0,
    }
    assert find_collisions(tmp_path) == []
    apply_patch(patch, tmp_path, undo=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "patch",
    [[1, 2], {}, {"format": FORMAT}, {"format": FORMAT, "files": [{"file": "x"}]}, {"format": FORMAT, "files": [3]}],
)
def test_a_patch_that_is_none_is_refused(patch: object, tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match=r"expected a patch|nothing was changed"):
        apply_patch(patch, tmp_path)


def test_the_patched_file_is_one_that_the_library_loads(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    path = merged(tmp_path)
    apply_patch(keep_first(find_collisions(tmp_path)), tmp_path)
    loaded = library.load_file(path)
    assert {name: float(value.flat[0]) for name, value in loaded.items()} == values(path)


def test_a_key_in_two_shards_is_kept_in_the_first_and_the_index_follows(tmp_path: Path) -> None:
    one, two = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
    safetensors(tmp_path / "m-1.safetensors", {"w": one, "a": one})
    safetensors(tmp_path / "m-2.safetensors", {"w": two, "b": two})
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"weight_map":{"w":"m-2.safetensors","a":"m-1.safetensors","b":"m-2.safetensors"}}')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    patch = keep_first(find_collisions(tmp_path))
    apply_patch(patch, tmp_path)
    assert values(tmp_path / "m-2.safetensors") == {"b": 2.0}
    assert json.loads(index.read_text())["weight_map"]["w"] == "m-1.safetensors"
    apply_patch(patch, tmp_path, undo=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_name_that_the_header_gives_twice_is_a_collision(tmp_path: Path) -> None:
    entry = '"w":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    text = "{" + entry % (0, 4) + "," + entry % (4, 8) + "}"
    path = raw_safetensors(tmp_path / "m.safetensors", text, np.array([1, 2], np.float32).tobytes())
    before = path.read_bytes()
    patch = keep_first(find_collisions(tmp_path))
    apply_patch(patch, tmp_path)
    assert values(path) == {"w": 1.0}
    apply_patch(patch, tmp_path, undo=True)
    assert path.read_bytes() == before


def test_a_file_that_changed_since_is_left_alone(tmp_path: Path) -> None:
    path = merged(tmp_path)
    patch = keep_first(find_collisions(tmp_path))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    changed = path.read_bytes()
    with pytest.raises(ForensicsError, match="not the file that the patch was made for"):
        apply_patch(patch, tmp_path)
    assert path.read_bytes() == changed
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_separate_files_of_one_folder_are_not_loaded_together(tmp_path: Path) -> None:
    for step in (1, 2):
        safetensors(tmp_path / f"step{step}.safetensors", {"w": np.full(2, step, np.float32)})
    assert find_collisions(tmp_path) == []


def test_the_command_writes_applies_and_takes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = merged(tmp_path / "s")
    before, patch = path.read_bytes(), str(tmp_path / "p.json")
    for arguments, code in ((["--write", patch], 1), (["--apply", patch], 0), ([], 0), (["--undo", patch], 0)):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint-collisions", str(tmp_path / "s"), *arguments])
        assert ended.value.code == code
    assert path.read_bytes() == before
    assert "drop  adapter_model.safetensors" in capsys.readouterr().out
