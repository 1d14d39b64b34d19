"""Wider, deeper and longer as fiddlers: sizes that belong together change together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier import graph
from luthier.durations import Epochs, Steps
from luthier.errors import BadInput, Problem
from luthier.graph.paths import Place
from luthier.graph.values import Deferred
from luthier.recipes.selection import is_experiment

WIDTHS = ("dim", "hidden_dim", "width")
"""Names of settings that are widths, beside heads and those in the `WIDTHS` of a layer."""

HEADS = ("num_heads", "num_kv_heads")
DEPTHS = ("num_layers", "stage_sizes")
EVEN = 8
"""Widths that are multiples of this stay multiples of it."""


def scale_width(experiment: fdl.Buildable, factor: float) -> Any:
    """Scale the width of a model: more heads of the same size, and wider layers.

    The fiddler preserves the ratio of query to key-value heads, so it rounds the factor to whole
    groups of heads. If the model has a single key-value head, it still has one afterwards. In a
    model without heads, the fiddler rounds widths to a multiple of 8. A shared width is scaled only
    once, and all values that are computed from it are updated.

        luthier show configs.lm.quickstart 'fiddler:scale_width(2.0)' --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      factor: The factor by which to multiply the width.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no known width, one does not follow, or the rounded factor changes
        nothing.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.scale_width(config, 2.0)
      >>> changed.model.dim, changed.model.block.attention.num_heads
      (256, 8)
    """
    changed = graph.copy_graph(experiment)
    sizes = GraphSizes(changed)
    units = max(1, int(sizes.units * _positive(factor) + 0.5))
    _refuse_nothing(units, sizes.units, factor, "width")
    sizes.widen(units)
    return changed


def scale_depth(experiment: fdl.Buildable, factor: float) -> Any:
    """Scale the number of layers of every stack by the same factor.

        luthier show configs.lm.quickstart 'fiddler:scale_depth(0.5)' --changes

    Args:
      experiment: A graph of an experiment or of a model; it is not changed.
      factor: The factor by which to multiply the number of layers. The result is rounded to whole
        layers.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The model has no number of layers, or the rounded factor changes nothing.

    Example:
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.scale_depth(config, 0.5)
      >>> changed.model.num_layers
      2
    """
    changed = graph.copy_graph(experiment)
    sizes = GraphSizes(changed)
    num_layers = max(1, int(sizes.num_layers * _positive(factor) + 0.5))
    _refuse_nothing(num_layers, sizes.num_layers, factor, "depth")
    sizes.deepen(num_layers)
    return changed


def scale_length(experiment: fdl.Buildable, factor: float) -> Any:
    """Scale the length of training, with the schedules of the optimizer in proportion.

    The fiddler scales `training.steps`, `training.stop`, and the warmups, decays and boundaries of
    schedules, and rounds them to whole steps. A warmup is always shorter than the run. The
    intervals of checkpoints and evaluations do not change.

        luthier show configs.lm.quickstart 'fiddler:scale_length(0.1)' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      factor: The factor by which to multiply the number of steps or epochs. The result is at
        least one step.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: The graph does not describe an experiment, or the rounded factor changes nothing.

    Example:
      >>> import luthier
      >>> from luthier import graph, recipes
      >>> config = luthier.experiment("quickstart")
      >>> changed = recipes.scale_length(config, 0.1)
      >>> warmup = changed.optimizer.learning_rate.warmup_steps
      >>> graph.evaluate(changed.training.steps), graph.evaluate(warmup)
      (90, 7)
    """
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone cannot be trained", remedy="give an experiment"))
    changed, factor = graph.copy_graph(experiment), _positive(factor)
    steps = graph.evaluate(changed.training.steps)
    # Before `training.steps` changes, which values that are computed from it then follow.
    lengths = {place.path: graph.evaluate(place.value) for place in _lengths(changed)}
    if graph.is_deferred(steps):
        longest = None
        epochs = fdl.Config(Epochs, graph.evaluate(steps.count) * factor)
        graph.set_value(changed, "training.steps", epochs)
    else:
        longest = max(1, int(steps * factor + 0.5))
        _refuse_nothing(longest, steps, factor, "length")
        graph.set_value(changed, "training.steps", longest)
    for path, before in lengths.items():
        if graph.evaluate(graph.get(changed, path)) == before:
            graph.set_value(changed, path, _scaled_length(path, before, factor, longest))
    stop = changed.training.__arguments__.get("stop")
    if stop is not None:
        made = graph.build(stop) if isinstance(stop, fdl.Buildable) else stop
        count = made.count * factor
        count = max(1, int(count + 0.5)) if isinstance(made, Steps) else count
        graph.set_value(changed, "training.stop", fdl.Config(type(made), count))
    return changed


def _lengths(changed: fdl.Buildable) -> Iterator[Place]:
    """Yield the settings of the optimizer's schedules that are numbers of steps."""
    for place in graph.walk(changed, defaults=False, once=True):
        named = str(place.part).endswith("_steps") or place.part == "boundaries"
        if named and place.path.startswith("optimizer.") and isinstance(place.owner, fdl.Buildable):
            # In epochs, only the data knows how many there are; they follow `training.steps`.
            with contextlib.suppress(Deferred):
                value = graph.evaluate(place.value)
                if _is_count(value) and value != 0:
                    yield place


