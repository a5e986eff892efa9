from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_states import adapter, gguf, raw_safetensors, safetensors
from support import ROOT, MemorySink, load

from forensics.artifact import Source
from forensics.discovery import discover
from forensics.errors import ArtifactError
from forensics.formats import _checkpoint_rows, _tensor_values, formats
from forensics.formats._tensor_values import decode

CUT = ROOT / "fixtures" / "checkpoint-cut-copy" / "artifacts" / "checkpoint.pt"
WHOLE = ROOT / "fixtures" / "checkpoint-cut-copy-healthy" / "artifacts" / "checkpoint.pt"


def read(path: Path) -> MemorySink:
    """The file by the format that recognises it."""
    found = discover(path, path.parent / "work")[0]
    assert found.format is not None
    return load(formats()[found.format], path)


def tensors(sink: MemorySink) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in sink.rows("checkpoint_tensor")}


def test_a_safetensors_file_gives_places_and_statistics(tmp_path: Path) -> None:
    values = np.array([[1, -3, np.nan], [np.inf, 0, 2]], np.float32)
    sink = read(safetensors(tmp_path / "m.safetensors", {"w": values, "n": np.arange(3)}, metadata={"format": "pt"}))
    row = tensors(sink)["w"]
    assert (row["dtype"], row["shape"], row["n_elements"], row["n_read"]) == ("float32", "[2,3]", 6, 6)
    assert (row["n_nan"], row["n_inf"], row["n_zero"], row["absmax"]) == (1, 1, 1, 3.0)
    assert row["norm"] == pytest.approx(14**0.5)
    stored = (tmp_path / "m.safetensors").read_bytes()
    assert stored[row["byte"] : row["byte"] + row["size_bytes"]] == values.tobytes()
    (file,) = sink.rows("checkpoint")
    assert (file["kind"], file["damage"], json.loads(file["settings"])) == ("safetensors", None, {"format": "pt"})
    assert sink.quality == "complete"
    assert sink.warnings == []


def test_values_of_sixty_four_elements_are_kept_wherever_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tensor_values, "CHUNK_BYTES", 40)
    few, many = np.array([3.0, 1.0, 2.0], np.float32), np.arange(1000, dtype=np.float32)
    rows = tensors(read(safetensors(tmp_path / "a.safetensors", {"few": few, "many": many})))
    assert rows["few"]["picked"] == [3.0, 1.0, 2.0]
    assert rows["many"]["picked"] == [float(k * 1000 // 64) for k in range(64)]


def test_a_compressed_file_is_read_in_place(tmp_path: Path) -> None:
    safetensors(tmp_path / "m", {"w": np.ones(4, np.float32)})
    packed = tmp_path / "m.safetensors.gz"
    packed.write_bytes(gzip.compress((tmp_path / "m").read_bytes()))
    assert tensors(read(packed))["w"]["norm"] == 2.0


@pytest.mark.parametrize(
    ("dtype", "code", "value"),
    [
        ("bfloat16", b"\xc0\x3f", 1.5),
        ("float8_e5m2", b"\xbe", -1.5),
        ("float8_e4m3fn", b"\x3c", 1.5),
        ("float8_e4m3fn", b"\x7e", 448.0),
        ("float8_e4m3fn", b"\x01", 2.0**-9),
        ("float8_e4m3fnuz", b"\x44", 1.5),
        ("float8_e8m0fnu", b"\x80", 2.0),
    ],
)
def test_types_that_numpy_lacks_are_decoded(dtype: str, code: bytes, value: float) -> None:
    assert decode(code, dtype).tolist() == [value]


def test_nan_of_types_that_numpy_lacks_is_nan() -> None:
    for dtype, code in (("bfloat16", b"\xc1\x7f"), ("float8_e4m3fn", b"\xff"), ("float8_e4m3fnuz", b"\x80")):
        assert np.isnan(decode(code, dtype)).all()


def test_a_file_beyond_the_budget_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checkpoint_rows, "BUDGET_BYTES", 1 << 16)
    monkeypatch.setattr(_checkpoint_rows, "_LEAST_SAMPLE", 64)
    values = np.ones(100_000, np.float32)
    values[-1] = np.nan
    row = tensors(read(safetensors(tmp_path / "m.safetensors", {"w": values})))["w"]
    assert row["n_read"] < row["n_elements"]
    assert (row["n_nan"], row["checksum"], row["norm"]) == (1, None, None)


def test_a_cut_file_keeps_what_lies_before(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": np.ones(8, np.float32), "b": np.ones(8, np.float32)})
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    sink = read(path)
    assert [row["fault"] for row in tensors(sink).values()] == [None, "cut"]
    (file,) = sink.rows("checkpoint")
    assert (file["damage"], file["n_lost"], file["bad_byte"]) == ("truncated", 1, len(data) - 20)
    assert (sink.quality, sink.bad_byte) == ("partial", len(data) - 20)


@pytest.mark.parametrize("kept", [9, 12, 40, 75, 100])
def test_a_header_cut_anywhere_gives_a_warning_and_the_names_before(tmp_path: Path, kept: int) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)})
    path.write_bytes(path.read_bytes()[:kept])
    sink = load(formats()["safetensors"], path)
    assert "truncated" in {warning["code"] for warning in sink.warnings}
    assert len(tensors(sink)) == (0 if kept < 75 else 1)


