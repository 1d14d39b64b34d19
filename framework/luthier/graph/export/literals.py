"""Leaves of a record as expressions of Python."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from typing import Any

from luthier.graph.export.imports import Imports
from luthier.graph.export.layout import Expression, Group, Text


def string(text: str) -> str:
    """Return a string as it is written in code: in double quotes, unless that takes more escapes.

    Args:
      text: Any string.
    """
    body = repr(text + '"')[1:-2]  # a string with that quote is written in single ones
    if text.count('"') > text.count("'"):
        return f"'{body}'"
    return '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'


def number(value: float) -> str:
    """Return a float as short as it can be read again: `4e-5`, `float("inf")`."""
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
    """Return the call of a function with leaves."""
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


# The telling key of each leaf -> how to write it.
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
