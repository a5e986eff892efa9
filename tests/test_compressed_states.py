"""Stored states in compressed files: read as if they were plain, or refused in words, never taken for damaged ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from stored_states import gguf, safetensors
from support import MemorySink, load
from test_checkpoint_formats import WHOLE, tensors, torch_tar

from forensics.discovery import Found, discover
from forensics.errors import ArtifactError
from forensics.formats import _checkpoint_layout, formats

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


def only(path: Path, work: Path) -> Found:
    (found,) = discover(path, work)
    assert found.problems == []
    return found


def loaded(found: Found) -> MemorySink:
    assert found.format is not None
    return load(formats()[found.format], found.source.path)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_state_is_read_like_the_plain_one(tmp_path: Path, suffix: str) -> None:
    values = {"w": np.arange(64, dtype=np.float32)}
    plain = [
        safetensors(tmp_path / "step-10.safetensors", values),
        gguf(tmp_path / "step-10.gguf", values),
        torch_tar(tmp_path / "step-10.tar.pt"),
        tmp_path / "step-10.pt",
    ]
    plain[-1].write_bytes(WHOLE.read_bytes())
    for path in plain:
        packed = path.with_name(f"{path.name}.{suffix}")
        packed.write_bytes(COMPRESSED[suffix](path.read_bytes()))
        found = only(packed, tmp_path / "work")
        assert found.source.own_name in {packed.name, path.name}  # from which the step is read
        assert tensors(loaded(found)) == tensors(loaded(only(path, tmp_path / "work")))


def test_a_compressed_tar_of_other_files_of_such_names_is_unpacked(tmp_path: Path) -> None:
    for name in ("pickle", "notes.txt"):
        (tmp_path / name).write_text("step 1 loss 0.5\n")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("pickle", "notes.txt"):
            tar.add(tmp_path / name, name)
    found = [item.source.name for item in discover(tmp_path / "a.tar.gz", tmp_path / "work")]
    assert found == ["a.tar.gz!a.tar!notes.txt", "a.tar.gz!a.tar!pickle"]


def test_what_is_too_large_to_unpack_is_refused_and_not_called_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checkpoint_layout, "_MAX_UNPACKED", 4096)
    path = safetensors(tmp_path / "m.safetensors", {"w": np.zeros(4096, np.float32)})
    packed = tmp_path / "m.safetensors.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ArtifactError, match="decompress it and analyze that file"):
        loaded(only(packed, tmp_path / "work"))
