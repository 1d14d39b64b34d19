"""Models of a given size or cost, as a fiddler: a search for width and depth without arrays.

FLOPs are counted by `luthier.tasks.flops`, because recipes may not import the planner.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import jax
from flax import nnx

from luthier import graph
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.recipes.scale import GraphSizes
from luthier.recipes.selection import is_experiment
from luthier.tasks.flops import count

WIDEST = 2**16
"""Maximum width of the search, in units (see `GraphSizes.units`)."""


def scale_to(
    experiment: fdl.Buildable,
    parameters: float | None = None,
    flops_per_step: float | None = None,
    tolerance: float = 0.05,
) -> Any:
    """Scale a model to a number of parameters, or to a number of FLOPs per step.

    The fiddler scales width and depth together, so that the number of layers per unit of width does
    not change. It then adjusts the depth to make up the remaining difference. The size of a head
    and the ratio of heads do not change, as in `scale_width`. The fiddler counts parameters and
    FLOPs in the same way as `luthier plan`. The number of parameters includes embeddings. The FLOPs
    are three times the FLOPs of the matrix products in the forward pass of a global batch.

        luthier show configs.lm.quickstart 'fiddler:scale_to(parameters=1e8)' --changes

    Args:
      experiment: A graph of an experiment, or for parameters, of a model; it is not changed.
      parameters: The number of parameters.
      flops_per_step: The model FLOPs of a training step. The batch size and the sequence length do
        not change.
      tolerance: The relative tolerance of the count.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: Neither or both are given, or one that is not above zero; or no width and depth
        are within the tolerance.
    """
    if (parameters is None) == (flops_per_step is None):
        what = "scale_to takes parameters or flops_per_step, one of them"
        raise BadInput(Problem(what, remedy="write scale_to(parameters=1e8)"))
    if flops_per_step is not None and not is_experiment(experiment):
        what = "a model alone has no steps whose FLOPs could be counted"
        raise BadInput(
            Problem(what, remedy="give an experiment, or write scale_to(parameters=...)")
        )
    target = flops_per_step if parameters is None else parameters
    counted = count_flops if parameters is None else count_parameters
    if target is None or not (math.isfinite(target) and target > 0):
        name = "flops_per_step" if parameters is None else "parameters"
        what = f"{target} is not a finite number above zero"
        raise BadInput(Problem(what, name, remedy=f"write scale_to({name}=1e8)"))
    found = _Search(experiment, counted).find(float(target), tolerance)
    return _resized(experiment, *found)


def count_parameters(experiment_or_model: fdl.Buildable) -> int:
    """Count the scalars of a model's parameters; no array is made.

    Args:
      experiment_or_model: A graph of an experiment or of a model.
    """
    shapes = jax.tree.leaves(nnx.state(_abstract(_model(experiment_or_model)), nnx.Param))
    return sum(math.prod(leaf.shape) for leaf in shapes)


def count_flops(experiment: fdl.Buildable) -> int:
    """Count the model FLOPs of one training step: three times the products of the forward pass.

    Args:
      experiment: A graph of an experiment.

    Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B, without embedding look-ups.
    """
    task, data = (graph.build(graph.get(experiment, part)) for part in ("task", "data"))
    size = graph.evaluate(graph.get(experiment, "training.global_batch_size"))
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for name, (shape, dtype) in data.batch_spec(size).items()
    }
    structure, state = nnx.split(_abstract(_model(experiment)))

    def forward(state: Any, batch: Any, key: jax.Array) -> Any:
        return task.loss(nnx.merge(structure, state), batch, key).loss.numerator

    key = jax.eval_shape(lambda: jax.random.key(0))
    return 3 * count(jax.make_jaxpr(forward)(state, batch, key)).total


def _model(experiment_or_model: Graph) -> Any:
    return experiment_or_model.model if is_experiment(experiment_or_model) else experiment_or_model


def _abstract(model: Graph) -> Any:
    template = graph.build(model)
    return nnx.eval_shape(lambda: template(rngs=nnx.Rngs(0)))


def _resized(experiment: fdl.Buildable, units: int, num_layers: int) -> Any:
    changed = graph.copy_graph(experiment)
    sizes = GraphSizes(changed)
    sizes.widen(units)
    sizes.deepen(num_layers)
    return changed


@dataclasses.dataclass(frozen=True)
class _Found:
    """A width and depth with its count."""

    units: int
    num_layers: int
    count: int


class _Search:
    """Search for the width and depth of a count."""

    # Each count traces the model, so few are made, and none twice. The count grows with the width
    # at proportional depth: bisection brackets the target. At a fixed width it is linear in the
    # depth (each layer costs the same), so two counts give the depth that fits best. Of the widths
    # around the bracket the one whose shape is least distorted wins.

    def __init__(self, experiment: fdl.Buildable, counted: Callable[[Any], int]):
        sizes = GraphSizes(graph.copy_graph(experiment))
        self._units, self._num_layers = sizes.units, sizes.num_layers
        self._kinds = sizes.num_kinds
        self._measure = functools.cache(
            lambda units, num_layers: counted(_resized(experiment, units, num_layers))
        )

    def find(self, target: float, tolerance: float) -> tuple[int, int]:
        """Return the width, in units, and the number of layers within the tolerance.

        Of several, the one whose proportions are nearest to the model's own.
        """
        # The two widths around the target first; a wider range only if neither has a depth that
        # fits.
        near = self._widest_below(target)
        tried: list[_Found] = []
        good: list[_Found] = []
        for widths in ((near, near + 1), (near - 1, near + 2)):
            tried += [
                _Found(units, num_layers, self._measure(units, num_layers))
                for units in widths
                if units > 0
                for num_layers in self._depths(units, target)
            ]
            good = [found for found in tried if abs(found.count / target - 1) <= tolerance]
            if good:
                break
        else:
            raise BadInput(_unreachable(target, tolerance, tried))
        best = min(good, key=lambda found: (self._distortion(found), abs(found.count - target)))
        return best.units, best.num_layers

    def _widest_below(self, target: float) -> int:
        """Return the greatest width whose count at proportional depth is below the target, or 1."""
        low, high = 1, 2
        while high < WIDEST and self._measure(high, self._proportional(high)) < target:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._measure(middle, self._proportional(middle)) < target:
                low = middle
            else:
                high = middle
        return low

    def _proportional(self, units: int) -> int:
        return max(1, round(self._num_layers * units / self._units))

    def _depths(self, units: int, target: float) -> list[int]:
        """Return the depths around the one at which the count of a width is the target."""
        # Depths differ by a whole period of alternating kinds, since its layers cost differently.
        first = max(self._proportional(units), self._kinds)
        one, more = (self._measure(units, first + n) for n in (0, self._kinds))
        if more <= one:
            return [first]
        exact = first + (target - one) * self._kinds / (more - one)
        return sorted({max(1, math.floor(exact)), max(1, math.ceil(exact))})

    def _distortion(self, found: _Found) -> float:
        return abs(math.log(found.num_layers * self._units / (self._num_layers * found.units)))


def _unreachable(target: float, tolerance: float, tried: list[_Found]) -> Problem:
    nearest = min(tried, key=lambda found: abs(found.count - target))
    what = f"no width and depth counts {target:.4g} within {tolerance:.2g} of it"
    off = abs(nearest.count / target - 1) if target else math.inf
    remedy = f"the nearest counts {nearest.count:,}: write tolerance={math.ceil(off * 100) / 100:g}"
    return Problem(what, remedy=remedy if off < 1 else f"the nearest counts {nearest.count:,}")
