"""The result of a recipe: a transformation of gradients, and the learning rates that are in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from luthier.errors import Problem
from luthier.optim.layouts import Layouts, OptimizerStage, complete
from luthier.optim.masks import DECAYED, ParameterMask
from luthier.optim.schedules import Constant, Schedule
from luthier.optim.stages import chain, scale_by_learning_rate


class OptimizerState(NamedTuple):
    """The number of updates so far (int32), and the states of the stages in their order."""

    # One counter for all stages. Optax keeps one in each stateful transformation, which are equal
    # numbers that a checkpoint holds several times, and which a stage without state would not have.

    num_updates: jax.Array
    stages: tuple[Any, ...]


def _no_problems(names: Iterable[str]) -> list[Problem]:
    del names
    return []


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer over a flat mapping from parameter names to arrays.

    Args:
      transformation: `init(parameters)` and `update(gradients, state, parameters)`, as in Optax;
        the result of `update` is added to the parameters. An `OptimizerStage` also takes layouts.
      learning_rate: The schedule that the transformation follows, by the number of updates so
        far; shared with whoever logs it.
      learning_rates: Schedules of parts that follow another one, by the part's name.
      check: Called with the names of all parameters; returns the problems of settings that do not
        fit them.
    """

    transformation: optax.GradientTransformation
    learning_rate: Schedule
    learning_rates: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)
    check: Callable[[Iterable[str]], list[Problem]] = _no_problems

    def init(self, parameters: Mapping[str, jax.Array], layouts: Layouts | None = None) -> Any:
        """Return the state before the first update.

        Args:
          parameters: Arrays by name.
          layouts: Layout by name; None goes by the shapes.

        Returns:
          The state, an `OptimizerState` for recipes of luthier.
        """
        return init_stage(self.transformation, parameters, layouts)

    def update(
        self,
        gradients: Mapping[str, jax.Array],
        state: Any,
        parameters: Mapping[str, jax.Array],
        layouts: Layouts | None = None,
    ) -> tuple[dict[str, jax.Array], Any]:
        """Return the update to add to the parameters, and the next state.

        Args:
          gradients: Arrays by name.
          state: The state.
          parameters: Arrays by name.
          layouts: Layout by name; None goes by the shapes.

        Returns:
          The updates by name, of the shapes of the parameters (add them), and the next state.
        """
        # A user's plain Optax transformation may not accept keyword arguments, so it gets none.
        if isinstance(self.transformation, OptimizerStage):
            return self.transformation.update(gradients, state, parameters, layouts=layouts)
        return self.transformation.update(gradients, state, parameters)


def init_stage(
    stage: optax.GradientTransformation,
    parameters: Mapping[str, jax.Array],
    layouts: Layouts | None,
) -> Any:
    """Return the first state of any transformation, with layouts for those that take them."""
    if isinstance(stage, OptimizerStage):
        return stage.init(parameters, layouts=layouts)  # type: ignore[call-arg]
    return stage.init(parameters)


def assemble(
    stages: Sequence[optax.GradientTransformation],
    learning_rate: Schedule | float,
    masks: Mapping[str, ParameterMask] | None = None,
) -> Optimizer:
    """Make an optimizer of stages, ours or Optax's.

    Gradients are widened to float32 first; after the last stage the result is scaled by minus the
    learning rate. Every stage that takes them gets the arguments `count`, the number of updates
    so far, and `layouts`.

    Args:
      stages: Transformations of gradients, first one first, none with a learning rate in it.
      learning_rate: A schedule, or a number for a constant one.
      masks: Masks that must match at least one parameter, by the name of the setting.

    Returns:
      The optimizer; its state is an `OptimizerState`.

    Example:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from luthier import optim
      >>> optimizer = optim.assemble([optax.scale_by_sign()], learning_rate=0.1)
      >>> parameters = {"kernel": jnp.ones(2)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update({"kernel": jnp.array([3.0, -4.0])}, state, parameters)
      >>> print(updates["kernel"])
      [-0.1  0.1]
    """
    # The learning rate comes last and belongs to no stage: the same schedule object is applied and
    # logged, so that the logged value cannot differ from the used one, and stages such as the clip
    # of an update see directions whose size does not depend on the schedule.
    schedule = as_schedule(learning_rate)
    inner = chain([*stages, scale_by_learning_rate(schedule)])
    return Optimizer(counted(inner), schedule, check=checker(masks or {}))


def as_schedule(learning_rate: Schedule | float) -> Schedule:
    """Return a schedule as it is, and a number as a constant one."""
    return learning_rate if callable(learning_rate) else Constant(learning_rate)


def counted(inner: optax.GradientTransformation) -> OptimizerStage:
    """Return a transformation that counts its updates and widens gradients to float32.

    Args:
      inner: A transformation that takes `count` and `layouts`, such as a `chain`.
    """

    # The outermost stage of every recipe. It fills in what is missing once, so that no inner stage
    # has to: layouts are complete, gradients at least float32, and `count` is the number before
    # this update (0 at the first).
    def init(parameters: Any, layouts: Layouts | None = None) -> OptimizerState:
        known = complete(parameters, layouts)
        return OptimizerState(jnp.zeros((), jnp.int32), init_stage(inner, parameters, known))

    def update(
        gradients: Mapping[str, jax.Array],
        state: OptimizerState,
        parameters: Any = None,
        *,
        layouts: Layouts | None = None,
        **extra: Any,
    ) -> tuple[Any, OptimizerState]:
        # Squares of bfloat16 gradients would underflow, and sums of them stagnate. Here and not in
        # the stages: a stage of Optax does not widen.
        wide = {
            name: g.astype(jnp.promote_types(g.dtype, jnp.float32)) for name, g in gradients.items()
        }
        known = complete(gradients, layouts)
        extra |= {"count": state.num_updates, "layouts": known}
        updates, states = inner.update(wide, state.stages, parameters, **extra)
        # Saturating: after 2**31 - 1 updates a wrapped count would be negative, which would turn
        # every hyperparameter into 0 (`runtime`).
        return updates, OptimizerState(optax.safe_increment(state.num_updates), states)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def checker(masks: Mapping[str, ParameterMask]) -> Callable[[Iterable[str]], list[Problem]]:
    """Return a function from parameter names to a problem for every mask that matches none of them.

    Args:
      masks: Masks by the name of the setting. The default mask of decay is exempt: a model may
        well have no parameter that decays.
    """

    def check(names: Iterable[str]) -> list[Problem]:
        listed = sorted(names)
        some = ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
        remedy = f"it is searched for in names such as {some}"
        return [
            Problem(f"{mask} holds no parameter", setting, remedy=remedy)
            for setting, mask in masks.items()
            if mask is not DECAYED and mask != DECAYED and not any(map(mask, listed))
        ]

    return check
