"""What a recipe returns: a transformation of gradients, and the learning rate that is in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from luthier.optim.schedules import Constant, Schedule
from luthier.optim.stages import chain, scale_by_learning_rate


class OptimizerState(NamedTuple):
    """The number of updates so far (int32), and the states of the stages in their order."""

    num_updates: jax.Array
    stages: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer over a flat mapping from parameter names to arrays.

    Args:
      transformation: `init(parameters)` and `update(gradients, state, parameters)`, as in Optax;
        what `update` returns is added to the parameters.
      learning_rate: The schedule that the transformation follows, by the number of updates so
        far; shared with whoever logs it.
    """

    transformation: optax.GradientTransformation
    learning_rate: Schedule


def assemble(
    stages: Sequence[optax.GradientTransformation], learning_rate: Schedule | float
) -> Optimizer:
    """Make an optimizer of stages, ours or Optax's.

    Gradients are widened to float32 first; after the last stage the result is scaled by minus the
    learning rate. Every stage that takes the argument `count` gets the number of updates so far.

    Args:
      stages: Transformations of gradients, first one first, none with a learning rate in it.
      learning_rate: A schedule, or a number for a constant one.

    Returns:
      The optimizer; its state is an `OptimizerState`.
    """
    schedule = learning_rate if callable(learning_rate) else Constant(learning_rate)
    inner = chain([*stages, scale_by_learning_rate(schedule)])

    def init(parameters: Any) -> OptimizerState:
        return OptimizerState(jnp.zeros((), jnp.int32), inner.init(parameters))

    def update(
        gradients: Mapping[str, jax.Array],
        state: OptimizerState,
        parameters: Any = None,
        **extra: Any,
    ) -> tuple[Any, OptimizerState]:
        wide = {
            name: g.astype(jnp.promote_types(g.dtype, jnp.float32)) for name, g in gradients.items()
        }
        updates, states = inner.update(
            wide, state.stages, parameters, count=state.num_updates, **extra
        )
        return updates, OptimizerState(optax.safe_increment(state.num_updates), states)

    return Optimizer(optax.GradientTransformationExtraArgs(init, update), schedule)
