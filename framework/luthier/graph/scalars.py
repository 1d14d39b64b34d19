"""Rejects plain values in place of nodes, and suggests the fields that may have been meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luthier.errors import Problem, listed
from luthier.graph import signatures, values
from luthier.graph.grammar import types
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import Place, children, is_dataclass_instance, is_node, join
from luthier.graph.signatures import UNSET


def refuse_on_node(
    place: Place,
    value: Any,
    annotation: Any,
    written: str = "",
    admits: Callable[[Place], bool] = lambda field: False,
) -> None:
    """Raise if a plain value would silently replace a node.

    Args:
      place: The place that is to be set.
      value: The value, or its text where that cannot be read.
      annotation: The annotation of the place.
      written: Operator and value, as `=3e-4`.
      admits: Whether a field could have the value instead.

    Raises:
      Unreadable: A node is there; the problem names its fields, and the one that was meant.
    """
    # `optimizer.learning_rate=3e-4` where a schedule is: the number fits the annotation, and would
    # silently drop warm-up and decay. `:=` does not come here, so a node can still be replaced on
    # purpose. Functions pass, since one can stand in for a template that is called (`callback=relu`
    # in the tests), and so does None where the annotation admits it.
    old = place.value
    is_structure = is_real_node(old) or is_dataclass_instance(old)
    if not is_structure or is_real_node(value) or is_dataclass_instance(value):
        return
    if value is None and types.fits(None, annotation):
        return
    if values.is_deferred(old) and types.fits(value, annotation):
        return  # `training.steps=100` where steps were written in epochs
    if callable(value) and not isinstance(value, type) and not values.is_value_node(value):
        return
    target = old.__fn_or_cls__ if is_real_node(old) else type(old)
    name = getattr(target, "__name__", str(target))
    fields = _fields(place)
    paths = [field.path for field in fields]
    given = value if isinstance(value, str) else fitting.shown(value)
    # Only the first one in full: all of them would be longer than the rest of the message.
    others = [path.removeprefix(f"{place.path}.") for path in paths[1:]]
    remedy = f"set one of its fields ({listed([*paths[:1], *others])})"
    if not fields:
        remedy = "replace it by another node"
    meant = None
    if value is None and isinstance(place.owner, dict):
        remedy = f"to take it out, write ~{place.path}"
    elif isinstance(value, type):
        remedy = f"to replace the node, write {value.__name__}()"
    else:
        meant = _meant(fields, [field for field in fields if admits(field)])
    near = [f"{meant.path}{written}"] if meant is not None else []
    if near:
        remedy = ""  # one line is to be read at a glance, and the suggestion shows the way
    article = "an" if name[:1] in "AEIOUaeiou" else "a"
    what = f"is {article} {name} node, which {given} cannot replace"
    raise Unreadable(Problem(what, path=place.path, remedy=remedy, nearest=near))


def is_real_node(value: Any) -> bool:
    """Return whether `value` is a node that is not a value node."""
    return is_node(value) and not values.is_value_node(value)


def _fields(place: Place) -> list[Place]:
    old = place.value
    hidden = signatures.inherited(old.__fn_or_cls__) if is_node(old) else ()
    return [
        Place(join(place.path, part), child, old, part, place.is_default or is_default)
        for part, child, is_default in children(old, unset=True)
        if not (child is UNSET and part in hidden)
    ]


def _meant(fields: list[Place], admitting: list[Place]) -> Place | None:
    """Return the field that was obviously meant: the only one that admits the value.

    Of several, it is the one with a tag, or else the first argument of a node without nodes below
    it, if that has no default: the peak of a schedule.
    """
    # It becomes a suggestion only (`did you mean ...?`), never what is set.
    if len(admitting) == 1:
        return admitting[0]
    tagged = [field for field in admitting if _is_tagged(field)]
    if len(tagged) == 1:
        return tagged[0]
    if admitting and admitting[0] is fields[0] and not any(map(_is_composite, fields)):
        owner = fields[0].owner
        target = owner.__fn_or_cls__ if is_node(owner) else type(owner)
        return fields[0] if fields[0].part in signatures.arguments(target).required else None
    return None


def _is_composite(field: Place) -> bool:
    return is_real_node(field.value)


def _is_tagged(field: Place) -> bool:
    return is_node(field.owner) and bool(field.owner.__argument_tags__.get(field.part))
