"""Python expressions laid out as ruff and black lay them out, 100 columns wide."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence

WIDTH = 100
_STEP = 4


@dataclasses.dataclass(frozen=True)
class Text:
    """An expression that is never broken.

    Args:
      flat: The expression.
    """

    flat: str

    @property
    def height(self) -> int:
        """How deep brackets are nested that take several lines: none."""
        return 0


class Group:
    """Expressions in brackets: a call, or a list, tuple, set or dict.

    Args:
      opening: What stands before the items, such as `fdl.Config(`.
      items: What to write in front of each expression (`dim=`, `"embed": `), and the expression.
      closing: The bracket at the end.
      is_call: Whether all arguments may share one line of their own, which lists and dicts may not.
      comma: Whether a comma follows the last item on one line too, as in `(1,)`.
    """

    def __init__(
        self,
        opening: str,
        items: Sequence[tuple[str, Expression]],
        closing: str,
        is_call: bool = False,
        comma: bool = False,
    ):
        self.opening, self.items, self.closing, self.is_call = opening, items, closing, is_call
        self.inside = _inside(items)
        if self.inside is not None and comma:
            self.inside += ","
        self.flat: str | None = None
        if (
            self.inside is not None
            and _width(opening) + _width(self.inside) + _width(closing) <= WIDTH
        ):
            self.flat = opening + self.inside + closing
        below: int = max((item.height for _, item in items), default=0)
        self.height: int = (
            below + 1 if self.flat is None or _width(self.flat) > WIDTH - 5 * _STEP else 0
        )


Expression = Text | Group


def _width(text: str) -> int:
    """Return the columns of a text: ruff counts two for wide characters, such as Chinese ones."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _inside(items: Sequence[tuple[str, Expression]]) -> str | None:
    """Return the items on one line; None where that would be too long."""
    pieces, room = [], WIDTH
    for prefix, item in items:
        if item.flat is None:
            return None
        room -= _width(prefix) + _width(item.flat) + 2
        if room < -2:
            return None
        pieces.append(prefix + item.flat)
    return ", ".join(pieces)


def lay_out(expression: Expression, indent: int, used: int, tail: int = 0) -> str:
    """Return an expression as text; lines after the first are indented.

    Args:
      expression: What to write.
      indent: The indentation of the line on which it begins.
      used: How many columns of that line are taken.
      tail: How many columns must be left behind it.
    """
    if isinstance(expression, Text):
        return expression.flat
    if expression.flat is not None and used + _width(expression.flat) + tail <= WIDTH:
        return expression.flat
    inner = indent + _STEP
    pad, end = "\n" + " " * inner, "\n" + " " * indent
    inside = expression.inside
    if expression.is_call and inside is not None and inner + _width(inside) <= WIDTH:
        return f"{expression.opening}{pad}{inside}{end}{expression.closing}"
    lines = [
        pad + prefix + lay_out(item, inner, inner + _width(prefix), tail=1) + ","
        for prefix, item in expression.items
    ]
    return f"{expression.opening}{''.join(lines)}{end}{expression.closing}"
