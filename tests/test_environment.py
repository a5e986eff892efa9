from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import SHARED, MemorySink, load, needs_artifacts

from forensics.artifact import Head, Source
from forensics.errors import ArtifactError
from forensics.formats import environment

NOTES = """torch==2.5.1+cu124
Python 3.10.12
NCCL_DEBUG=INFO
visible devices: 0,1
gpu: 8 x Tesla V100-SXM2-32GB (compute capability 7.0)
ulimit -n: 1024
device_map='auto', load_in_8bit=True
command: CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py --shm-size=1024m --fp16 --api-key abcdef
same recipe on one GPU: finishes
with half of the batch size: same timeout

still running after 15 minutes, GPU utilisation 100 % on all eight
exit code: 137 on rank 1
"""
COLLECTED = """Collecting environment information...
PyTorch version: 2.6.0+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4

OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.11.9 (64-bit runtime)
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3

Nvidia driver version: 550.54.15

CPU:
Architecture:                       x86_64
Model name:                         Intel(R) Xeon(R) Platinum 8480C

Versions of relevant libraries:
[pip3] numpy==1.26.4
[conda] flash_attn                2.5.8          py311_0    conda-forge
"""
SCRIPT = """#!/bin/bash
#SBATCH --mem=64G
#SBATCH --gpus-per-node 8
export NCCL_IB_TIMEOUT=22
export HF_TOKEN="abcdefgh"
module load cuda
srun python train.py --lr 1e-4
"""
MANIFEST = """spec:
  backoffLimit: 0  # once
  template:
    containers:
    - name: main
      command: |
        python train.py
        exit 1
      resources:
        requests: {memory: 16Gi, cpu: 4}
    - name: "side car"
  rules:
  - action: Ignore
    on:
    - a
    - b
"""
CONFIG = """{
  "model_type": "llama",
  "optimizer": {
    "lr": 1e-05,
    "betas": [0.9, 0.999]
  },
  "bf16": true,
  "quantization_config": null,
  "eos_token_id": 2,
  "hub_token": "hf_abc",
  "layers": [{"name": "a", "size": 3}]
}
"""


def write(tmp_path: Path, text: str | bytes, name: str = "env.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return environment.recognise(Source(path, path.name).head())


def facts(sink: MemorySink) -> dict[tuple[str, str], tuple[str, float | None, int]]:
    return {(f["scope"], f["key"]): (f["value"], f["number"], f["line"]) for f in sink.facts}


def test_every_kind_of_line_gets_its_scope(tmp_path: Path) -> None:
    sink = load(environment, write(tmp_path, NOTES))
    found = facts(sink)
    assert found[("version", "torch")] == ("2.5.1+cu124", None, 1)
    assert found[("version", "python")] == ("3.10.12", None, 2)
    assert found[("variable", "NCCL_DEBUG")] == ("INFO", None, 3)
    assert found[("device", "visible_devices")] == ("0,1", None, 4)
    assert found[("device", "gpu.count")] == ("8", 8.0, 5)
    assert found[("device", "gpu.memory")] == ("32 GB", 32.0 * 2**30, 5)
    assert found[("device", "compute_capability")] == ("7.0", 7.0, 5)
    assert found[("host", "ulimit -n")] == ("1024", 1024.0, 6)
    assert found[("option", "load_in_8bit")] == ("True", None, 7)
    assert [(c["capability"], c["job"]) for c in sink.coverage] == [("fact", True)]
    assert not sink.warnings


def test_a_command_gives_its_options_and_variables(tmp_path: Path) -> None:
    found = facts(load(environment, write(tmp_path, NOTES)))
    command = found[("command", "command")]
    assert command[0].endswith("train.py --shm-size=1024m --fp16 --api-key ***")
    assert command[2] == 8
    assert found[("variable", "CUDA_VISIBLE_DEVICES")] == ("0,1", None, 8)
    assert found[("option", "nproc_per_node")] == ("2", 2.0, 8)
    assert found[("option", "shm-size")] == ("1024m", 2.0**30, 8)
    assert found[("option", "fp16")] == ("true", None, 8)
    assert found[("option", "api-key")] == ("***", None, 8)


def test_sentences_stay_whole_with_their_lines(tmp_path: Path) -> None:
    sink = load(environment, write(tmp_path, NOTES))
    assert [(f["value"], f["line"]) for f in sink.facts if f["scope"] == "note"] == [
        ("same recipe on one GPU: finishes", 9),
        ("with half of the batch size: same timeout", 10),
        ("still running after 15 minutes, GPU utilisation 100 % on all eight", 12),
    ]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("exit code: 0", 0),
        ("exit_code=137", 137),
        ("Exit status: -9", -9),
        ("return code 1", 1),
        ("exit code: 0 on 4", 0),
    ],
)
def test_an_exit_code_is_the_outcome(tmp_path: Path, line: str, code: int) -> None:
    sink = load(environment, write(tmp_path, line + "\n"))
    assert sink.procs == {0: {"exit_code": code}}
    ((key, (_, number, _)),) = facts(sink).items()
    assert (key, number) == (("outcome", "exit_code"), code)


