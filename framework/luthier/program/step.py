"""The training step: a pure function that reads like an algorithm of a paper."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from luthier import user_code
from luthier.errors import BadInput, Problem
from luthier.layers.dropout import watch_dropout
from luthier.layers.parameters import outlined
from luthier.metrics import LOSS, Metric, Ratio
from luthier.metrics.metric import identity
from luthier.optim import state_axes
from luthier.parallel import current_layout
from luthier.parallel.specs import FSDP, resolve
from luthier.program.accumulation import (
    additive_gradient,
    counted_gradient,
    coupled_gradient,
)
from luthier.program.experiment import Experiment
from luthier.program.precision import MASTERS, as_computed, as_stored, widened
from luthier.program.state import (
    DROPOUT_REMEDY,
    State,
    Structure,
    below,
    changed,
    check_dropout,
    check_updates,
    chosen,
    model_arrays,
    split,
    unflatten,
    with_prefix,
)
from luthier.program.state import flatten as flatten_tree
from luthier.tasks import CountCoupled, CoupledTask, LossSums

Batch = Mapping[str, jax.Array]


def train_step(
    experiment: Experiment, state: State, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    r"""Take one step of optimization.

    With parameters $\theta$, batch $B$ cut into microbatches $B_1, ..., B_A$, and a task that
    returns sums $n(B), w(B)$ of loss numerators and weights:

    $$ g = \frac{\sum_a \nabla_\theta n(B_a)}{\sum_a w(B_a)}, \qquad
       \theta' = \theta + u(g), $$

    so the gradient does not depend on how the batch is cut. Where a parameter has a master weight,
    that is $\theta$, and the parameter is its rounded value. Parameters that `training.trainable`
    leaves out have neither gradient nor optimizer state. A step that the guard rejects leaves
    parameters, variables, average and optimizer as they were.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays (see `luthier.program.state`).
      batch: Entries with the global batch as leading dimension.

    Returns:
      The next state, and the step's scalars by name.
    """
    # Everything here is traced: the arrays of `state` and `batch`, and the hoisted scalars inside
    # `experiment`. Names, the structure of the model and which parts exist (guard, average, master
    # weights) are static, so Python decides on them while tracing and nothing branches on a device.
    training, optimizer = experiment.training, experiment.optimizer
    step, structure = state["step"], structure_of(experiment)
    total, gradient = _gradient(experiment, structure, state, batch)
    masters = below(MASTERS, state)
    # Master weights are what is updated. The gradient was taken at the rounded parameter, which is
    # what the model computes with (Micikevicius et al. 2017, arXiv:1710.03740, figure 1).
    parameters = {n: masters[n] if n in masters else state[f"parameters/{n}"] for n in gradient}

    loss = total.loss.value()
    gradient_norm = optax.tree.norm(gradient)  # of the whole batch, before any clipping
    next_state = state | changed("variables", total.updates, state)
    layouts = structure.layouts()
    # The state holds the optimizer's arrays by name, perhaps stored in narrower types. Its pytree
    # and the types that it computes in come from an abstract `init`, which costs no computation.
    empty = jax.eval_shape(lambda p: optimizer.init(p, layouts), parameters)
    memory = as_computed(unflatten("optimizer", empty, state), empty)
    update, memory = optimizer.update(gradient, memory, parameters, layouts)
    parameters = optax.apply_updates(parameters, update)
    # The sum is rounded to the stored type only now: an update that is too small to change a
    # bfloat16 parameter still changes its master weight, and counts after enough steps.
    masters = {name: parameters[name] for name in masters}
    moved = with_prefix("parameters", parameters) | with_prefix(MASTERS, masters)
    next_state |= as_stored(moved | flatten_tree("optimizer", memory), state)
    if training.ema is not None:
        average = training.ema.update(below("ema", state), parameters, step)
        next_state |= with_prefix("ema", average)

    # Steps that were skipped before this one. The optimizer's own count of updates stands still
    # in a skipped step, because its whole state is put back; the schedule that is reported below
    # is read at that count, not at `step`, so it is the rate that was really applied.
    skipped = state.get("guard/total_skipped", 0)
    scalars = {"loss": loss, "gradient_norm": gradient_norm}
    if training.guard is not None:
        guard = unflatten("guard", training.guard.init(), state)
        accepted, guard = training.guard.check(guard, loss, gradient_norm)
        # A select for each array, and no `lax.cond`: it takes nothing of the values that are not
        # selected, so a NaN in the update does not get through. The guard's own counters and the
        # step come after it: they advance in a skipped step, too.
        next_state = {n: jnp.where(accepted, next_state[n], state[n]) for n in state}
        next_state |= flatten_tree("guard", guard)
        scalars |= {
            "skipped": jnp.where(accepted, 0, 1),
            "consecutive_skipped": guard.consecutive_skipped,
        }
    next_state["step"] = step + 1
    scalars |= {metric.name: ratio.value() for metric, ratio in total.metrics.items()}
    scalars |= {
        "parameter_norm": optax.tree.norm(widened(below("parameters", next_state))),
        "learning_rate": optimizer.learning_rate(step - skipped),
    }
    for name, schedule in optimizer.learning_rates.items():
        scalars[f"learning_rate/{name}"] = schedule(step - skipped)
    return next_state, scalars


def gradient_of(
    experiment: Experiment, state: State, batch: Batch
) -> tuple[Any, dict[str, jax.Array]]:
    """Return the sums over the batch and the gradient of the weighted mean loss.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays; `step`, `parameters/...` and `variables/...` are read.
      batch: Entries with the global batch as leading dimension.

    Returns:
      The task's sums over the whole batch, and the gradient by name of a trained parameter, in the
      dtype of the parameter but not below float32.
    """
    return _gradient(experiment, structure_of(experiment), state, batch)


def _gradient(
    experiment: Experiment, structure: Structure, state: State, batch: Batch
) -> tuple[Any, dict[str, jax.Array]]:
    task, training, arrays = experiment.task, experiment.training, model_arrays(state)
    # One key for the whole step, the same for every microbatch: masks are drawn by document and
    # position (`layers.dropout`), so two microbatches never share one by accident, and a token
    # gets the same mask however the batch is cut.
    key = jax.random.fold_in(dropout_key(experiment.seed), state["step"])
    trained = chosen(below("parameters", state), training.trainable)
    kinds = experiment.precision.sums(trained)
    # Widened before the derivative is taken, not after it: the cotangents of all uses of a
    # parameter (a tied embedding, a bias over all tokens of a scan) are added up in the type of the
    # variable that is differentiated. Layers cast it back to what they compute in.
    trained = {n: x.astype(jnp.promote_types(x.dtype, kinds[n])) for n, x in trained.items()}

    def numerator(trained: Mapping[str, jax.Array], part: Batch, *seen: Any) -> Any:
        model = structure.merge({**arrays, **trained})
        with watch_dropout() as use:
            sums = task.loss(model, part, key, *seen)
        check_loss(sums)
        check_dropout(model, use)
        check_updates(model, arrays, sums.updates, is_restored=experiment.restore is not None)
        return sums.loss.numerator, sums

    def statistics(trained: Mapping[str, jax.Array], part: Batch) -> Any:
        return task.statistics(structure.merge({**arrays, **trained}), part, key)

    # With one microbatch nothing is cut, so a coupled loss is differentiated as it is.
    accumulation, has_counts = training.accumulation, isinstance(task.reduction, CountCoupled)
    axes = _row_axes(structure, state, batch, accumulation)
    of_rows = (trained, batch, accumulation, kinds, axes)
    if accumulation > 1 and isinstance(task, CoupledTask):
        gradient_by = counted_gradient if has_counts else coupled_gradient
        sums, gradient = gradient_by(numerator, statistics, *of_rows)
    else:
        sums, gradient = additive_gradient(numerator, *of_rows)
    # Only numerators were differentiated; the one division by the weight of the whole batch is
    # here. A mean of the microbatches' means would weight a padded microbatch like a full one.
    # A batch in which nothing counts has the gradient 0 / 1, and its loss is reported as NaN.
    weight = sums.loss.denominator
    safe = jnp.where(weight > 0, weight, 1)
    return sums, {name: array / safe for name, array in widened(gradient).items()}


def _row_axes(
    structure: Structure, state: State, batch: Batch, accumulation: int
) -> tuple[str, ...]:
    """Return the mesh axes over which gradients are summed after the last microbatch."""
    layout = current_layout()
    if layout is None or accumulation == 1:
        return ()
    # `RingAttention` cannot run in another `shard_map`; explicit axes take none; and updates of
    # variables are merged by weight, not summed.
    if layout.mesh_axes("length") or layout.is_explicit or below("variables", state):
        return ()
    declared = structure.axes()
    used = set() if len(declared) == len(structure.variables) else {FSDP}
    for axes in declared.values():
        split = resolve(axes, dict(layout.parameters), layout.sizes)
        used |= {axis for dimension in split for axis in dimension.mesh_axes}
    found = layout.row_axes(next(iter(batch.values())).shape[0] // accumulation, used)
    # XLA aborts ("Check failed" in its partitioner, JAX 0.10.2) where it partitions a lookup in a
    # table that is split by two axes, as by fsdp and tensor, while a third is manual.
    others = [a for a, size in layout.sizes.items() if size > 1 and a not in found]
    return () if len(others) > 1 else found


def evaluate_step(
    experiment: Experiment, state: State, prefix: str, batch: Batch
) -> dict[Any, Any]:
    """Return the task's sums by metric over one batch.

    Args:
      experiment: The experiment, built inside the trace.
      state: Named arrays; those below `parameters`, `prefix` and `variables` are read.
      prefix: `parameters` or `ema`.
      batch: Entries with the global batch as leading dimension.

    Returns:
      For each metric of the task its sums over the batch, to be added over batches.

    Raises:
      BadInput: The task returns other metrics than it declares, or no `Ratio` of one, or arrays of
        a metric that has no `transform`.
    """
    model = structure_of(experiment).merge(model_arrays(state, prefix))
    found = experiment.task.evaluate(model, batch)
    if not isinstance(found, dict):
        what = f"evaluate returns {user_code.described(found)}, not a dict from Metric to Ratio"
        raise BadInput(Problem(what, "task"))
    declared = list(experiment.task.metrics)
    missing = [metric.name for metric in declared if metric not in found]
    others = [str(metric) for metric in found if metric not in declared]
    if missing:
        # Whatever selects it (`keep_best`, early stopping, a study) would wait for it in silence.
        what = f"evaluate returns no {', '.join(missing)}, which `metrics` declares"
        remedy = "" if others else "return it, or leave it out of `metrics`"
        raise BadInput(Problem(what, "task", "", remedy, others))
    if others:
        what = f"evaluate returns {', '.join(others)}, which `metrics` does not declare"
        raise BadInput(Problem(what, "task", remedy="add it to `metrics`"))
    for metric, ratio in found.items():
        shapes = _shapes(metric, ratio, "evaluate")
        if shapes != _SCALARS and metric.transform is identity:
            what = f"evaluate returns arrays of shapes {shapes[0]} and {shapes[1]} for {metric}"
            remedy = (
                "return scalars, or give the metric a `transform` that makes a number of an array"
            )
            raise BadInput(Problem(what, "task", remedy=remedy))
        if problem := _quotient_problem(metric, *shapes):
            raise BadInput(Problem(f"evaluate returns {problem}", "task"))
    return found


def _quotient_problem(metric: Metric, sum_shape: Sequence[int], weight_shape: Sequence[int]) -> str:
    """Return why a metric makes no number of sums of these shapes; nothing where it does."""
    # In the trace, too: the division is on the host, after all batches of the first evaluation.
    try:
        shape = np.broadcast_shapes(tuple(sum_shape), tuple(weight_shape))
    except ValueError:
        return (
            f"a sum of shape {tuple(sum_shape)} and a weight of shape {tuple(weight_shape)} for "
            f"{metric}, which do not broadcast"
        )
    try:
        made = metric.transform(np.ones(shape) if shape else 1.0)
    except Exception:  # of the user: quotients of another value may be what it needs
        return ""
    if np.size(made) == 1:
        return ""
    return f"{metric}, whose transform makes an array of shape {np.shape(made)}, not a number"


def check_loss(sums: Any) -> None:
    """Refuse what a task's `loss` returned if it is not the sums of scalars.

    Args:
      sums: What it returned.

    Raises:
      BadInput: It is no `LossSums`, or a loss or metric in it is no `Ratio` of scalars.
    """
    if not isinstance(sums, LossSums):
        what = f"loss returns {user_code.described(sums)}, not a luthier.tasks.LossSums"
        remedy = "return LossSums(Ratio(sum, weight), metrics): luthier divides the sums"
        raise BadInput(Problem(what, "task", remedy=remedy))
    for metric, ratio in {**sums.metrics, LOSS: sums.loss}.items():
        shapes = _shapes(metric, ratio, "loss")
        if shapes != _SCALARS:
            what = f"loss returns arrays of shapes {shapes[0]} and {shapes[1]} for {metric}"
            remedy = "return scalars, such as sums over the rows"
            raise BadInput(Problem(what, "task", remedy=remedy))


_SCALARS = ((), ())


def _shapes(metric: Metric, ratio: Any, method: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a numerator and its denominator; refuse what is not a `Ratio`."""
    # In the trace, and not where sums are merged: that comes after steps that would be lost.
    if not isinstance(ratio, Ratio):
        given = user_code.described(ratio)
        what = f"{method} returns {given} for {metric}, not a luthier.metrics.Ratio"
        remedy = "return Ratio(sum, weight): luthier divides after it has added up all batches"
        raise BadInput(Problem(what, "task", remedy=remedy))
    return jnp.shape(ratio.numerator), jnp.shape(ratio.denominator)


