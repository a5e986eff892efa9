"""The `forensics` command: one module per command, loaded only when it is asked for."""

from __future__ import annotations

import sys
from typing import Any

USAGE_ERROR = 2


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exits 0, 1 (something at or above --fail-on) or 2 (usage or environment)."""
    from cyclopts import App, CycloptsError

    from forensics import __version__
    from forensics.errors import ForensicsError

    app: Any = App(
        name="forensics",
        help="Says why a PyTorch job failed, from what it left behind.",
        version=__version__,
        result_action="return_value",
    )
    for name in ("analyze", "query", "rules", "formats"):
        app.command(f"forensics.cli.{name}:{'app' if name == 'rules' else name}", name=name)
    try:
        code = app(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(USAGE_ERROR)
    except (ForensicsError, OSError) as error:
        print(f"forensics: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
