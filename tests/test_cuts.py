"""A file of each kind, cut anywhere: nothing fails, and more bytes never give fewer rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.artifact import HEAD_BYTES, Head
from forensics.formats import formats

cuts = pytest.importorskip("benchmarks.cuts")  # not part of a source distribution
FILES = {kind: (name, data) for kind, name, data in cuts.samples()}
PACKED = (".gz", ".xz")  # are recognised by what they hold
# Tables of cases, and files that are named only; the others are cut in their own tests.
ELSEWHERE = {"case_tables", "dcp_metadata", "dynamo_cache", "gguf", "health_probe", "lookalikes", "nsys_rep"}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_anywhere_raises_nothing_and_more_bytes_never_give_fewer_rows(kind: str, tmp_path: Path) -> None:
    name, data = FILES[kind]
    assert formats()[kind].recognise(Head(name, data[:HEAD_BYTES], len(data) <= HEAD_BYTES)) or name.endswith(PACKED)
    result = cuts.cut(kind, name, data, 12, tmp_path)
    assert not result.faults
    assert result.n_kept + result.n_refused or kind in {"other_pickle", "parquet_table"}  # these are only named


def test_every_format_is_cut_here_or_elsewhere() -> None:
    assert set(FILES) | ELSEWHERE == set(formats())
    assert not set(FILES) & ELSEWHERE
