"""From an assignment to a graph, and back: what the base itself would be in the space."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph.overrides import matching
from luthier.sweep.space.dimensions import Choice, Stored
from luthier.sweep.space.space import Assignment, Space, settings, sub_prefix


@dataclasses.dataclass(frozen=True)
class Editing:
    """How words of a space are read.

    Args:
      shelves: Modules whose fiddlers may be named without their module.
      packages: The user's modules that values may name.
    """

    shelves: Sequence[str] = ()
    packages: Sequence[str] = ()

    def apply(self, graph: Any, overrides: Sequence[Any], origin: str = "space") -> Any:
        """Return a copy of a graph with overrides applied.

        Args:
          graph: A node.
          overrides: What `Space.overrides` returned.
          origin: What they are called in the history.

        Raises:
          OverrideError: One cannot be applied.
        """
        return graphs.apply(graph, overrides, origin, self.shelves, packages=self.packages)

    def trial_graph(self, base: Any, space: Space, assignment: Assignment, trial: int) -> Any:
        """Return the graph of a trial; its history says `trial 7: path=value`.

        Args:
          base: The experiment graph.
          space: What may be chosen.
          assignment: What was chosen.
          trial: The number of the trial.
        """
        return self.apply(base, space.overrides(assignment), f"trial {trial}:")


def locate(base: Any, space: Space, editing: Editing) -> dict[str, Stored] | None:
    """Return the assignment that makes the base of itself; None where the space has none.

    Args:
      base: The experiment graph.
      space: What may be chosen.
      editing: How its words are read.
    """
    return _locate(base, space, editing, "")


def _locate(base: Any, space: Space, editing: Editing, prefix: str) -> dict[str, Stored] | None:
    found: dict[str, Stored] = {}
    for key, dimension in space.dimensions.items():
        for stored in _candidates(base, key, dimension):
            value = dimension.value(stored)
            try:
                changed = editing.apply(base, settings(key, dimension, value))
            except BadInput:
                continue
            if any(change.is_effective for change in graphs.diff(base, changed)):
                continue
            below: dict[str, Stored] | None = {}
            if isinstance(dimension, Choice) and value.space is not None:
                below = _locate(base, value.space, editing, sub_prefix(prefix + key, value))
            if below is not None:
                found |= {prefix + key: stored, **below}
                break
        else:
            return None
    return found


def _candidates(base: Any, key: str, dimension: Any) -> Sequence[Stored]:
    """Return the stored choices that may stand for what is there now: at a path, or by a name."""
    stored_of = getattr(dimension, "stored", None)
    if stored_of is None:
        return dimension.points(1)
    try:
        held = [graphs.evaluate(place.value) for place in matching(base, key)]
    except (BadInput, ValueError):  # it is not there, or not set
        return ()
    stored = [stored_of(value) for value in held if value is not graphs.UNSET]
    return list(dict.fromkeys(found for found in stored if found is not None))
