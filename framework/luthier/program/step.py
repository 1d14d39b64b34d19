"""The training step: a pure function that reads like an algorithm of a paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from luthier.program.state import State, Structure, below, split, unflatten, with_prefix
from luthier.program.state import flatten as flatten_tree

Batch = Mapping[str, jax.Array]


def train_step(experiment: Any, state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
    r"""Take one step of optimization.

    With parameters $\theta$, batch $B$ cut into microbatches $B_1, ..., B_A$, and a task that
    returns sums $n(B), w(B)$ of loss numerators and weights:

    $$ g = \frac{\sum_a \nabla_\theta n(B_a)}{\sum_a w(B_a)}, \qquad
       \theta' = \theta + u(g), $$

    so the gradient does not depend on how the batch is cut. A step that the guard refuses leaves
    parameters, average and optimizer as they were.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays (see `luthier.program.state`).
      batch: Entries with the global batch as leading dimension.

    Returns:
      The next state, and the step's scalars by name.
    """
    training, optimizer = experiment.training, experiment.optimizer
    step = state["step"]
    parameters = below("parameters", state)
    total, gradient = gradient_of(experiment, state, batch)

    loss = total.loss.value()
    gradient_norm = optax.tree.norm(gradient)
    next_state = dict(state)
    memory = _optimizer_state(optimizer, parameters, state)
    update, memory = optimizer.transformation.update(gradient, memory, parameters)
    parameters = optax.apply_updates(parameters, update)
    next_state |= with_prefix("parameters", parameters) | flatten_tree("optimizer", memory)
    if training.ema is not None:
        average = training.ema.update(below("ema", state), parameters, step)
        next_state |= with_prefix("ema", average)

    skipped = state.get("guard/total_skipped", 0)
    scalars = {"loss": loss, "gradient_norm": gradient_norm}
    if training.guard is not None:
        guard = unflatten("guard", training.guard.init(), state)
        accepted, guard = training.guard.check(guard, loss, gradient_norm)
        next_state = {n: jnp.where(accepted, next_state[n], state[n]) for n in state}
        next_state |= flatten_tree("guard", guard)
        scalars |= {
            "skipped": jnp.where(accepted, 0, 1),
            "consecutive_skipped": guard.consecutive_skipped,
        }
    next_state["step"] = step + 1
    scalars |= {metric.name: ratio.value() for metric, ratio in total.metrics.items()}
    scalars |= {
        "parameter_norm": optax.tree.norm(below("parameters", next_state)),
        "learning_rate": optimizer.learning_rate(step - skipped),
    }
    return next_state, scalars


def gradient_of(experiment: Any, state: State, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
    """Return the sums over the batch and the gradient of the weighted mean loss.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays; `step`, `parameters/...` and `variables/...` are read.
      batch: Entries with the global batch as leading dimension.

    Returns:
      The task's sums over the whole batch, and the gradient by parameter name, in the dtype of
      the parameter but not below float32.
    """
    structure = structure_of(experiment)
    variables = below("variables", state)
    key = jax.random.fold_in(dropout_key(experiment.seed), state["step"])

    def numerator(parameters: Mapping[str, jax.Array], part: Batch) -> tuple[jax.Array, Any]:
        sums = experiment.task.loss(structure.merge({**parameters, **variables}), part, key)
        return sums.loss.numerator, sums

    parameters = below("parameters", state)
    sums, gradient = _accumulate(
        jax.grad(numerator, has_aux=True), parameters, batch, experiment.training.accumulation
    )
    weight = sums.loss.denominator
    safe = jnp.where(weight > 0, weight, 1)
    return sums, {name: array / safe for name, array in gradient.items()}


def evaluate_step(experiment: Any, state: State, prefix: str, batch: Batch) -> dict[Any, Any]:
    """Return the task's sums by metric over one batch.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays; those below `prefix` and `variables` are read.
      prefix: `parameters` or `ema`.
      batch: Entries with the global batch as leading dimension.
    """
    structure = structure_of(experiment)
    arrays = below(prefix, state) | below("variables", state)
    return experiment.task.evaluate(structure.merge(arrays), batch)


def init_state(experiment: Any) -> State:
    """Return the state before the first step: a pure function of the experiment's seed."""
    model = experiment.model(rngs=rngs_of(experiment.seed))
    _, parameters, variables = split(model)
    state: State = {"step": jnp.zeros((), jnp.int32)}
    state |= with_prefix("parameters", parameters) | with_prefix("variables", variables)
    state |= flatten_tree("optimizer", experiment.optimizer.transformation.init(parameters))
    if experiment.training.ema is not None:
        state |= with_prefix("ema", experiment.training.ema.init(parameters))
    if experiment.training.guard is not None:
        state |= flatten_tree("guard", experiment.training.guard.init())
    return state


def structure_of(experiment: Any) -> Structure:
    """Return the model without its arrays, for use inside the current trace."""
    return split(experiment.model(rngs=rngs_of(experiment.seed)))[0]


def rngs_of(seed: Any) -> Any:
    """Return the random streams that initialize parameters."""
    from flax import nnx

    return nnx.Rngs(params=jax.random.fold_in(jax.random.key(seed), 0))


def dropout_key(seed: Any) -> jax.Array:
    """Return the key that dropout folds the step into."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def _accumulate(
    gradient_and_sums: Callable[..., Any],
    parameters: Mapping[str, jax.Array],
    batch: Batch,
    accumulation: int,
) -> tuple[Any, dict[str, jax.Array]]:
    def wide(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)

    if accumulation == 1:
        gradient, sums = gradient_and_sums(parameters, batch)
        return sums, wide(gradient)

    def microbatches(x: jax.Array) -> jax.Array:
        # Rows are dealt out in turn, so that every device keeps the rows it has.
        return x.reshape(x.shape[0] // accumulation, accumulation, *x.shape[1:]).swapaxes(0, 1)

    def add(total: Any, part: Batch) -> tuple[Any, None]:
        gradient, sums = gradient_and_sums(parameters, part)
        return jax.tree.map(jnp.add, total, (sums, wide(gradient))), None

    parts = jax.tree.map(microbatches, dict(batch))
    one = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(gradient_and_sums, parameters, one)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[1], shapes[0]))
    (sums, gradient), _ = jax.lax.scan(add, (zeros[0], wide(zeros[1])), parts)
    return sums, gradient


def _optimizer_state(optimizer: Any, parameters: Mapping[str, Any], state: State) -> Any:
    empty = jax.eval_shape(optimizer.transformation.init, parameters)
    return unflatten("optimizer", empty, state)
