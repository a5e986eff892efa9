"""`forensics formats`."""

from __future__ import annotations


def formats() -> int:
    """List the artifact formats that are recognised, and the evidence that each provides."""
    from forensics.formats import formats as known

    for name, module in known().items():
        print(f"{name:20} {module.TITLE}")
        print(f"{'':20} provides {', '.join(module.PROVIDES)}")
    return 0
