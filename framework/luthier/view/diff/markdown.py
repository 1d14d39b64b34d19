"""Differences of configs as Markdown, for the description of a pull request or a comment on it."""

from __future__ import annotations

import collections
import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from luthier.terminal import cell
from luthier.view.diff import terminal

LIMIT = 65_536
"""The largest number of characters of a text on GitHub."""

_LONGEST_NOTE = 300
"""The largest number of characters of an error in the table."""
_RESERVED = 2_000
"""Characters that are kept for the list of what is left out."""
_LEAST_DETAILS = 1_000
"""Details that would be cut to fewer characters are left out."""

State = Literal["changed", "added", "removed", "broken", "repaired"]
_COUNTED: Mapping[State, str] = {
    "changed": "changed",
    "added": "added",
    "removed": "removed",
    "broken": "not resolving",
    "repaired": "resolving again",
}


@dataclasses.dataclass(frozen=True)
class ConfigReport:
    """A config that is not the same at two revisions.

    Args:
      reference: Its name.
      state: Whether it changed, exists at one revision only, or can be built at one only.
      comparison: The JSON of the comparison, for one that changed.
      effects: The JSON of the effects; None where there are none.
      note: One line more: the error of one that cannot be built, or why there are no effects.
    """

    reference: str
    state: State
    comparison: Mapping[str, Any] | None = None
    effects: Mapping[str, Any] | None = None
    note: str = ""


def render_pair(
    comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None, *, why: bool = False
) -> str:
    """Return the comparison of two configs as Markdown.

    Args:
      comparison: The JSON of the comparison.
      effects: The JSON of its effects; None to leave them out.
      why: Whether to show what set both sides of each change.
    """
    before, after = (side["title"] for side in comparison["sides"])
    changed = [ConfigReport(after, "changed", comparison, effects)]
    return render(f"{before} → {after}", changed if comparison["changes"] else [], why=why)


def render(
    title: str,
    reports: Sequence[ConfigReport],
    remarks: Sequence[str] = (),
    *,
    why: bool = False,
    limit: int = LIMIT,
) -> str:
    """Return a report as Markdown: a table of all configs, and the details of each, folded.

    Args:
      title: The heading, such as `main → HEAD`.
      reports: The configs that are not the same, in the order in which they are listed.
      remarks: Lines below the table.
      why: Whether to show what set both sides of each change.
      limit: The largest number of characters; details that exceed it are cut or left out, and a
        line at the end names them.
    """
    overview = _overview(reports, remarks, limit)
    head = "\n".join([f"### Configs: {_escaped(title)}", "", *overview, ""])
    parts, left_out = [head], list[str]()
    room = limit - len(head) - _RESERVED
    for report in reports:
        if report.comparison is None:  # the table has all of it
            continue
        details = _details(report, report.comparison, why)
        if len(details) > room:
            details = _cut(details, room)
        if details:
            parts.append(details)
            room -= len(details) + 1
        else:
            left_out.append(report.reference)
    parts += _left_out(left_out, limit)
    return "\n".join(parts).rstrip("\n") + "\n"


def _overview(reports: Sequence[ConfigReport], remarks: Sequence[str], limit: int) -> list[str]:
    """Return the number of configs by what became of them, and their table."""
    if not reports:
        return ["No config changed.", *_listed(remarks)]
    counts = collections.Counter(report.state for report in reports)
    lines = [
        ", ".join(f"{counts[s]} {text}" for s, text in _COUNTED.items() if counts[s]) + ".",
        "",
    ]
    has_effects = any(report.effects is not None for report in reports)
    heads = ["config", "", *(("parameters", "FLOPs per step", "checkpoint") if has_effects else ())]
    lines += [_row(heads), _row(["---"] * len(heads))]
    room = limit // 2  # the other half is for the details
    for index, report in enumerate(reports):
        cells = [_code(report.reference), _what(report)]
        lines.append(_row([*cells, *_effect_cells(report.effects)] if has_effects else cells))
        room -= len(lines[-1]) + 1
        if room < 0:
            lines[-1:] = ["", f"And {len(reports) - index} more."]
            break
    return lines + _listed(remarks)


