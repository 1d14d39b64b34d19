"""Selecting parts of a graph: by a pattern over paths, by the class of the owner, or by a tag."""

from __future__ import annotations

import re
from typing import Any

import fiddle as fdl
from fiddle import tagging

from luthier.errors import BadInput, Problem
from luthier.graph.paths import Place


def is_selected(place: Place, target: str | type) -> bool:
    """Return whether a place of a graph is selected by a target.

    Args:
      place: A place of a graph.
      target: A regular expression that is searched in its path, the class of its owner, or a tag
        that it has.

    Raises:
      BadInput: The pattern is not a regular expression.
    """
    if isinstance(target, str):
        try:
            return re.search(target, place.path) is not None
        except re.error as error:
            raise BadInput(Problem(f"{target!r} is not a regular expression: {error}")) from error
    if isinstance(target, tagging.TagType):
        return target in _tags(place)
    made = getattr(place.owner, "__fn_or_cls__", None)
    return isinstance(made, type) and issubclass(made, target)


def is_experiment(graph: fdl.Buildable) -> bool:
    """Return whether a graph is that of an experiment, and not of a model alone."""
    # By its fields, because recipes may not import `luthier.program`, which has the class.
    fields = getattr(graph.__fn_or_cls__, "__dataclass_fields__", {})
    return "model" in fields and "training" in fields


def _tags(place: Place) -> set[Any]:
    if not isinstance(place.owner, fdl.Buildable) or not isinstance(place.part, str):
        return set()
    return set(fdl.get_tags(place.owner, place.part))