@pytest.mark.parametrize(
    ("entries", "damage", "fault"),
    [
        (["F32", [2], [0, 8], "F32", [2], [4, 12]], "overlap", "overlapping"),
        (["F32", [4], [0, 8]], "wrong-size", "wrong-size"),
        (["F32", [2], [0, 8], "F32", [1], [9999999, 10000003]], "truncated", "outside"),
        (["F32", [2], [8, 0]], "outside", "outside"),
        (["F32", [1], [4, 8]], "gap", None),
        (["F32", [2], [0, 8]], "trailing", None),
        (["F32", [-1], [0, 12]], "outside", "outside"),
        (["F32", [1e400], "x"], "outside", "outside"),
    ],
)
def test_a_header_that_lies_is_told(tmp_path: Path, entries: list[Any], damage: str, fault: str | None) -> None:
    thirds = zip(entries[::3], entries[1::3], entries[2::3], strict=True)
    header = {f"t{n}": {"dtype": d, "shape": s, "data_offsets": o} for n, (d, s, o) in enumerate(thirds)}
    sink = read(raw_safetensors(tmp_path / "m.safetensors", json.dumps(header), bytes(12)))
    assert sink.rows("checkpoint")[0]["damage"] == damage
    assert [row["fault"] for row in tensors(sink).values()][-1] == fault


def test_a_name_that_is_given_twice_is_kept_twice(tmp_path: Path) -> None:
    entry = '"w":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    text = "{" + entry % (0, 4) + "," + entry % (4, 8) + "}"
    sink = read(raw_safetensors(tmp_path / "m.safetensors", text, np.array([1, 2], np.float32).tobytes()))
    assert [(row["name"], row["absmax"]) for row in sink.rows("checkpoint_tensor")] == [("w", 1.0), ("w", 2.0)]


def test_a_checkpoint_that_torch_saved_is_read_without_torch() -> None:
    sink = load(formats()["torch_checkpoint"], WHOLE)
    rows = tensors(sink)
    assert len(rows) == 8
    assert rows["model.embed.weight"]["shape"] == "[24,12]"
    assert rows["model.embed.weight"]["device"] == "cpu"
    data = WHOLE.read_bytes()
    place = rows["model.head.bias"]["byte"]
    values = np.frombuffer(data[place : place + 16], np.float32)
    assert rows["model.head.bias"]["absmax"] == pytest.approx(float(np.abs(values).max()))
    (file,) = sink.rows("checkpoint")
    assert (file["kind"], file["step"], file["damage"]) == ("torch-zip", 20, None)


def test_a_zip_without_its_directory_keeps_the_tensors_before_the_cut() -> None:
    cut, whole = load(formats()["torch_checkpoint"], CUT), load(formats()["torch_checkpoint"], WHOLE)
    (file,) = cut.rows("checkpoint")
    assert (file["damage"], file["n_lost"], file["n_tensors"]) == ("no-directory", 2, 8)
    kept = [name for name, row in tensors(cut).items() if row["fault"] is None]
    assert len(kept) == 6
    assert all(tensors(cut)[name]["checksum"] == tensors(whole)[name]["checksum"] for name in kept)


def test_a_zip_cut_at_any_place_never_raises_anything_else(tmp_path: Path) -> None:
    data = WHOLE.read_bytes()
    for kept in range(30, len(data), 211):
        path = tmp_path / "c.pt"
        path.write_bytes(data[:kept])
        try:
            sink = load(formats()["torch_checkpoint"], path)
        except ArtifactError:
            continue
        assert sink.warnings


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    place = tensors(load(formats()["torch_checkpoint"], WHOLE))["model.blocks.0.weight"]["byte"]
    data = bytearray(WHOLE.read_bytes())
    data[place + 3] ^= 0x40
    (tmp_path / "c.pt").write_bytes(data)
    sink = load(formats()["torch_checkpoint"], tmp_path / "c.pt")
    bad = [name for name, row in tensors(sink).items() if row["fault"]]
    assert bad == ["model.blocks.0.weight"]
    assert sink.rows("checkpoint")[0]["damage"] == "wrong-checksum"


class _Harm:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit(3)",))


def _zip_of(path: Path, state: Any) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr("a/byteorder", "little")
    return path


