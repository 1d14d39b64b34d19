"""Validation of trials: those run whose graph is valid, is no duplicate, and fits a slice."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import Graph
from luthier.recipes import scale_length
from luthier.records.weights_and_biases import OUTCOME, SUMMARY_RUN, Wandb
from luthier.study.driver.mirror import shown_dimension, shown_value
from luthier.study.packing import Packed
from luthier.study.protocol import SliceInfo
from luthier.study.rungs import rung_fractions
from luthier.study.space import settings
from luthier.study.space_checks import Editing, violated
from luthier.study.study import CopyResult, Study


@dataclasses.dataclass(frozen=True)
class ValidatedTrial:
    """The result of validating a trial.

    Args:
      trial: Its number.
      graph: Its graph; None where it could not be made.
      reason: Why it cannot run anywhere; empty where it can.
      copy_of: The trial whose result it gets.
      mark: The fingerprint of its graph, shortened; empty where none is kept.
      packed: How it runs, for each kind of slice that it may run on.
    """

    trial: int
    graph: Graph
    reason: str = ""
    copy_of: int | None = None
    mark: str = ""
    packed: Mapping[Any, Packed] = dataclasses.field(default_factory=dict)


def kind_of(slice: SliceInfo) -> tuple[int, str, int | None]:
    """Return the kind of a device group: its size, its devices and their memory.

    Args:
      slice: The device group.
    """
    return slice.num_devices, slice.device_kind, slice.memory_bytes


class Admission:
    """Makes the graphs of trials and validates them.

    Args:
      study: The study.
      editing: How words of its space are read.
      marks: The first trial of each fingerprint; it is kept up to date.
      summary_run: The id of the study's own run in W&B, which those of its trials name.
    """

    def __init__(
        self, study: Study, editing: Editing, marks: dict[str, int], summary_run: str = ""
    ):
        self._summary_run = summary_run
        self._shown: dict[str, dict[str, Any]] | None = None  # made for the first run in W&B
        self._study, self._editing, self._first = study, editing, marks
        self._slices: dict[Any, SliceInfo] = {}
        # Programs that the gate has accepted, by the kind of slice.
        self._accepted: set[tuple[Any, str]] = set()
        # Before the first trial: the leaves that the space sets are hoisted from the start, so that
        # the baseline already compiles the program that all trials share.
        if (learn := getattr(study.packing, "learn", None)) is not None:
            learn(self._set_by_the_space())

    def _set_by_the_space(self) -> Iterator[str]:
        """Yield the leaves of the experiment that some choice of the space changes."""
        base, apply = self._study.base, self._editing.apply
        for key, dimension in self._study.space.dimensions.items():
            for stored in dimension.probes():
                words = settings(key, dimension, dimension.value(stored))
                with contextlib.suppress(BadInput):  # reported where the space is checked
                    yield from (change.path for change in graphs.diff(base, apply(base, words)))

    def open(self, slices: Sequence[SliceInfo]) -> None:
        """Register the device groups of the engine."""
        # One group of each kind is enough: the gate and the packing depend on nothing else.
        self._slices = {kind_of(slice): slice for slice in slices}

    def make_graph(
        self,
        assignment: Mapping[str, Any],
        trial: int,
        repeat: int,
        located: Mapping[str, Any] | None = None,
    ) -> Graph:
        """Return the graph of a trial.

        Args:
          assignment: What was chosen; nothing for the baseline.
          trial: Its number.
          repeat: Which one of its setting's trials it is; each has a seed of its own.
          located: Where the space has it, for its run in W&B; None means the assignment.

        Raises:
          BadInput: The words do not go together.
        """
        study = self._study
        graph = self._editing.trial_graph(study.base, study.space, assignment, trial)
        if repeat:
            graph = _with_seed(graph, trial, repeat)
        return self._described(graph, assignment if located is None else located, trial)

    def _described(self, graph: Graph, assignment: Mapping[str, Any], trial: int) -> Graph:
        """Return the graph with its W&B run described as a trial of the study, where it has one."""
        try:
            node = graphs.build(graphs.get(graph, "records.wandb"))
        except BadInput:
            return graph
        if not isinstance(node, Wandb):
            return graph
        name = self._study.name
        if self._shown is None:
            named = self._study.space.every()
            self._shown = {one.name: shown_dimension(one.dimension) for one in named}
        # Entries of their own beside the nested config of the experiment: a panel of parallel
        # coordinates takes `swept/*` and an objective, without a search for what varied. The mirror
        # replaces the outcome when the run ends.
        swept = {
            f"swept/{key}": shown_value(self._shown[key], assignment[key]) for key in assignment
        }
        config = {"study": name, "trial": trial, OUTCOME: "running", SUMMARY_RUN: self._summary_run}
        config = {**(node.config or {}), **config, **swept}
        # Runs of a study are found together in W&B; what the user has set stays as it is.
        words = [
            f"records.wandb.name={f'{name}/{trial}'!r}",
            f"records.wandb.config={config!r}",
        ]
        if node.group is None:
            words.append(f"records.wandb.group={name!r}")
        if node.job_type is None:
            words.append("records.wandb.job_type='trial'")
        if not node.tags:
            words.append(f"records.wandb.tags={('sweep', name)!r}")
        return graphs.apply(graph, words, f"trial {trial}:")

    def admit(
        self,
        trial: int,
        assignment: Mapping[str, Any],
        repeat: int,
        located: Mapping[str, Any] | None = None,
    ) -> ValidatedTrial:
        """Make and validate the graph of a trial.

        Args:
          trial: Its number.
          assignment: What was chosen.
          repeat: Which one of its setting's trials it is.
          located: Where the space has it; None means the assignment.
        """
        try:
            graph = self.make_graph(assignment, trial, repeat, located)
        except BadInput as error:
            return ValidatedTrial(trial, None, str(error.problems[0]))
        # Constraints before validation: what breaks one is reported by the constraint's name,
        # whatever else is wrong with it.
        for predicate in self._study.space.predicates:
            if violated(graph, predicate):
                name = getattr(predicate, "__name__", predicate)
                return ValidatedTrial(trial, graph, f"breaks the constraint {name}")
        try:
            graphs.validate(graph, self._editing.packages)
        except BadInput as error:
            return ValidatedTrial(trial, graph, str(error.problems[0]))
        if self._study.dedupe is None:
            # With a mark although nothing compares it: without one, the line `admitted` would not
            # be written (`_Trials._admit`).
            return dataclasses.replace(self.place(trial, graph), mark=mark_of(graph))
        graph, first = self._dedupe(trial, graph, repeat)
        if first != trial:
            return ValidatedTrial(trial, graph, copy_of=first)
        return dataclasses.replace(self.place(trial, graph), mark=mark_of(graph))

    def at_rung(self, graph: Graph, rung: int) -> Graph | None:
        """Return the graph of a trial's run to a rung, with schedules that end there.

        Args:
          graph: The trial's graph.
          rung: The rung, from 1.

        Returns:
          The graph; None for the full length.
        """
        number, fractions = self._rungs_of(graph)
        # The last one is the full length; so is one that rounding puts there.
        if rung >= len(fractions) or round(fractions[rung - 1] * (number or 2)) == number:
            return None
        short = scale_length(graph, fractions[rung - 1])
        with contextlib.suppress(BadInput):  # of a graph without W&B
            name = graphs.get(short, "records.wandb.name")
            if isinstance(name, str):
                # Beside the run of the full length, which has the trial's own name.
                graphs.set_value(short, "records.wandb.name", f"{name} rung {rung}")
        return short

    def done_at_rung(self, graph: Graph, rung: int) -> float:
        """Return the part of a trial's steps that its runs up to a rung take, of those of all runs.

        Args:
          graph: The trial's graph.
          rung: The rung, from 1.
        """
        _, fractions = self._rungs_of(graph)
        return sum(fractions[:rung]) / sum(fractions)

    def _rungs_of(self, graph: Graph) -> tuple[int | None, list[float]]:
        """Return the steps of a trial, where they are a number, and the fractions of its rungs."""
        assert self._study.scheduler is not None
        steps = graphs.evaluate(graphs.get(graph, "training.steps"))
        number = None if graphs.is_deferred(steps) else steps
        return number, rung_fractions(self._study.scheduler, number)

    def place(self, trial: int, graph: Graph) -> ValidatedTrial:
        """Return on which kinds of slices a graph runs, and how.

        Args:
          trial: Its number.
          graph: Its graph.
        """
        packed: dict[Any, Packed] = {}
        refusals: dict[str, list[SliceInfo]] = {}
        known = self._known_program(graph)
        # Once for each kind of device group, and not for each group: plans take seconds.
        for kind, slice in self._slices.items():
            if known is not None and (kind, known.key) in self._accepted:
                packed[kind] = known
                continue
            refusal = self._study.gate(graph, slice) if self._study.gate is not None else ""
            if refusal:
                # Reported only where no kind of group takes the trial.
                refusals.setdefault(refusal, []).append(slice)
            elif self._study.packing is None:
                packed[kind] = Packed()
            else:
                packed[kind] = self._study.packing(self._study.base, graph, slice)
                self._accepted.add((kind, packed[kind].key))
        return ValidatedTrial(trial, graph, "" if packed else _reason(refusals), packed=packed)

    def _known_program(self, graph: Graph) -> Packed | None:
        """Return how a graph runs whose program was placed before; None where that is to be seen.

        Only gates that look at the program alone, and say so by `by_program`, need not see the
        other trials of a program: one of the user may look at a learning rate.
        """
        gate, recall = self._study.gate, getattr(self._study.packing, "recall", None)
        if recall is None or not (gate is None or getattr(gate, "by_program", False)):
            return None
        return recall(self._study.base, graph)

    def _dedupe(self, trial: int, graph: Graph, repeat: int) -> tuple[Graph, int]:
        """Return the graph that runs, and the trial whose result it gets: its own, or another's."""
        # `setdefault` both looks and registers: this trial is the first of its fingerprint from
        # here on.
        first = self._first.setdefault(mark_of(graph), trial)
        if first == trial or isinstance(self._study.dedupe, CopyResult):
            return graph, first
        changed = graph
        # A setting that is suggested twice runs with the next free seed instead: the repeat then
        # measures the noise.
        while self._first.setdefault(mark_of(changed), trial) != trial:
            repeat += self._study.seeds
            changed = _with_seed(graph, trial, repeat)
        return changed, trial


def _reason(refusals: Mapping[str, Sequence[SliceInfo]]) -> str:
    """Return why a trial fits no kind of device group, from the kinds that each reason is for."""
    if len(refusals) < 2:
        return next(iter(refusals), "")
    parts = []
    for refusal, slices in refusals.items():
        kinds = dict.fromkeys(f"{slice.num_devices} x {slice.device_kind}" for slice in slices)
        parts.append(f"on {' and '.join(kinds)}: {refusal}")
    return "; ".join(parts)


def mark_of(graph: Graph) -> str:
    """Return the fingerprint that trials of the same graph share."""
    # The program fingerprint leaves out names and records: what does not change the training does
    # not make two trials different. 64 bits are enough for the trials of one study.
    return graphs.fingerprint(graph, "program")[:16]


def _with_seed(graph: Graph, trial: int, repeat: int) -> Graph:
    seed = graphs.evaluate(graphs.get(graph, "seed"))
    # Next to the base's seed, so that a repeat is easily reproduced by hand.
    return graphs.apply(graph, [f"seed={(seed + repeat) % 2**32}"], f"trial {trial}:")
