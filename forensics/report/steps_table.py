"""The last steps before the end as a table: by step and rank, what was measured and said."""

from __future__ import annotations

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import LastSteps
from forensics.report.text import plural

# Words of the recorders; other names stay as the job has them.
NAMES = {
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
    "loss_scale": "Loss scale",
    "step_seconds": "Step time",
}


def steps_exhibit(view: LastSteps, index: int = 0) -> Exhibit | None:
    """None without steps."""
    if not view.rows:
        return None
    ranks = list(dict.fromkeys(row.rank for row in view.rows))
    last = {rank: max(row.step for row in view.rows if row.rank == rank) for rank in ranks}
    happened = ["What happened"] if any(row.events for row in view.rows) else []
    rows = [[f"{row.step:,}", row.rank, *row.values, *["; ".join(row.events) for _ in happened]] for row in view.rows]
    names = [NAMES.get(name, name) for name in view.names]
    return Exhibit(
        id=f"steps-{index}",
        title="The last ten steps",
        lead=_lead(last),
        svg="",
        twin=twin(["Step", "Rank", *names, *happened], rows, (0, *range(2, 2 + len(names))), limit=120),
        notes=[f"{plural(view.n_hidden, 'more rank')} not listed."] if view.n_hidden else [],
    )


def _lead(last: dict[str, int]) -> str:
    most = max(last.values())
    behind = [f"{rank} ends at step {step:,}" for rank, step in last.items() if step < most]
    if not behind or len(last) == 1:
        return f"All that was measured in them; the last is step {most:,}."
    return f"The furthest is step {most:,}; {', '.join(behind[:4])}{' and others' if len(behind) > 4 else ''}."