def test_the_environment_of_a_rank_belongs_to_its_process(tmp_path: Path) -> None:
    text = "RANK=3\nLOCAL_RANK=1\nWORLD_SIZE=8\nHOSTNAME=node-17\nPATH=/usr/bin\n"
    sink = load(environment, write(tmp_path, text))
    assert sink.procs == {
        0: {"rank": 3, "rank_origin": "environment", "local_rank": 1, "world_size": 8, "host": "node-17"}
    }
    assert {fact["proc"] for fact in sink.facts} == {0}
    sink = load(environment, write(tmp_path, "world size: 4\nhostname: gpu-9\njob pid 40211, gpu 0000:86:00\n"))
    assert sink.procs == {0: {"world_size": 4, "host": "gpu-9", "pid": 40211}}
    assert {fact["proc"] for fact in sink.facts} == {None}


def test_the_report_of_collect_env_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, COLLECTED, "stdout.log")
    assert recognised(path) >= 80
    found = facts(load(environment, path))
    assert found[("version", "torch")][0] == "2.6.0+cu124"
    assert found[("version", "torch.version.cuda")][0] == "12.4"
    assert found[("version", "driver_version")][0] == "550.54.15"
    assert found[("version", "numpy")][0] == "1.26.4"
    assert found[("version", "flash-attn")][0] == "2.5.8"
    assert found[("variable", "CUDA_MODULE_LOADING")][0] == "LAZY"
    assert found[("device", "gpu.0.name")][0] == "NVIDIA H100 80GB HBM3"
    assert found[("device", "gpu.0.memory")][1] == 80.0 * 2**30
    assert found[("option", "Model name")][0] == "Intel(R) Xeon(R) Platinum 8480C"
    assert ("note", "note") not in found


