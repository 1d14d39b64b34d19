"""Comments in gin files for what gin has no words for; every export begins with the first.

# luthier: format 1                    what follows is an export: its values are taken as they stand
# luthier: root @Experiment()          what the file describes, where there is no graph to change
# luthier: partial scope/Name          @scope/Name is a template, though it has no arguments
# luthier: factory scope/Name          @scope/Name is made anew for every call (fdl.ArgFactory)
# luthier: instance scope/Name         @scope/Name() is made at once, and is no node
# luthier: tag scope/Name.arg pkg.Tag  the argument has this tag
# luthier: shared NAME                 every %NAME is one and the same; gin makes one for each
# luthier: called NAME "dim"           the constant NAME is called so; null: it has no name
# luthier: value NAME {"dtype": ...}   %NAME is this value, written as in JSON records
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from luthier.errors import Problem
from luthier.graph.formats.gin.statements import Directive, Reference, read_value
from luthier.graph.paths import nearest

VERSION = "1"
KINDS = (
    *("format", "root", "partial", "factory", "instance"),
    *("tag", "shared", "called", "value"),
)


@dataclasses.dataclass
class Directives:
    """What the directives of a unit say.

    Args:
      is_export: Whether values are taken as they stand.
      root: The value of the root, with its origin; None where none is named.
      kinds: `partial`, `factory` or `instance` for scoped names.
      tags: (scoped name, argument, tag, origin).
      shared: The macros that are one and the same in every place.
      called: The names of constants by their macros.
      values: JSON values by their macros, with their origins.
    """

    is_export: bool = False
    root: tuple[Any, str] | None = None
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)
    shared: set[str] = dataclasses.field(default_factory=set)
    called: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)


def gather(directives: Sequence[Directive], problems: list[Problem]) -> Directives:
    """Return what directives say.

    Args:
      directives: The comments, as they stand.
      problems: What is wrong with them is added here.
    """
    found = Directives()
    for directive in directives:
        try:
            _add(found, directive)
        except ValueError as error:
            near = nearest(directive.kind, KINDS) if directive.kind not in KINDS else []
            problems.append(Problem(str(error), origin=directive.where, nearest=near))
    return found


def _add(found: Directives, directive: Directive) -> None:
    kind, text = directive.kind, directive.text
    if kind not in KINDS:
        raise ValueError(f"there is no directive {kind!r}")
    name, _, rest = text.partition(" ")
    if kind == "format":
        if text != VERSION:
            raise ValueError(f"format {text} is not {VERSION}, which this luthier reads")
        found.is_export = True
    elif kind == "root":
        value = read_value(text)
        if not isinstance(value, Reference):
            raise ValueError(f"{text!r} is not a reference; write @Name()")
        found.root = (value, directive.where)
    elif kind in ("partial", "factory", "instance"):
        found.kinds[text] = kind
    elif kind == "tag":
        target, _, argument = name.rpartition(".")
        if not target or not rest:
            raise ValueError("a tag directive is `tag scope/Name.argument package.Tag`")
        found.tags.append((target, argument, rest.strip(), directive.where))
    elif kind == "shared":
        found.shared.add(text)
    else:
        data = _json(rest)
        if kind == "value":
            found.values[name] = (data, directive.where)
        elif data is None or isinstance(data, str):
            found.called[name] = data or ""
        else:
            raise ValueError(f"{rest} is not a name")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{text[:60]!r} is not JSON") from None