def _scaled_length(path: str, before: Any, factor: float, longest: int | None) -> Any:
    if isinstance(before, list | tuple):
        # Boundaries stay apart from each other, however short the run becomes.
        found: list[int] = []
        for step in before:
            found.append(max(int(step * factor + 0.5), found[-1] + 1 if found else 1))
        return type(before)(found)
    # Rounded down, and below the length of the run: a schedule needs a step after its warmup.
    if path.endswith("warmup_steps"):
        most = before if longest is None else longest - 1
        return min(max(1, int(before * factor)), most)
    return max(1, int(before * factor + 0.5))


class GraphSizes:
    """The widths and depths of a graph, to be changed in place.

    Args:
      changed: A graph of an experiment or of a model.

    Raises:
      BadInput: The model has no known width or depth.
    """

    # All widths change by one integer, the number of `units`: heads stay whole, groups of query
    # heads per key and value head keep their size, and every width is the same multiple of what it
    # was.

    def __init__(self, changed: fdl.Buildable):
        self._graph = changed
        places = list(_settings(changed))
        self._heads = [place for place in places if place.part in HEADS]
        self._widths = [place for place in places if _is_width(place)]
        self._depths = [place for place in places if place.part in DEPTHS]
        if not self._widths:
            raise _nothing(changed, "width", (*WIDTHS, *HEADS))
        if not self._depths:
            raise _nothing(changed, "depth", DEPTHS)

    @property
    def units(self) -> int:
        """The width, in the smallest steps that keep heads whole and widths multiples of 8."""
        heads = [_number(place) for place in self._heads]
        heads = [number for number, place in zip(heads, self._heads, strict=True) if _grows(place)]
        if heads:
            return math.gcd(*heads)
        common = math.gcd(*(_number(place) for place in self._widths))
        return common // math.gcd(common, EVEN)

    @property
    def num_layers(self) -> int:
        """The depth: layers of the deepest stack."""
        return max(max(_counts(place)) for place in self._depths)

    @property
    def num_kinds(self) -> int:
        """Maximum number of kinds of layers that alternate in a stack."""
        blocks = [place.value for place in graph.walk(self._graph) if place.part == "block"]
        return max((len(block) for block in blocks if isinstance(block, list | tuple)), default=1)

    def widen(self, units: int) -> None:
        """Set all widths.

        Args:
          units: The width, in the steps of `units`.

        Raises:
          BadInput: A width is computed from values that are not widths.
        """
        # Heads are exact multiples by the choice of `units`. A width that is none is rounded, and
        # stays a multiple of 8 if it was one. All new values are computed before any is set,
        # because setting a shared value changes others.
        old = self.units
        wanted = []
        for place in self._heads:
            number = _number(place)
            wanted.append((place, number * units // old if _grows(place) else number))
        for place in self._widths:
            number = _number(place)
            even = math.gcd(number, EVEN)
            exact = number * units % old == 0
            rounded = max(1, int(number * units / old / even + 0.5)) * even
            wanted.append((place, number * units // old if exact else rounded))
        self._set(wanted)

    def deepen(self, num_layers: int) -> None:
        """Set the depth of all stacks.

        Args:
          num_layers: Layers of the deepest stack.

        Raises:
          BadInput: A number of layers is computed from values that are not numbers of layers.
        """
        old = self.num_layers
        wanted: list[tuple[Place, Any]] = []
        for place in self._depths:
            counts = [max(1, int(n * num_layers / old + 0.5)) for n in _counts(place)]
            value = graph.evaluate(place.value)
            wanted.append((place, counts[0] if isinstance(value, int) else type(value)(counts)))
        self._set(wanted)

    def _set(self, wanted: list[tuple[Place, Any]]) -> None:
        # A width may be arithmetic on another one (`hidden_dim=4 * dim`). It must not be
        # overwritten by a number, or it would no longer follow. So only plain values are set, a
        # shared value once; afterwards the computed ones must have become what they should be, or
        # are reported. That may leave the graph half changed: callers give a copy.
        computed = []
        for place, value in wanted:
            now = graph.get(self._graph, place.path)
            if graph.evaluate(now) == value:
                continue
            if graph.is_value_node(now) and graph.expression(now) != _name(now):
                computed.append((place, value))
                continue
            graph.set_value(self._graph, place.path, value)
        problems = [
            Problem(
                f"is {graph.expression(place.value)}, which does not become {value} with the rest",
                place.path,
                remedy=f"set it to a number first: {place.path}:={graph.evaluate(place.value)}",
            )
            for place, value in computed
            if graph.evaluate(graph.get(self._graph, place.path)) != value
        ]
        if problems:
            raise BadInput(problems)


def _settings(changed: fdl.Buildable) -> Iterator[Place]:
    """Yield the sizes of the model, each once, whether they are set or at their defaults."""
    # The walk takes each shared node once, but an owner can have several paths: so owners are
    # tracked, too.
    prefix = "model." if is_experiment(changed) else ""
    seen: set[tuple[int, Any]] = set()
    for place in graph.walk(changed, once=True):
        named = place.part in (*WIDTHS, *HEADS, *DEPTHS) or _is_own_width(place)
        if not (named and isinstance(place.owner, fdl.Buildable)):
            continue
        if (id(place.owner), place.part) in seen or not place.path.startswith(prefix):
            continue
        seen.add((id(place.owner), place.part))
        if _is_count(graph.evaluate(place.value)):
            yield place


def _is_count(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(child, int) for child in value)
    return isinstance(value, int)


def _is_width(place: Place) -> bool:
    return place.part in WIDTHS or _is_own_width(place)


def _is_own_width(place: Place) -> bool:
    """Return whether a layer declares a setting as a width, in `WIDTHS` of its class."""
    made = getattr(place.owner, "__fn_or_cls__", None)
    return place.part in getattr(made, "WIDTHS", ())


def _grows(place: Place) -> bool:
    """Return whether heads grow with the width: a single key and value head stays one."""
    return place.part == "num_heads" or _number(place) > 1


def _number(place: Place) -> int:
    return int(graph.evaluate(place.value))


def _counts(place: Place) -> list[int]:
    value = graph.evaluate(place.value)
    return list(value) if isinstance(value, list | tuple) else [value]


def _name(node: Any) -> str:
    """Return the name of a constant; empty for arithmetic."""
    arguments = node.__arguments__
    return graph.expression(node) if "value" in arguments else ""


def _positive(factor: float) -> float:
    if not factor > 0:
        raise BadInput(Problem(f"the factor {factor:g} is not above zero", remedy="write 2 or 0.5"))
    return factor


def _refuse_nothing(new: int, old: int, factor: float, what: str) -> None:
    if new == old and factor != 1:
        nearest = [f"{n / old:g}" for n in (old - 1, old + 1) if n > 0]
        message = f"the factor {factor:g} is rounded to 1, so that the {what} stays as it is"
        raise BadInput(Problem(message, remedy=f"the nearest that change it: {', '.join(nearest)}"))


def _nothing(changed: fdl.Buildable, what: str, names: tuple[str, ...]) -> BadInput:
    model = changed.model if is_experiment(changed) else changed
    name = getattr(getattr(model, "__fn_or_cls__", model), "__name__", "the model")
    remedy = f"scaling goes by the settings {', '.join(names)}"
    return BadInput(Problem(f"{name} has no {what} that can be scaled", "model", "", remedy))
