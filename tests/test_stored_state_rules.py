"""The whole analysis over folders of checkpoints, without a log: what the rules say of the files alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from stored_states import adapter, safetensors

from forensics.pipeline import analyze


def messages(folder: Path, out: Path) -> dict[str, str]:
    return {finding.rule: finding.message for finding in analyze(folder, out).findings}


def test_faults_of_stored_states_are_found_in_the_files_alone(tmp_path: Path) -> None:
    draw, job = np.random.default_rng(0), tmp_path / "job"
    down, up, ones = draw.normal(size=(4, 6)), draw.normal(size=(6, 4)), np.ones((2, 3), np.float32)
    adapter(job / "lora", {"layers.0.q_proj": (up, down), "layers.1.q_proj": (np.zeros((6, 4)), down)})
    base = {f"model.layers.{i}.q_proj.weight": draw.normal(size=(6, 6)).astype(np.float32) for i in range(2)}
    safetensors(job / "base" / "model.safetensors", base)
    keys = {"base_model.model.q.lora_A.weight": ones, "module.base_model.model.q.lora_A.weight": ones * 2}
    safetensors(job / "checkpoint-40" / "model.safetensors", keys)
    for step in (20, 30):
        weights = np.array([1, np.nan if step == 30 else 2], np.float32)
        head = {"frozen": ones, "moved": ones * step, "far": ones * step**2}
        safetensors(job / f"checkpoint-{step}" / "weights.safetensors", {"w": weights})
        safetensors(job / f"checkpoint-{step}" / "head.safetensors", head)
        safetensors(job / f"checkpoint-{step}" / "base.safetensors", {"frozen": ones})
        safetensors(job / f"checkpoint-{step}" / "optimizer.bin", {"state.0.exp_avg": ones * step**2, "a": ones})
    cut = safetensors(job / "copy" / "w.safetensors", {"w": np.ones(64, np.float32)})
    cut.write_bytes(cut.read_bytes()[:-10])
    for step in (1, 2, 3, 4):
        merged = {f"m.merged_{n}": np.ones(8, np.float32) for n in range(step)}
        safetensors(job / f"checkpoint-{step}" / "rebuilt.safetensors", {"m.weight": np.ones(8, np.float32)} | merged)
    result = analyze(job, tmp_path / "out")
    found = {finding.rule: finding for finding in result.findings}
    assert "1 buffer m.merged_# at step 1, 4 at step 4, 96 bytes more" in found["adapters-buffer-growth"].message
    assert "another prefix (layers.0.q_proj against model.layers.0.q_proj)" in found["adapters-not-loaded"].message
    assert "in 1 of 2 modules, first layers.1.q_proj" in found["adapters-not-trained"].message
    assert found["adapters-key-collision"].facts["n_parameters"] == 1
    assert found["checkpoint-nonfinite"].step == 30
    assert "Go back to checkpoint-20/weights.safetensors" in found["checkpoint-nonfinite"].fix
    assert "copy/w.safetensors" in found["checkpoint-corrupt"].message
    # What stays is told where something moves beside it; that a file of frozen weights stays is no finding.
    (differs,) = [finding for finding in result.findings if finding.rule == "checkpoint-diff"]
    assert "2 of 3 tensors moved, 1 unchanged; most of all far by about 125 % of its norm;" in differs.message
    assert "; the norm of far went from" in differs.message
    assert differs.severity == "info"
    assert "frozen: 0 of 1 moved" in [place.note for place in differs.evidence]


def test_a_sound_adapter_beside_its_base_model_and_its_savings_gives_no_finding(tmp_path: Path) -> None:
    draw, job = np.random.default_rng(0), tmp_path / "job"
    modules = {f"layers.{i}.q_proj": (draw.normal(size=(6, 4)) * 0.1, draw.normal(size=(4, 6))) for i in range(2)}
    for step in (100, 200):
        trained = {name: (up * (1 + step / 1000), down * (1 - step / 1000)) for name, (up, down) in modules.items()}
        adapter(job / f"checkpoint-{step}", trained)
    base = {f"{module}.weight": draw.normal(size=(6, 6)).astype(np.float32) for module in modules}
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    safetensors(job / "base" / "model.safetensors", base | {"mask": mask})
    assert messages(job, tmp_path / "out") == {}


def test_shards_and_adapters_that_do_not_fit_are_found(tmp_path: Path) -> None:
    draw, job = np.random.default_rng(0), tmp_path / "job"
    factors = (draw.normal(size=(6, 4)), draw.normal(size=(4, 6)))
    adapter(job / "rank", {"q_proj": factors}, r=8)
    adapter(job / "size", {"v_proj": factors})
    safetensors(job / "base" / "model-1.safetensors", {"v_proj.weight": draw.normal(size=(8, 8)).astype(np.float32)})
    index = '{"weight_map": {"v_proj.weight": "model-1.safetensors", "gone.weight": "model-1.safetensors"}}'
    (job / "base" / "model.safetensors.index.json").write_text(index)
    found = [f.message for f in analyze(job, tmp_path / "out").findings if f.rule == "checkpoint-mismatch"]
    assert len(found) == 3
    for words in ("rank 4, its configuration says 8", "6 x 6 on a weight of [8,8]", "not there, first gone.weight"):
        assert any(words in message for message in found)


def test_an_adapter_that_outweighs_its_layer_is_told_with_its_scale(tmp_path: Path) -> None:
    base, down, up = np.eye(6, dtype=np.float32), np.eye(4, 6), np.eye(6, 4)  # norms sqrt(6); the product's is 2
    for name, alpha in (("below", 19), ("above", 20)):  # 3.88 and 4.08 times
        job = tmp_path / name
        adapter(job / "lora", {"q_proj": (up, down)}, lora_alpha=alpha)
        safetensors(job / "base" / "model.safetensors", {"q_proj.weight": base})
        told = messages(job, tmp_path / f"{name}-out").get("adapters-scale")
        assert told is None if name == "below" else "scale 5.0 = alpha 20.0 over r 4" in str(told)