def _listed(remarks: Sequence[str]) -> list[str]:
    return ["", *(f"- {_escaped(remark)}" for remark in remarks)] if remarks else []


def _what(report: ConfigReport) -> str:
    if report.comparison is not None:
        return _escaped(terminal.summary(report.comparison["changes"]))
    if report.note:
        note = report.note
        short = note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 1]}…"
        word = "does not resolve" if report.state == "broken" else "did not resolve before"
        return f"{word}: {_code(short)}"
    return report.state


def _effect_cells(effects: Mapping[str, Any] | None) -> list[str]:
    if effects is None:
        return ["", "", ""]
    # Both names are those of `luthier.view.effects`, whose JSON this is.
    by_name = {(one["group"], one["name"]): one for one in effects["quantities"]}
    names = (("parameters", "parameters"), ("compute", "model FLOPs per step"))
    verdicts = {one["name"]: one["text"] for one in effects["verdicts"]}
    answer = verdicts.get("checkpoint", "").partition("\n")[0].partition(":")[0]
    return [*(_quantity(by_name.get(name)) for name in names), _escaped(answer)]


def _quantity(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    before, after = one["before"], one["after"]
    if before == after:
        return "the same"
    texts = [terminal.formatted(side, one["unit"]) for side in (before, after)]
    ratio = after / before if before and after else None
    factor = terminal.factor_of(ratio, None)
    return _escaped(" → ".join(texts) + (f" ({factor})" if factor else ""))


def _details(report: ConfigReport, comparison: Mapping[str, Any], why: bool) -> str:
    """Return the changes and effects of a config, folded."""
    # Without the details of the sides: the heading names the revisions, once for all configs.
    sides = [{**side, "detail": ""} for side in comparison["sides"]]
    tree = terminal.difference({**comparison, "sides": sides}, why)
    drawn = terminal.rendered(tree, width=terminal.UNBOUNDED)
    if report.effects is not None:
        drawn += terminal.rendered(terminal.consequences(report.effects), width=terminal.UNBOUNDED)
    elif report.note:
        drawn += f"{cell(report.note)}\n"
    fence = _fence(drawn)
    name = html.escape(cell(report.reference))
    summary = f"<code>{name}</code>: {html.escape(terminal.summary(comparison['changes']))}"
    lines = ["<details>", f"<summary>{summary}</summary>", "", f"{fence}text"]
    return "\n".join([*lines, f"{drawn}{fence}", "", "</details>", ""])


def _fence(text: str) -> str:
    """Return a fence of a code block that does not occur in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def _cut(details: str, room: int) -> str:
    """Return details with as many of their lines as fit; empty where those are too few."""
    lines = details.splitlines()
    # The end of the block: its fence, an empty line, the end of the fold, and a line for the cut.
    end = ["", *lines[-3:], ""]
    kept, room = list[str](), room - sum(map(len, end)) - 80
    for line in lines[:-3]:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    if sum(map(len, kept)) < _LEAST_DETAILS:
        return ""
    end[0] = f"... {len(lines) - 3 - len(kept)} more lines are left out"
    return "\n".join([*kept, *end])


def _left_out(references: Sequence[str], limit: int) -> list[str]:
    if not references:
        return []
    line = f"The details of {len(references)} configs are left out (at most {limit:,} characters):"
    for index, reference in enumerate(references):
        text = f" {_code(reference)}{',' if index < len(references) - 1 else '.'}"
        if len(line) + len(text) > _RESERVED - 100:
            return [f"{line} and {len(references) - index} more."]
        line += text
    return [line]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return text as code inside of a line, also in a table."""
    text = cell(text)
    fence = _fence(text) if "`" in text else "`"
    inside = f" {text} " if "`" in text else text
    # In a table, GitHub reads `\|` as a bar even inside of code.
    return f"{fence}{inside}{fence}".replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return text in which nothing is Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#@~])", r"\\\1", cell(text))