def model_of(experiment: Experiment) -> Any:
    """Return the model with its initial arrays; call it inside a trace.

    Args:
      experiment: The experiment, built inside the trace.
    """
    return create_model(experiment.model, experiment.seed)


def create_model(template: Callable[..., Any], seed: Any) -> Any:
    """Return the model of a template with its initial arrays; call it inside a trace.

    Args:
      template: The template, called with `rngs`.
      seed: Seed of the experiment; may be traced.

    Raises:
      BadInput: The model needs a stream of random numbers that `rngs` does not have.
    """
    # A variable that is annotated by `nnx.with_partitioning` would be sharded by Flax as soon as it
    # is made, over a mesh of Flax's own. Here the annotation is read afterwards (`Structure.axes`),
    # and the program shards the state as a whole.
    with nnx.use_eager_sharding(False), _known_streams():
        return template(rngs=rngs_of(seed))


@contextlib.contextmanager
def _known_streams() -> Iterator[None]:
    """Report which stream of `rngs` a module needs and does not get, and the remedy."""
    try:
        yield
    except (KeyError, AttributeError) as error:  # Flax raises either: `rngs["x"]`, `rngs.x`
        # Flax has no class for this error; a test notices if its text changes.
        if (match := re.search(r"No RngStream named '(\w+)'", str(error))) is None:
            raise
        remedy = "draw initial values from rngs.params()"
        if match[1] == "dropout":
            remedy = DROPOUT_REMEDY
        where = user_code.place(error)
        what = f"rngs has the stream 'params' only, not '{match[1]}'" + (where and f" ({where})")
        raise BadInput(Problem(what, "model", remedy=remedy)) from error


