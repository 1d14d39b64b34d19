"""The `packing` of a study: which trials share a compiled program, and which a device group."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from luthier import graph as graphs
from luthier.graph import Graph
from luthier.study.protocol import Lanes, SliceInfo

if TYPE_CHECKING:
    from luthier.study.hoisting import Discoveries

# Modules that import arrays are imported where they are used: studies are also listed and shown.

SEED = "seed"


@dataclasses.dataclass(frozen=True)
class Packed:
    """The way in which a trial may run: its runtime arguments and its lanes.

    Args:
      key: The same for all trials that one compiled program serves.
      hoist: Paths of the leaves that enter that program as arguments.
      lanes: How several such trials share a slice.
      num_lanes: How many may share one.
    """

    key: str = ""
    hoist: Sequence[str] = ()
    lanes: Lanes = "single"
    num_lanes: int = 1


class Packing(Protocol):
    """Decides which trials are served by one program, and how many share a device group."""

    def __call__(self, base: Graph, graph: Graph, slice: SliceInfo) -> Packed:
        """Return how the trial with `graph` runs on a slice; `base` is the study's.

        Args:
          base: The study's experiment graph.
          graph: The trial's graph.
          slice: The device group.

        Returns:
          The leaves that are arguments, and the number of lanes.
        """


@dataclasses.dataclass
class SharedPrograms:
    """Trials that differ only in leaves that can be hoisted share a program, and perhaps a slice.

    Args:
      lanes: Execution of such trials on a slice: one after another (`single`), in lanes, or as the
        worker measures (`auto`).
      num_lanes: Maximum number of trials that share a slice.
      paths: Leaves that may be hoisted, beside `seed`; None takes those that the study's space
        sets, and those in which some trial so far differs from the study's experiment.
    """

    lanes: Lanes = "auto"
    num_lanes: int = 8
    paths: Sequence[str] | None = None

    RANGES: ClassVar[dict[str, str]] = {"num_lanes": "1 <= x"}

    def __post_init__(self) -> None:
        self._seen: set[str] = {SEED, *(self.paths or ())}

    @functools.cached_property
    def _discoveries(self) -> Discoveries:
        from luthier.study.hoisting import Discoveries

        return Discoveries()

    def learn(self, paths: Iterable[str]) -> None:
        """Register the leaves that the study's space sets, before the first trial is placed.

        So the experiment itself shares the program of the trials that differ from it.

        Args:
          paths: Paths of the experiment.
        """
        if self.paths is None:
            self._seen.update(paths)

    def __call__(self, base: Graph, graph: Graph, slice: SliceInfo) -> Packed:
        """Return how the trial with `graph` runs on a slice; `base` is the study's experiment.

        Args:
          base: The study's experiment graph.
          graph: The trial's graph.
          slice: The device group.

        Returns:
          The leaves that are arguments, and the number of lanes.
        """
        if not _has_program(graph):
            return Packed()
        if self.paths is None:
            # It only grows: a leaf that one trial changed stays an argument for all later ones, so
            # that they need no other program.
            self._seen |= {change.path for change in graphs.diff(base, graph)}
        # Sorted, because the order of the paths is part of the program's key.
        hoist = self._discoveries.discover(graph, sorted(self._seen)).paths
        return self._packed(graph, hoist)

    def recall(self, base: Graph, graph: Graph) -> Packed | None:
        """Return how a trial runs whose program is known from an earlier one; None for a new one.

        Args:
          base: The study's experiment graph.
          graph: The trial's graph.

        Returns:
          The trial's way to run, or None.
        """
        if not _has_program(graph):
            return None
        if self.paths is None and any(c.path not in self._seen for c in graphs.diff(base, graph)):
            return None
        known = self._discoveries.recall(graph, sorted(self._seen))
        return None if known is None else self._packed(graph, known.paths)

    def _packed(self, graph: Graph, hoist: Sequence[str]) -> Packed:
        from luthier.study.hoisting import program_key

        num_lanes = 1 if self.lanes == "single" else self.num_lanes
        return Packed(program_key(graph, hoist), hoist, self.lanes, num_lanes)


def _has_program(graph: Graph) -> bool:
    """Return whether a trial compiles a step: a study may also be over a class of the user."""
    from luthier.program import Experiment

    made = graph.__fn_or_cls__
    return isinstance(made, type) and issubclass(made, Experiment)
