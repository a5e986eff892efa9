"""`forensics rules list|explain|new|test`."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from forensics.errors import ForensicsError

app = App(name="rules", help="What the rule library knows, printed from the rule files themselves.")
Folders = Annotated[list[Path] | None, Parameter(negative="")]


@app.command(name="list")
def list_rules(*, rules: Folders = None) -> int:
    """List every rule with its severity, the evidence that its variants need, and its title.

    Parameters
    ----------
    rules
        Further folder of rules; may be given several times.
    """
    from forensics.library import load_rules

    for rule in load_rules(rules or ()):
        print(f"{rule.id:34} {rule.severity:9} {rule.title}")
        for variant in rule.variants:
            print(f"{'':34} {variant.name} ({variant.strength}) needs {', '.join(variant.needs)}")
    return 0


@app.command
def explain(rule: str, /, *, rules: Folders = None) -> int:
    """Print what a rule proves, what it cannot, its thresholds and its SQL.

    Parameters
    ----------
    rule
        Its name, as `forensics rules list` and reports show it.
    rules
        Further folder of rules; may be given several times.
    """
    from forensics.library import load_rules

    known = {r.id: r for r in load_rules(rules or ())}
    if rule not in known:
        raise ForensicsError(f"{rule}: no such rule; `forensics rules list` names them all")
    found = known[rule]
    print(f"{found.id}: {found.title}\nseverity {found.severity}, role {found.role}\n")
    for label, text in (("Proves", found.proves), ("Cannot prove", found.cannot_prove), ("Fix", found.fix)):
        print(textwrap.fill(f"{label}: {text}", 110, subsequent_indent="  "))
    for label, links in (("Causes", found.causes), ("Explained by", found.requires)):
        if links:
            print(f"{label}: {', '.join(link['state'] for link in links)}")
    for threshold in found.thresholds.values():
        print(f"Threshold {threshold.name} = {threshold.value:g} {threshold.unit}: {threshold.why}")
    for variant in found.variants:
        print(f"\nVariant {variant.name} ({variant.strength}), needs {', '.join(variant.needs)}")
        if variant.proves != found.proves:
            print(textwrap.fill(f"Proves: {variant.proves}", 110, initial_indent="  ", subsequent_indent="  "))
        if variant.says:
            print(textwrap.fill(variant.says, 110, initial_indent="  ", subsequent_indent="  "))
        if variant.sql:
            print(textwrap.indent(variant.sql, "  "))
    for reference in found.references:
        print(f"See {reference}")
    return 0


@app.command
def new(rule: str, /, *, folder: Path = Path("rules")) -> int:
    """Write the two files of a new rule, FAMILY-NAME, below a folder of rules.

    Parameters
    ----------
    rule
        Its name: the folder's, a dash, and the file's.
    folder
        Folder of rules; made when it is not there.
    """
    from forensics.rule_cases import write_skeleton

    for path in write_skeleton(rule, folder):
        print(path)
    return 0


@app.command
def test(*names: str, rules: Folders = None, fixtures: Path | None = None) -> int:
    """Run the cases beside the rules: those that must fire and the near misses that must not.

    Exits with 1 when a case failed.

    Parameters
    ----------
    names
        Rules to test; default all.
    rules
        Further folder of rules; may be given several times.
    fixtures
        Folder of whole jobs that the cases name.
    """
    from forensics.rule_cases import run_cases

    results = run_cases(rules or (), names, fixtures, jobs=min(os.cpu_count() or 1, 8))
    failed = [result for result in results if result.problem]
    for result in failed:
        print(f"FAILED {result.rule} / {result.case}: {result.problem}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))
