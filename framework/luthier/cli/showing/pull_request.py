"""Output of `luthier diff BASE..HEAD --markdown`: all configs that a pull request changes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from luthier.cli.operands import building, ranges
from luthier.cli.operands.operand import Operand
from luthier.cli.showing import differences
from luthier.errors import BadInput, LuthierError, listed
from luthier.view.diff import markdown
from luthier.view.diff.markdown import ConfigReport

# Effects take seconds for each config, and the text has room for the details of few. A change of a
# recipe can change all configs of a project.
_MOST_EFFECTS = 20


def show_range(word: str, arguments: argparse.Namespace) -> bool:
    """Print all configs that are not the same at two git revisions, as Markdown.

    Args:
      word: The range, as `luthier.cli.operands.ranges.read` takes it.
      arguments: The arguments of `luthier.cli.commands.diff`.

    Returns:
      Whether there are any.

    Raises:
      BadInput: The range cannot be read.
    """
    found = ranges.read(word)
    reports, neither = list[ConfigReport](), list[str]()
    for reference in dict.fromkeys([*found.before, *found.after]):
        before, after = found.before.get(reference), found.after.get(reference)
        if isinstance(before, BadInput) and isinstance(after, BadInput):
            neither.append(reference)
        else:
            reports += _reported(reference, before, after, arguments)
    changed = [report for report in reports if report.comparison is not None]
    with_effects = _with_effects(changed[:_MOST_EFFECTS], found, arguments.devices)
    reports = [with_effects.get(report.reference, report) for report in reports]
    remarks = []
    if len(changed) > _MOST_EFFECTS:
        remarks.append(
            f"effects are computed for the first {_MOST_EFFECTS} of {len(changed)} changed configs"
        )
    if neither:
        remarks.append(f"{len(neither)} resolve at neither end: {listed(neither)}")
    if found.with_arguments:
        names = listed(found.with_arguments)
        remarks.append(f"{len(found.with_arguments)} need arguments and are left out: {names}")
    title = f"{found.base} → {found.head}"
    print(markdown.render(title, reports, remarks, why=arguments.why), end="")
    return bool(reports)


def _reported(
    reference: str,
    before: Operand | BadInput | None,
    after: Operand | BadInput | None,
    arguments: argparse.Namespace,
) -> list[ConfigReport]:
    """Return the report of a config; none where nothing changed."""
    if after is None:
        return [ConfigReport(reference, "removed")]
    if isinstance(after, BadInput):
        return [ConfigReport(reference, "broken", note=str(after))]
    if before is None:
        return [ConfigReport(reference, "added")]
    if isinstance(before, BadInput):
        return [ConfigReport(reference, "repaired", note=str(before))]
    comparison = differences.comparison_of(before, after, arguments.only, arguments.ignore)
    return [ConfigReport(reference, "changed", comparison)] if comparison["changes"] else []


def _with_effects(
    reports: Sequence[ConfigReport], found: ranges.RevisionRange, devices: str | None
) -> dict[str, ConfigReport]:
    """Return the reports with their effects, or why there are none, by reference."""
    pairs: dict[str, tuple[Operand, Operand]] = {}
    for report in reports:
        before, after = found.before[report.reference], found.after[report.reference]
        assert isinstance(before, Operand)  # or there would be nothing to compare
        assert isinstance(after, Operand)
        pairs[report.reference] = (before, after)
    # The devices of a process are fixed once JAX has started: as many as the largest mesh needs.
    if devices is None:
        building.reserve([side for pair in pairs.values() for side in pair])
    made = {}
    for report in reports:
        try:
            effects = building.effects_of(*pairs[report.reference], devices)
        except Exception as error:  # the user's code, too: one config must not hide the others
            kind = "" if isinstance(error, LuthierError) else f"{type(error).__name__}: "
            line = str(error).partition("\n")[0]
            made[report.reference] = dataclasses.replace(report, note=f"no effects: {kind}{line}")
        else:
            made[report.reference] = dataclasses.replace(report, effects=effects)
    return made