def test_a_log_that_begins_with_such_a_report_stays_a_log(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss 2.{n}\n" for n in range(60))
    assert recognised(write(tmp_path, COLLECTED + steps, "stdout.log")) == 0


@pytest.mark.parametrize(
    "text",
    [
        "Package    Version\n---------- -------\nflash_attn 2.5.8\nnvidia-nccl-cu12   2.21.5\n",
        "flash-attn==2.5.8\nnvidia-nccl-cu12==2.21.5\n",
        "$ pip list\nflash-attn    2.5.8\nnvidia-nccl-cu12    2.21.5\n",
    ],
)
def test_lists_of_packages_are_versions(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text, "pip.txt")
    assert recognised(path) >= 60
    found = facts(load(environment, path))
    assert found[("version", "flash-attn")][0] == "2.5.8"
    assert found[("version", "nvidia-nccl-cu12")][0] == "2.21.5"


def test_a_job_script_gives_resources_variables_and_command(tmp_path: Path) -> None:
    path = write(tmp_path, SCRIPT, "submit.sh")
    assert recognised(path) >= 60
    found = facts(load(environment, path))
    assert found[("option", "sbatch.mem")] == ("64G", 64.0 * 2**30, 2)
    assert found[("option", "sbatch.gpus-per-node")] == ("8", 8.0, 3)
    assert found[("variable", "NCCL_IB_TIMEOUT")] == ("22", 22.0, 4)
    assert found[("variable", "HF_TOKEN")] == ("***", None, 5)
    assert found[("command", "command")][0] == "srun python train.py --lr 1e-4"
    assert found[("option", "lr")] == ("1e-4", 1e-4, 7)


def test_yaml_is_flattened_with_its_lines(tmp_path: Path) -> None:
    path = write(tmp_path, MANIFEST, "job.yaml")
    assert recognised(path) > 40  # what its policies name did not happen
    found = facts(load(environment, path))
    assert found == {
        ("option", "spec.backoffLimit"): ("0", 0.0, 2),
        ("option", "spec.template.containers.0.name"): ("main", None, 5),
        ("option", "spec.template.containers.0.resources.requests.memory"): ("16Gi", 16.0 * 2**30, 10),
        ("option", "spec.template.containers.0.resources.requests.cpu"): ("4", 4.0, 10),
        ("option", "spec.template.containers.1.name"): ("side car", None, 11),
        ("option", "spec.rules.0.action"): ("Ignore", None, 13),
        ("option", "spec.rules.0.on.0"): ("a", None, 15),
        ("option", "spec.rules.0.on.1"): ("b", None, 16),
    }


def test_json_settings_are_flattened_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG, "config.json")
    assert recognised(path) >= 40
    found = facts(load(environment, path))
    assert found == {
        ("option", "model_type"): ("llama", None, 2),
        ("option", "optimizer.lr"): ("1e-05", 1e-05, 4),
        ("option", "optimizer.betas"): ("[0.9,0.999]", None, 5),
        ("option", "bf16"): ("true", None, 7),
        ("option", "quantization_config"): ("null", None, 8),
        ("option", "eos_token_id"): ("2", 2.0, 9),
        ("option", "hub_token"): ("***", None, 10),
        ("option", "layers.0.name"): ("a", None, 11),
        ("option", "layers.0.size"): ("3", 3.0, 11),
    }


def test_a_snapshot_in_json_keeps_its_scopes(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "env": {"RANK": "2", "NCCL_DEBUG": "INFO"},
            "versions": {"flash_attn": "2.5"},
            "argv": ["a.py"],
            "exit_code": 1,
        }
    )
    sink = load(environment, write(tmp_path, text, "environment.json"))
    found = facts(sink)
    assert found[("variable", "NCCL_DEBUG")][0] == "INFO"
    assert found[("version", "flash-attn")][0] == "2.5"
    assert found[("command", "command")][0] == '["a.py"]'
    assert sink.procs[0]["rank"] == 2
    assert sink.procs[0]["exit_code"] == 1


def test_a_file_cut_anywhere_keeps_what_was_complete(tmp_path: Path) -> None:
    whole = set(facts(load(environment, write(tmp_path, CONFIG, "config.json"))).items())
    for end in range(30, len(CONFIG) - 2, 7):
        path = write(tmp_path, CONFIG[:end], "config.json")
        sink = load(environment, path)
        assert recognised(path) >= 20
        assert set(facts(sink).items()) <= whole
        assert sink.quality == "partial"
        assert sink.warnings[0]["code"] == "truncated"
    for text, name in ((NOTES, "env.txt"), (MANIFEST, "job.yaml"), (COLLECTED, "env.txt"), (SCRIPT, "x.sh")):
        for end in range(40, len(text), 19):
            assert load(environment, write(tmp_path, text[:end], name)).facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": ' * 50_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        '{"a": ' + '[{"b": ' * 300 + "1" + "}]" * 300 + "}",
        '{"a": [99999999999999999999999999]}',
        '{"\\ud800": "\\u0000", "rank": 99999999999999999999, "exit_code": 1e300}',
        "RANK=99999999999999999999\nexit code: 999999999\nWORLD_SIZE=x\n",
        "- " * 10_000 + "\n  a: b\n",
        "".join(" " * n + f"k{n}:\n" for n in range(500)),
        "a: {" + "b: c, " * 10_000 + "}\n  c: d\n",
        "command: python 'unbalanced " + "--a " * 5000,
        "=" * 10_000 + ":" * 10_000,
        ("A" * 300 + "=1\n") * 5,
        "x" * 200_000 + ": 1\n",
        "a b c d " * 20_000 + ": x",
        b"\xff\xfe\x00\xd8=\x001\x00",
        b"\x00=\x00\n" * 10,
    ],
)
def test_hostile_files_raise_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    for name in ("env.txt", "job.yaml", "config.json"):
        path = write(tmp_path, text, name)
        recognised(path)
        try:
            sink = load(environment, path)
        except ArtifactError:
            continue
        json.dumps([sink.facts, sink.procs]).encode("utf-8")
        for fact in sink.facts:
            (fact["key"] + fact["value"]).encode("utf-8")
            assert "\0" not in fact["key"] + fact["value"]
        assert all(
            abs(value) < 2**31 for known in sink.procs.values() for value in known.values() if type(value) is int
        )