def test_what_a_pickle_would_call_is_named_and_never_called(tmp_path: Path) -> None:
    sink = read(_zip_of(tmp_path / "c.pt", {"harm": _Harm(), "step": 7}))
    (warning,) = sink.warnings
    assert warning["code"] == "foreign-names"
    assert "exec" in warning["message"]
    assert sink.rows("checkpoint")[0]["step"] == 7
    assert sink.rows("checkpoint")[0]["damage"] is None


def test_a_state_that_denotes_far_more_than_it_holds_ends_in_time(tmp_path: Path) -> None:
    shared: Any = ["x"]
    for _ in range(15):
        shared = [shared] * 100
    sink = read(_zip_of(tmp_path / "c.pt", {"bomb": shared, "step": 1}))
    assert sink.rows("checkpoint")[0]["n_tensors"] == 0


@pytest.mark.parametrize(
    "opcodes",
    [b"cbuiltins\n" + b"x" * 500 + b"\n.", b"\x80\x02R.", b"\x80\x02Q.", b"\x80\x02N\x81.", b"\x80\x02\x82\x01."],
)
def test_a_hostile_pickle_ends_in_an_error_of_its_artifact(tmp_path: Path, opcodes: bytes) -> None:
    path = tmp_path / "c.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", opcodes)
    try:
        sink = load(formats()["torch_checkpoint"], path)
    except ArtifactError:
        return
    assert [warning["code"] for warning in sink.warnings] == ["bad-pickle"]


def test_a_checkpoint_of_every_kind_is_read_as_torch_wrote_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {"w": weight, "t": weight.t(), "part": weight[:, :2], "h": torch.ones(2, dtype=torch.bfloat16)}
    for name, options in (("zip.pt", {}), ("legacy.pt", {"_use_new_zipfile_serialization": False})):
        torch.save(state, tmp_path / name, **options)
        rows = tensors(read(tmp_path / name))
        assert [row["shape"] for row in rows.values()] == ["[3,4]", "[4,3]", "[3,2]", "[2]"]
        assert rows["part"]["norm"] == pytest.approx(float(torch.linalg.norm(weight[:, :2])))
        assert rows["w"]["norm"] == rows["t"]["norm"]
        assert rows["w"]["checksum"] != rows["t"]["checksum"]
        assert rows["h"]["n_zero"] == 0
    torch.save(torch.nn.Linear(2, 2, device="meta").state_dict(), tmp_path / "meta.pt")
    assert {row["fault"] for row in tensors(read(tmp_path / "meta.pt")).values()} == {"no-data"}
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "module.pt")
    assert list(tensors(read(tmp_path / "module.pt"))) == ["0.weight", "0.bias"]


def test_a_distributed_checkpoint_tells_its_files_and_their_sizes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"w": torch.ones(4), "step": 3}, checkpoint_id=tmp_path / "d", no_dist=True)
    sink = read(tmp_path / "d" / ".metadata")
    assert tensors(sink)["w"]["file"] == "__0_0.distcp"
    settings = json.loads(sink.rows("checkpoint")[0]["settings"])
    assert settings["files"] == {"__0_0.distcp": (tmp_path / "d" / "__0_0.distcp").stat().st_size}
    shard = read(tmp_path / "d" / "__0_0.distcp")
    assert shard.rows("checkpoint")[0]["kind"] == "distributed-shard"
    assert [row["norm"] for row in shard.rows("checkpoint_tensor")] == [2.0]


def test_an_index_names_the_shard_of_each_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"metadata": {"total_size": 8}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}')
    sink = read(path)
    assert {name: row["file"] for name, row in tensors(sink).items()} == {
        "a": "m-1.safetensors",
        "b": "m-2.safetensors",
    }
    path.write_text(path.read_text()[:-20])
    sink = read(path)
    assert list(tensors(sink)) == ["a"]
    assert sink.rows("checkpoint")[0]["damage"] == "truncated"


def test_an_adapter_folder_gives_modules_with_their_product(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    b, a = draw.normal(size=(6, 4)), draw.normal(size=(4, 5))
    adapter(tmp_path / "ad", {"layers.0.q_proj": (b, a)})
    (row,) = read(tmp_path / "ad" / "adapter_model.safetensors").rows("adapter_module")
    assert (row["name"], row["lora_rank"], row["n_inputs"], row["n_outputs"]) == ("layers.0.q_proj", 4, 5, 6)
    product = np.linalg.norm(b.astype(np.float32).astype(float) @ a.astype(np.float32).astype(float))
    assert row["delta_norm"] == pytest.approx(product)
    config = read(tmp_path / "ad" / "adapter_config.json")
    assert json.loads(config.rows("checkpoint")[0]["settings"])["lora_alpha"] == 8
    assert {"peft.r", "peft.lora_alpha"} <= {fact["key"] for fact in config.facts}


def test_a_gguf_header_gives_tensors_and_says_where_the_file_was_cut(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", {"a": np.ones((2, 3), np.float32), "b": np.full(5, 2, np.float32)})
    sink = read(path)
    assert {name: (row["shape"], row["absmax"]) for name, row in tensors(sink).items()} == {
        "a": ("[2,3]", 1.0),
        "b": ("[5]", 2.0),
    }
    assert json.loads(sink.rows("checkpoint")[0]["settings"])["general.architecture"] == "llama"
    data = path.read_bytes()
    for kept in (10, 60, 120, len(data) - 40):
        path.write_bytes(data[:kept])
        assert load(formats()["gguf"], path).rows("checkpoint")[0]["damage"] == "truncated"


def test_a_gguf_header_that_claims_more_tensors_than_any_file_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 62) + bytes(1000))
    sink = load(formats()["gguf"], tmp_path / "m.gguf")
    (row,) = sink.rows("checkpoint")
    assert row["n_said"] is None and row["damage"] == "bad-header"