def drawn_parameters(experiment: Experiment, names: Sequence[str]) -> State:
    """Return some of the initial parameters of the model.

    Args:
      experiment: The experiment, built inside the trace.
      names: Their names in the model.
    """
    parameters = split(model_of(experiment))[1]
    return {name: parameters[name] for name in names}


def init_state(experiment: Experiment, drawn: Mapping[str, jax.Array] | None = None) -> State:
    """Return the state before the first step: a pure function of the experiment's seed.

    Args:
      experiment: The experiment, built inside the trace.
      drawn: Parameters that `drawn_parameters` has returned already.

    Returns:
      Named arrays; see `luthier.program.state` for the names.
    """
    return initialized(experiment, drawn)[0]


def initialized(
    experiment: Experiment, drawn: Mapping[str, jax.Array] | None = None
) -> tuple[State, dict[str, tuple[str | None, ...]]]:
    """Return the state before the first step, and the logical axes of its arrays, if declared.

    Args:
      experiment: The experiment, built inside the trace.
      drawn: As for `init_state`.

    Returns:
      The state, and axes by the name of a variable of the model (without the prefix that it has in
      the state) or, for arrays whose axes the optimizer declares, by the name in the state.
    """
    training = experiment.training
    structure, parameters, variables = split(model_of(experiment))
    parameters |= drawn or {}
    layouts = structure.layouts()
    trained = chosen(parameters, training.trainable)
    precision = experiment.precision
    # Master weights are made of the parameters as they were drawn, before these are rounded to
    # what they are stored in; optimizer and average start from the master weights.
    masters, stored = precision.masters_of(trained), precision.stored(parameters)
    trained = {name: masters.get(name, stored[name]) for name in trained}
    state: State = {"step": jnp.zeros((), jnp.int32)}
    state |= with_prefix("parameters", stored) | with_prefix("variables", variables)
    optimizer_state = experiment.optimizer.init(trained, layouts)
    memory = flatten_tree("optimizer", optimizer_state)
    state |= precision.stored_optimizer(memory) | with_prefix(MASTERS, masters)
    if training.ema is not None:
        state |= with_prefix("ema", training.ema.init(trained))
    if training.guard is not None:
        state |= flatten_tree("guard", training.guard.init())
    declared = flatten_tree("optimizer", state_axes(optimizer_state, layouts))
    axes = {name: own.names for name, own in declared.items()}
    return state, structure.axes() | axes


