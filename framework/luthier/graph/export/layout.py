"""Python expressions, formatted like ruff and black, 100 columns wide.

An export is formatted as it is written, since ruff is not a dependency of luthier.
"""

from __future__ import annotations

import dataclasses
import keyword
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.graph.export.names import Imports

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
        """The depth of nested brackets that take several lines: none."""
        return 0


class Group:
    """Expressions in brackets: a call, or a list, tuple, set or dict.

    Args:
      opening: The text before the items, such as `fdl.Config(`.
      items: A prefix for each expression (`dim=`, `"embed": `), and the expression.
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
        # The flat form is computed once, from the flat forms of the items, and given up as soon as
        # it exceeds a line: asking each level for the text of all below would be quadratic. The
        # height decides when an export takes an expression out into a variable; a group that is
        # nearly as wide as a line counts as broken, since it is going to be indented: by up to 5
        # steps, for the body of the function and the 4 levels that `_DEEPEST` of an export allows.
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
      expression: The expression to write.
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


# Leaves of a record as Python expressions.


def string(text: str) -> str:
    """Return a string literal as ruff writes it: in double quotes, unless that takes more escapes.

    Args:
      text: Any string.
    """
    # `repr` prefers single quotes; with a double quote appended, it always uses them, and what it
    # escapes is known.
    body = repr(text + '"')[1:-2]  # a string with that quote is written in single ones
    if text.count('"') > text.count("'"):
        return f"'{body}'"
    return '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'


def number(value: float) -> str:
    """Return the shortest text that reads back as the same float: `4e-5`, `float("inf")`.

    Args:
      value: Any float.
    """
    text = repr(value)
    if text.lstrip("-") in ("inf", "nan"):
        return f'float("{text}")'
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if exponent else text


def literal(data: Any, imports: Imports) -> Expression:
    """Return the expression of a leaf.

    Args:
      data: A JSON value or an object that `encode_leaf` made.
      imports: Where modules that the expression needs are noted.
    """
    if isinstance(data, str):
        return Text(string(data))
    if isinstance(data, float):
        return Text(number(data))
    if not isinstance(data, dict):
        return Text(repr(data))
    key = next(key for key in _WRITERS if key in data)
    return _WRITERS[key](data, imports)


def call(function: str, *values: Any, imports: Imports) -> Group:
    """Return the call of a function with leaves.

    Args:
      function: The function's name.
      values: Its arguments, as JSON of leaves.
      imports: The imports that the arguments need are added to these.
    """
    return Group(f"{function}(", [("", literal(x, imports)) for x in values], ")", is_call=True)


def _complex(data: dict[str, Any], imports: Imports) -> Expression:
    value = complex(data["complex"])
    return Text(f"complex({number(value.real)}, {number(value.imag)})")


def _bytes(data: dict[str, Any], imports: Imports) -> Expression:
    text = repr(bytes.fromhex(data["bytes"]))
    if text[1] == '"':
        return Text(text)
    double, single = text.count('"'), text.count("\\'")
    if double > single:
        return Text(text)
    body = text[2:-1].replace("\\'", "'").replace('"', '\\"')
    return Text(f'b"{body}"')


def _enum(data: dict[str, Any], imports: Imports) -> Expression:
    name = imports.name(data["enum"])
    if "member" not in data:
        return call(name, data["value"], imports=imports)
    member = data["member"]
    if member.isidentifier() and not keyword.iskeyword(member):
        return Text(f"{name}.{member}")
    return Text(f"{name}[{string(member)}]")


def _dtype(data: dict[str, Any], imports: Imports) -> Expression:
    maker = f"{imports.module('jax.numpy')}.dtype({string(data['dtype'])})"
    if "value" not in data:
        return Text(maker)
    return call(f"{maker}.type", data["value"], imports=imports)


def _path(data: dict[str, Any], imports: Imports) -> Expression:
    return call(f"{imports.module('pathlib')}.{data['kind']}", data["path"], imports=imports)


def _partition_spec(data: dict[str, Any], imports: Imports) -> Expression:
    entries = [("", _mesh_axes(entry)) for entry in data["partition_spec"]]
    return Group(f"{imports.module('jax.sharding')}.PartitionSpec(", entries, ")", is_call=True)


def _mesh_axes(entry: Any) -> Expression:
    if not isinstance(entry, list):
        return Text(string(entry) if isinstance(entry, str) else repr(entry))
    names = [("", Text(string(name))) for name in entry]
    return Group("(", names, ")", comma=len(names) == 1)


def _named(data: dict[str, Any], imports: Imports) -> Expression:
    return Text(imports.name(data["name"]))


# Writers by the key that marks each kind of leaf in a record.
_WRITERS: Mapping[str, Callable[[dict[str, Any], Imports], Expression]] = {
    "name": _named,
    "float": lambda data, imports: Text(number(float(data["float"]))),
    "complex": _complex,
    "bytes": _bytes,
    "range": lambda data, imports: call("range", *data["range"], imports=imports),
    "slice": lambda data, imports: call("slice", *data["slice"], imports=imports),
    "ellipsis": lambda data, imports: Text("..."),
    "path": _path,
    "enum": _enum,
    "dtype": _dtype,
    "partition_spec": _partition_spec,
}