def test_a_length_that_is_no_header_is_no_safetensors_file() -> None:
    recognise = formats()["safetensors"].recognise
    from forensics.artifact import Head

    for data in (b"", b"\0" * 64, struct.pack("<Q", 1 << 60) + b'{"a":1}', b'{"a": 1, "b": 2}'):
        assert recognise(Head("x.safetensors", data, True)) == 0


def test_a_source_that_is_gone_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        formats()["safetensors"].load(Source(tmp_path / "none", "none"), MemorySink())


def torch_tar(path: Path) -> Path:
    """What torch.save wrote in 2017: `weight` is the second half of a storage, transposed, `bias` one of its own."""

    def text(word: str) -> bytes:
        return b"X" + struct.pack("<I", len(word)) + word.encode()

    def entry(key: int, middle: bytes, kind: str) -> bytes:
        return b"\x80\x02J" + struct.pack("<i", key) + middle + f"ctorch\n{kind}\n".encode() + b"\x87."

    many, few = np.arange(12, dtype=np.float32), np.array([0.5, -0.5])
    storages = pickle.dumps(2, 2)
    storages += entry(7, text("cpu"), "FloatStorage") + struct.pack("<q", 12) + many.tobytes()
    storages += entry(8, text("cuda:1"), "DoubleStorage") + struct.pack("<q", 2) + few.tobytes()
    storages += pickle.dumps([(9, 7, 6, 6)], 2)
    tensors = pickle.dumps(2, 2)
    tensors += entry(71, b"K\x09", "FloatTensor") + struct.pack("<ii5q", 2, 0, 3, 2, 1, 3, 0)
    tensors += entry(81, b"K\x08", "DoubleTensor") + struct.pack("<ii3q", 1, 0, 2, 1, 0)
    named = text("weight") + text("71") + b"Q" + text("bias") + text("81") + b"Q" + text("epoch") + b"K\x05"
    state = b"\x80\x02}(" + named + b"u."
    system = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {"short": 2}}, 2)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("sys_info", system), ("pickle", state), ("tensors", tensors), ("storages", storages)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_the_tar_of_the_first_releases_is_read(tmp_path: Path) -> None:
    sink = read(torch_tar(tmp_path / "old.pt"))
    rows = tensors(sink)
    weight, bias = rows["weight"], rows["bias"]
    assert (weight["dtype"], weight["shape"], weight["picked"]) == (
        "float32",
        "[3,2]",
        [6.0, 9.0, 7.0, 10.0, 8.0, 11.0],
    )
    assert (bias["dtype"], bias["device"], bias["picked"]) == ("float64", "cuda:1", [0.5, -0.5])
    stored = (tmp_path / "old.pt").read_bytes()
    assert struct.unpack_from("<2d", stored, bias["byte"]) == (0.5, -0.5)
    (file,) = sink.rows("checkpoint")
    assert (file["kind"], file["damage"], json.loads(file["settings"])) == ("torch-legacy", None, {"epoch": 5})


def test_torch_itself_reads_that_tar_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = torch.load(torch_tar(tmp_path / "old.pt"), weights_only=False, map_location="cpu")
    rows = tensors(read(tmp_path / "old.pt"))
    assert {name: state[name].flatten().tolist() for name in ("weight", "bias")} == {
        name: rows[name]["picked"] for name in ("weight", "bias")
    }


def test_that_tar_cut_anywhere_ends_in_an_error_of_its_own_or_in_what_is_left(tmp_path: Path) -> None:
    whole = torch_tar(tmp_path / "old.pt").read_bytes()
    cut = tmp_path / "cut.pt"
    for n in range(600, len(whole), 97):
        cut.write_bytes(whole[:n])
        try:
            sink = load(formats()["torch_checkpoint"], cut)
        except ArtifactError:
            continue
        assert set(tensors(sink)) <= {"weight", "bias"}
