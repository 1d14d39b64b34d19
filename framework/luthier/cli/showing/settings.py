"""The settings of components as text: an entry for the terminal, and the page of the manual."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from luthier.cli.showing.components import ROOMS, Component, Setting

_INHERITED = "handed down by the component above"


def entry(component: Component) -> str:
    """Return what is to be known of one component, for the terminal.

    Args:
      component: What `describe` found.
    """
    lines = [component.name, f"  {component.summary}", ""]
    for setting in component.settings:
        lines.append(f"  {_head(setting)}")
        lines += [f"      {setting.text}"] if setting.text else []
    if not component.settings:
        lines.append("  It takes no arguments.")
    if component.relations:
        lines += ["", "  It must hold that"]
        lines += [f"      {relation}" for relation in component.relations]
    return "\n".join(lines) + "\n"


def _head(setting: Setting) -> str:
    kind = f": {setting.type}" if setting.type else ""
    default = f" = {setting.default}" if setting.default is not None else ""
    notes = [_range(setting), f"in {setting.unit}" if setting.unit else ""]
    if setting.inherited:
        notes.append(_INHERITED)
    elif setting.default is None:
        notes.append("required")
    told = "; ".join(filter(None, notes))
    return f"{setting.name}{kind}{default}" + (f"  ({told})" if told else "")


def _range(setting: Setting) -> str:
    return re.sub(r"\bx\b", setting.name, setting.range)


def page(found: Sequence[Component]) -> str:
    """Return the page of the manual with the settings of all components.

    Args:
      found: The components.
    """
    lines = [
        "# Settings",
        "",
        "Every argument of every component that a graph may name, by room. `luthier help NAME`",
        "tells of one. The default holds where nothing is set; `-` has to be set. What is handed",
        "down need not be set: the component above passes it.",
        "",
    ]
    rooms = [room for room in ROOMS if any(component.room == room for component in found)]
    for room in rooms:
        names = [c.name.rpartition(".")[2] for c in found if c.room == room]
        lines.append(f"- [{room}](#{room}): {', '.join(f'`{name}`' for name in names)}")
    for room in rooms:
        lines += ["", f"## {room}"]
        for component in found:
            if component.room == room:
                lines += ["", *_section(component)]
    return "\n".join(lines) + "\n"


def _section(component: Component) -> Iterator[str]:
    yield f"### {component.name}"
    yield ""
    yield component.summary
    own = [setting for setting in component.settings if not setting.inherited]
    passed = [setting.name for setting in component.settings if setting.inherited]
    if own:
        yield ""
        yield "| argument | type | default | range | |"
        yield "|---|---|---|---|---|"
        yield from map(_row, own)
    if component.relations:
        yield ""
        yield f"It must hold that {' and '.join(f'`{text}`' for text in component.relations)}."
    if passed:
        yield ""
        yield f"Handed down: {', '.join(f'`{name}`' for name in passed)}."


def _row(setting: Setting) -> str:
    default = "-" if setting.default is None else _code(setting.default)
    limits = " ".join(filter(None, [_code(setting.range), setting.unit]))
    cells = [_code(setting.name), _code(setting.type), default, limits, setting.text]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def snapshot(found: Sequence[Component]) -> str:
    """Return one line for each setting, `component.argument = default`.

    Args:
      found: The components.
    """
    lines = []
    for component in found:
        for setting in component.settings:
            default = f" = {setting.default}" if setting.default is not None else ""
            lines.append(f"{component.name}.{setting.name}{default}")
    return "\n".join(lines) + "\n"
