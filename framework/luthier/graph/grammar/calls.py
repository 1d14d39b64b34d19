"""Calls in values: `optax.sgd(1e-2, momentum=.9)` becomes a node, its arguments checked by name."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem
from luthier.graph import signatures
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import Part, nearest


def slots(target: Any, taken: int = 0) -> list[Part]:
    """Return the arguments that can be given by position: by index where they have no names.

    Args:
      target: A class or function.
      taken: How many of the first ones are given already.
    """
    known = signatures.arguments(target)
    return [*range(len(known.positional_only)), *known.names][taken:]


def bind(target: Any, name: str, tree: ast.Call, taken: int = 0) -> dict[Part, ast.expr]:
    """Return the arguments of a call by name, unread.

    Args:
      target: The class or function.
      name: What it is called in the text.
      tree: The call.
      taken: How many of the first arguments the caller gives itself.

    Raises:
      Unreadable: It takes no such argument, or cannot be a node at all.
    """
    _check_callable(target, name)
    known = signatures.arguments(target)
    if any(isinstance(item, ast.Starred) for item in tree.args):
        raise Unreadable("* is not allowed in a value")
    free = slots(target, taken)
    names = [part for part in free if isinstance(part, str)]
    if len(tree.args) > len(free):
        takes = f"{name} takes {len(free)} arguments, not {len(tree.args)}"
        raise Unreadable(f"{takes} without a name")
    given: dict[Part, ast.expr] = dict(zip(free, tree.args, strict=False))
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise Unreadable("** is not allowed in a value")
        if keyword.arg in given:
            raise Unreadable(f"{name} is given {keyword.arg!r} twice")
        if keyword.arg not in names and not known.has_kwargs:
            close = nearest(keyword.arg, names)
            remedy = "" if close else f"it takes {', '.join(names) or 'none'}"
            what = f"{name} has no argument {keyword.arg!r}"
            raise Unreadable(Problem(what, nearest=close, remedy=remedy))
        given[keyword.arg] = keyword.value
    return given


def _check_callable(target: Any, name: str) -> None:
    if not callable(target):
        raise Unreadable(f"{name} is not callable")
    if signatures.arguments(target).has_args:
        remedy = "wrap it in a function that takes a list"
        raise Unreadable(Problem(f"{name} takes *args, which a graph cannot name", remedy=remedy))


def kind_of(target: Any, given: Mapping[Part, Any], current: Any) -> type[fdl.Buildable]:
    """Return whether a call makes a template or a node.

    A call that replaces a template makes a template, and so does a call of an NNX module without
    its `rngs`: the parent calls it with them.
    """
    if isinstance(current, fdl.Partial):
        return fdl.Partial
    needs_rngs = "rngs" in signatures.arguments(target).names and "rngs" not in given
    return fdl.Partial if signatures.is_module_class(target) and needs_rngs else fdl.Config


def make_node(
    target: Any, kind: type[fdl.Buildable], given: Mapping[Part, Any] | None = None
) -> fdl.Buildable:
    """Return a node of `target`.

    Args:
      target: A class or function.
      kind: `fdl.Config` or `fdl.Partial`.
      given: Arguments by name (by index for positional-only ones).

    Raises:
      Unreadable: It cannot be a node.
    """
    _check_callable(target, getattr(target, "__name__", repr(target)))
    try:
        node = kind(target)
        for part, value in (given or {}).items():
            if isinstance(part, int):
                node[part] = value
            else:
                setattr(node, part, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{target!r} cannot be a node: {' '.join(str(error).split())}") from None
    return node
