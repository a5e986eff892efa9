"""`forensics checkpoint-collisions FOLDER`."""

from __future__ import annotations

import json
from pathlib import Path

from forensics.errors import ForensicsError

_SHOWN = 50


def checkpoint_collisions(
    folder: Path, /, *, write: Path | None = None, apply: Path | None = None, undo: Path | None = None
) -> int:
    """List stored keys that write the same parameter, and make, apply or take back a patch that keeps the first.

    Parameters
    ----------
    folder
        The folder that holds the safetensors files.
    write
        Write the patch into this file; no checkpoint is changed.
    apply
        Apply a patch that was written before.
    undo
        Take back a patch that was applied; the files are then what they were, byte by byte.

    Exits with 1 when there are collisions, with 0 when there are none or after a patch.
    """
    from forensics.models.key_collisions import apply_patch, find_collisions, keep_first

    if sum(path is not None for path in (write, apply, undo)) > 1:
        raise ForensicsError("checkpoint-collisions: expected one of --write, --apply and --undo")
    if apply is not None or undo is not None:
        file = apply or undo
        assert file is not None
        try:
            patch = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ForensicsError(f"{file}: no JSON ({error}); expected a patch that --write made") from error
        for path in apply_patch(patch, folder, undo=apply is None):
            print(f"{'patched' if apply else 'restored'} {path}")
        return 0
    collisions = find_collisions(folder)
    for collision in collisions[:_SHOWN]:
        print(ascii(collision.key)[1:-1])
        for number, (path, tensor) in enumerate(collision.sources):
            name = ascii(tensor.name)[1:-1]
            print(f"  {'drop' if number else 'keep'}  {path.name} byte {tensor.start}: {name} {list(tensor.shape)}")
    if len(collisions) > _SHOWN:
        print(f"… {len(collisions) - _SHOWN} more")
    if write is not None and collisions:
        write.write_text(json.dumps(keep_first(collisions), indent=1), encoding="utf-8")
        print(f"patch: {write}")
    return int(bool(collisions))