def structure_of(experiment: Experiment) -> Structure:
    """Return the model without its arrays, for use inside the current trace."""
    # A module may keep settings that are hoisted, so it is built again inside each trace: one that
    # was built elsewhere would carry tracers of another trace. Its arrays are replaced at once, so
    # their initial values are not drawn (`outlined`), which makes the trace shorter.
    with outlined():
        return split(model_of(experiment))[0]


def initializers_of(experiment: Experiment) -> dict[str, str]:
    """Return the initializers of the model's variables as text; computes nothing."""
    texts: dict[str, str] = {}
    jax.eval_shape(lambda: texts.update(structure_of(experiment).initializers()))
    return texts


def active_shares_of(experiment: Experiment) -> dict[str, float]:
    """Return the share of each expert parameter that one token uses; computes nothing."""
    shares: dict[str, float] = {}
    jax.eval_shape(lambda: shares.update(structure_of(experiment).active_shares()))
    return shares


# Stream 0 of the seed draws parameters, stream 1 dropout. They are folded in rather than split, so
# that another stream can be added without changing the numbers of these two.


def rngs_of(seed: Any) -> Any:
    """Return the random streams that initialize parameters."""
    return nnx.Rngs(params=jax.random.fold_in(jax.random.key(seed), 0))


def dropout_key(seed: Any) -> jax.Array:
    """Return the key that dropout folds the step into."""
    return jax.random.fold_in(jax.random.key(seed), 1)
