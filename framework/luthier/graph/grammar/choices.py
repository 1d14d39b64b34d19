"""Words that an annotation makes special: members of enums and literal types, truth values."""

from __future__ import annotations

import enum
import typing
from typing import Any

import typing_extensions

from luthier.graph.grammar import types

NOTHING = object()
"""What `choice` returns where a text names none."""


def choice(text: str, annotation: Any) -> Any:
    """Return the member of an enum or literal type, or the truth value, that `text` names.

    Args:
      text: A bare word, or a quoted one.
      annotation: The annotation of the place that it is for.
    """
    name = text.strip("'\"")
    exact: list[tuple[str, Any]] = []
    for member in types.members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            last = name.removeprefix(f"{member.__name__}.")
            for option in member:
                if last == option.name or last == str(option.value):
                    return option
                exact.append((option.name, option))
        elif typing_extensions.get_origin(member) is typing.Literal:
            for option in typing_extensions.get_args(member):
                if name == str(option):
                    return option
        elif member is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        elif member is float and text.lower().lstrip("+-") in ("inf", "nan", "infinity"):
            return float(text)
    if text in ("None", "null"):
        return NOTHING
    loose = [option for other, option in exact if other.lower() == name.lower()]
    return loose[0] if len(loose) == 1 else NOTHING


def choices(annotation: Any) -> list[str]:
    """Return what `choice` accepts for an annotation: members of enums and literal types."""
    found: list[str] = []
    for member in types.members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            found += [option.name for option in member]
        elif typing_extensions.get_origin(member) is typing.Literal:
            found += [str(option) for option in typing_extensions.get_args(member)]
    return found