def test_facts_are_bounded(tmp_path: Path) -> None:
    sink = load(environment, write(tmp_path, "".join(f"K{n}=1\n" for n in range(21_000))))
    assert len(sink.facts) == 20_000
    assert sink.warnings[0]["code"] == "too-many"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("iter 0 loss 2.5000 time 0.311\niter 400 loss 2.4 time 0.3\n", "train.log"),
        ("epoch: 1\nloss: 0.5\nepoch: 2\nloss: 0.4\nepoch: 3\nloss: 0.3\n", "progress.txt"),
        ("Name: x\nReason:       OOMKilled\nExit Code:    137\n", "describe.txt"),
        ("status:\n  containerStatuses:\n  - state:\n      terminated:\n        exitCode: 137\n", "pod.yaml"),
        ("[ 12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n", "dmesg.txt"),
        ("x: 1\nTraceback (most recent call last):\n  File\nValueError: y\n", "env.txt"),
        ("# HELP a b\n# TYPE a counter\na_seconds 1.5\n", "metrics.txt"),
        ("total 12\n-rw-r--r-- 1 root root 42 model.ckpt\n", "ls.txt"),
        ('{"traceEvents": [], "deviceProperties": []}', "config.json"),
        ('{"data": [{"a": 1}, {"a": 2}]}', "result.json"),
        ('{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n', "metrics.jsonl"),
        ("[1, 2, 3]", "config.json"),
    ],
)
def test_logs_dumps_and_metrics_are_not_claimed(tmp_path: Path, text: str, name: str) -> None:
    assert recognised(write(tmp_path, text, name)) == 0


def test_a_folder_s_free_text_is_only_claimed_by_name(tmp_path: Path) -> None:
    text = "the job stops after some time\nit did not do so before\n"
    assert recognised(write(tmp_path, text, "env.txt")) == 20
    assert recognised(write(tmp_path, text, "answer.txt")) == 0


@needs_artifacts
def test_no_line_of_a_real_environment_is_lost() -> None:
    paths = sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/env.txt"))
    assert len(paths) > 50
    for path in paths:
        assert recognised(path) >= 20, path
        sink = load(environment, path)
        assert not sink.warnings
        lines = {n for n, line in enumerate(path.read_text().split("\n"), start=1) if line.strip()}
        headings = {n for n in lines if "Collecting env" in path.read_text().split("\n")[n - 1]}
        headings |= {n for n in lines if "Versions of relevant" in path.read_text().split("\n")[n - 1]}
        assert {fact["line"] for fact in sink.facts} == lines - headings


@needs_artifacts
def test_real_option_files_and_exit_codes_are_read() -> None:
    for path in sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/config.json")):
        assert recognised(path) >= 40
        sink = load(environment, path)
        assert not sink.warnings
        assert {str(fact["key"]).split(".")[0] for fact in sink.facts} == {
            key.split(".")[0] for key in json.loads(path.read_text())
        }
    healthy = [
        path for path in (SHARED / "cases" / "dev").glob("*/artifacts/env.txt") if "exit code: 0" in path.read_text()
    ]
    assert len(healthy) >= 5
    assert all(load(environment, path).procs[0]["exit_code"] == 0 for path in healthy)


def test_a_file_that_holds_nothing_but_an_exit_code_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "exit_code.txt"
    path.write_text("137\n")
    assert environment.recognise(Head("exit_code.txt", b"137\n", True)) > 0
    assert environment.recognise(Head("count.txt", b"137\n", True)) == 0
    sink = load(environment, path)
    assert [(f["key"], f["number"], f["line"]) for f in sink.facts] == [("exit_code", 137.0, 1)]
    assert sink.procs[0]["exit_code"] == 137
