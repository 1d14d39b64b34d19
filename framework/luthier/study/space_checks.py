"""Converts assignments to graphs and back, and checks a space against its experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput, Problem, ValidationError
from luthier.graph import Graph, signatures, validation
from luthier.graph.overrides import matching
from luthier.study.space import (
    Assignment,
    Choice,
    Dimension,
    Named,
    Option,
    Space,
    Stored,
    Zipped,
    settings,
    sub_prefix,
)

# From an assignment to a graph, and back: what the base itself would be in the space.


@dataclasses.dataclass(frozen=True)
class Editing:
    """The context in which the overrides of a space are read.

    Args:
      shelves: Modules whose fiddlers may be named without their module.
      packages: The user's modules that values may name.
    """

    shelves: Sequence[str] = ()
    packages: Sequence[str] = ()

    def apply(self, graph: Graph, overrides: Sequence[Any], origin: str = "space") -> Graph:
        """Return a copy of a graph with overrides applied.

        Args:
          graph: A node.
          overrides: What `Space.overrides` returned.
          origin: What they are called in the history.

        Returns:
          The changed copy.

        Raises:
          OverrideError: One cannot be applied.
        """
        return graphs.apply(graph, overrides, origin, self.shelves, packages=self.packages)

    def trial_graph(self, base: Graph, space: Space, assignment: Assignment, trial: int) -> Graph:
        """Return the graph of a trial; its history says `trial 7: path=value`.

        Args:
          base: The experiment graph.
          space: The search space.
          assignment: What was chosen.
          trial: The number of the trial.

        Returns:
          The changed copy.
        """
        return self.apply(base, space.overrides(assignment), f"trial {trial}:")


def locate(base: Graph, space: Space, editing: Editing) -> dict[str, Stored] | None:
    """Return the assignment that makes the base of itself; None where the space has none.

    Args:
      base: The experiment graph.
      space: The search space.
      editing: How its words are read.

    Returns:
      Values by name, as of `grid_points`; or None.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> space = study.parse_space(["optimizer.b2=uniform(0.9,0.999)"])
      >>> study.locate(config, space, study.Editing())
      {'optimizer.b2': 0.98}
    """
    return _locate(base, space, editing, "")


def _locate(base: Graph, space: Space, editing: Editing, prefix: str) -> dict[str, Stored] | None:
    found: dict[str, Stored] = {}
    for key, dimension in space.dimensions.items():
        for stored in _candidates(base, key, dimension):
            value = dimension.value(stored)
            try:
                # An option's words can do anything, so whether it is the base's own choice is found
                # by applying it: the right one changes nothing.
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


def _candidates(base: Graph, key: str, dimension: Dimension) -> Sequence[Stored]:
    """Return the stored choices that may be the base's own."""
    stored_of = getattr(dimension, "stored", None)
    if stored_of is None:
        return dimension.points(1)
    try:
        held = [graphs.evaluate(place.value) for place in matching(base, key)]
    except (BadInput, ValueError):  # it is not there, or not set
        return ()
    stored = [stored_of(value) for value in held if value is not graphs.UNSET]
    return list(dict.fromkeys(found for found in stored if found is not None))


# Is a space one of this experiment? Every end of every range is tried on its graph.


@dataclasses.dataclass(frozen=True)
class _Claim:
    """The paths that a dimension changes.

    Args:
      name: Its name.
      touched: The paths that it changes.
    """

    name: str
    touched: frozenset[str]


def check_space(base: Graph, space: Space, editing: Editing) -> list[Problem]:
    """Return the problems of a space: unknown paths, values that do not fit, overlaps.

    Args:
      base: The experiment graph.
      space: The search space.
      editing: How its words are read.

    Returns:
      The problems, each with the path that it is about; none if the space fits.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> space = study.parse_space(["optimizer.b3=uniform(0.9,0.999)"])
      >>> [problem.path for problem in study.check_space(config, space, study.Editing())]
      ['optimizer.b3']
    """
    problems: list[Problem] = []
    if not space.dimensions:
        remedy = "write --space 'optimizer.learning_rate.peak=log(1e-4,1e-2)', or --sweep NAME"
        problems.append(Problem("the space is empty", remedy=remedy))
    checker = _Checker(editing, problems)
    checker.claims(base, space, "", [])
    problems += _constraint_problems(base, space)
    return problems


class _Checker:
    """Walks a space, and collects its problems."""

    def __init__(self, editing: Editing, problems: list[Problem]):
        self._editing = editing
        self._problems = problems

    def claims(
        self, graph: Graph, space: Space, prefix: str, others: Sequence[_Claim]
    ) -> list[_Claim]:
        """Return the paths that the dimensions of a space change, and record overlaps.

        Args:
          graph: What they are applied to.
          space: The space.
          prefix: The prefix of the names of its dimensions.
          others: What other dimensions change that take part at the same time.
        """
        # How overlaps are found: each dimension is applied to the graph with its extreme values
        # (`_probe`), and the paths that change are its claim. Two dimensions that take part at the
        # same time and claim the same path would leave the outcome to their order. Dimensions of
        # different options of one choice never take part together, so they are compared with
        # `beside` and not with each other.
        found: list[_Claim] = []
        for key, dimension in space.dimensions.items():
            named = Named(prefix + key, key, dimension, 0)
            broken = list(dimension.problems())
            self._problems += [Problem(what, origin=f"space: {named.name}") for what in broken]
            # A range that is broken in itself cannot be probed.
            if broken:
                continue
            touched, made = self._probe(graph, named)
            claim = _Claim(named.name, frozenset(touched))
            beside = [*others, *found]
            self._add_overlap(claim, beside)
            below: list[_Claim] = []
            for option, changed in made:
                if option.space is not None:
                    inside = sub_prefix(named.name, option)
                    # Checked against the graph with the option applied: its sub-space may set paths
                    # that exist only then. The claim of the choice itself is not in `beside`: a
                    # sub-space is applied after its option, and may refine what that sets.
                    below += self.claims(changed, option.space, inside, beside)
            found += [claim, *below]
        return found

    def _probe(self, graph: Graph, named: Named) -> tuple[set[str], list[tuple[Option, Any]]]:
        """Try a dimension; return the paths that it changes, and the graph of each option."""
        touched: set[str] = set()
        made: list[tuple[Option, Any]] = []
        for stored in named.dimension.probes():
            value = named.dimension.value(stored)
            try:
                # The overrides are applied for real, because patterns (`any:dropout`) and fiddlers
                # do not show what they set in any other way.
                changed = self._editing.apply(graph, settings(named.key, named.dimension, value))
                self._require_record(changed)
            except BadInput as error:
                if (bare := _bare_class(graph, named)) is not None:
                    self._problems.append(bare)
                    break  # every value fails for this reason
                self._problems += [
                    dataclasses.replace(p, origin=_origin(named, value)) for p in error.problems
                ]
                # The next probe of a range would fail for the same reason; each option may have a
                # problem of its own.
                if not isinstance(named.dimension, Choice | Zipped):
                    break
                continue
            touched |= {change.path for change in graphs.diff(graph, changed)}
            if isinstance(named.dimension, Choice):
                made.append((value, changed))
        return touched, made

    def _require_record(self, graph: Graph) -> None:
        """Raise where a trial with this graph could not be recorded, or not be read again.

        A study must not find that out after its first trials.
        """
        try:
            graphs.from_json(graphs.to_json(graph), self._editing.packages)
        except ValidationError:
            return  # other trials of this choice may be right: each is validated by itself

    def _add_overlap(self, claim: _Claim, others: Sequence[_Claim]) -> None:
        for other in others:
            # A path meets those above and below it, too: one dimension may replace a node of which
            # the other sets an argument.
            shared = sorted(a for a in claim.touched if any(_meet(a, b) for b in other.touched))
            if shared:
                what = f"overlaps with {other.name}: both set {shared[0]}"
                remedy = "leave out one of them, or put it into the space of an option"
                self._problems.append(Problem(what, claim.name, "space", remedy))
                return


def _bare_class(graph: Graph, named: Named) -> Problem | None:
    """Return the problem of a dimension below a class that the graph has without arguments."""
    # An override of such a path would be answered by a call with that argument, as a suggestion. A
    # space needs a node whose argument each trial can set.
    try:
        *above, name = graphs.parse_path(named.key)
    except BadInput:
        return None  # several paths, a pattern or a fiddler
    place, depth = graphs.locate(graph, tuple(above))
    target = place.value
    is_bare = isinstance(target, type) and depth == len(above)
    if not is_bare or name not in signatures.arguments(target).names:
        return None
    at, called = place.path, graphs.display_name(target)
    what = f"does not exist: {at} is {called} without its arguments"
    remedy = f"add the override {at}={called}()"
    return Problem(what, named.key, f"space: {named.name}", remedy)


def _origin(named: Named, value: Any) -> str:
    choice = value.label if isinstance(value, Option) else repr(value)
    return f"space: {named.name}, at {choice}"


def _meet(a: str, b: str) -> bool:
    short, long = sorted((a, b), key=len)
    return long == short or (long.startswith(short) and long[len(short)] in ".[")


def _constraint_problems(base: Graph, space: Space) -> Iterator[Problem]:
    for predicate in space.predicates:
        if not isinstance(predicate, str):
            continue
        try:
            for name in validation.names_in(predicate):
                graphs.get(base, name)
            violated(base, predicate)
        except BadInput as error:
            yield dataclasses.replace(error.problems[0], origin=f"constraint: {predicate}")
        except validation.Malformed as error:
            remedy = "write it like `model.dim % 64 == 0`"
            yield Problem(str(error), origin=f"constraint: {predicate}", remedy=remedy)


def violated(graph: Graph, predicate: Any) -> bool:
    """Return whether a graph breaks a constraint; one that cannot be evaluated counts as met.

    Args:
      graph: The graph of a trial.
      predicate: A condition, or a function of the graph.

    Returns:
      True if it is broken.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> study.violated(config, "model.dim <= 64"), study.violated(config, "model.dim <= 128")
      (True, False)
    """
    if not isinstance(predicate, str):
        return not predicate(graph)
    known: dict[str, Any] = {}
    for name in validation.names_in(predicate):
        try:
            known[name] = graphs.evaluate(graphs.get(graph, name))
        except BadInput:
            # A path that the trial's graph does not have, such as one of another option: the
            # condition is not about this trial.
            known[name] = validation.UNKNOWN
    return not validation.holds(predicate, known)
