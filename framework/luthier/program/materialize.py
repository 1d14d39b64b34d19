"""The arrays of a program's state: initialized, restored, or started from pretrained weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier import graph as graphs
from luthier.checkpoint import Restoration, Target
from luthier.errors import CheckpointError
from luthier.program.experiment import Experiment
from luthier.program.precision import MASTERS
from luthier.program.program import Leaves, Program, Values
from luthier.program.state import split
from luthier.program.step import init_state, model_of
from luthier.recipes.foreign.comparison import compare


class WarmStart:
    """The weights that `experiment.restore` names, opened at the first use; a context manager.

    Args:
      program: The program that is started.
    """

    def __init__(self, program: Program):
        self._program = program
        self._open: Restoration | None = None

    def __enter__(self) -> WarmStart:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def open(self) -> Restoration | None:
        """Open and check the weights, once; no tensor is read yet, and nothing is written.

        Returns:
          The restoration; None where the experiment restores nothing.

        Raises:
          CheckpointError: The source does not exist, or does not fit; or the config.json beside it
            describes another model: all problems at once.
        """
        experiment = self._program.experiment
        if self._open is None and experiment.restore is not None:
            sizes = limits(abstract_model(experiment))
            try:
                self._open = Restoration(experiment.restore, targets(self._program), sizes)
                self._open.note(self._compare(self._open))
            except CheckpointError as error:
                self.close()
                # Sources and rules do not know the config, and thus not what has set them.
                origin = graphs.origin_of(self._program.graph, "restore")
                problems = [
                    dataclasses.replace(problem, path="restore", origin=problem.origin or origin)
                    if problem.path in ("", "restore")
                    else problem
                    for problem in error.problems
                ]
                raise CheckpointError(problems) from error
            except BaseException:
                self.close()
                raise
        return self._open

    def _compare(self, restoration: Restoration) -> Mapping[str, str]:
        """Compare the model with the description that comes with the source (config.json)."""
        source = restoration.described
        if source is None:
            return {}
        return compare(
            graphs.get(self._program.graph, "model"),
            source.config,
            source.family,
            str(source.path),
            differing=source.differing,
            taken=restoration.taken,
        )

    def close(self) -> None:
        """Close the files; what was read of them stays."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def targets(program: Program) -> dict[str, Target]:
    """Return the parameters and variables of the model, as a restoration needs them."""
    axes = split(abstract_model(program.experiment))[0].axes()
    found = {}
    for name, array in program.abstract_state.items():
        kind, _, own = name.partition("/")
        if kind in ("parameters", "variables"):
            # Scanned layers are one array here and one tensor for each layer in a checkpoint.
            stacked = next(iter(axes.get(own, ())), None) == "layers"
            # A parameter with a master weight is read in the type of the master weight: read in
            # bfloat16, the digits that the master weight is there to keep would be lost.
            wide = program.abstract_state.get(f"{MASTERS}/{own}", array)
            named = axes.get(own, ())
            found[own] = Target(tuple(array.shape), wide.dtype, array.sharding, stacked, named)
    return found


def abstract_model(experiment: Experiment) -> Any:
    """Return the model of an experiment without arrays."""
    return nnx.eval_shape(lambda: model_of(experiment))


def limits(model: Any) -> dict[str, int]:
    """Return the sizes of logical dimensions that the model's parameters may pad."""
    size = getattr(model, "vocab_size", None)
    return {} if size is None else {"vocab": int(size)}


def complete(
    program: Program,
    values: Values,
    arrays: Mapping[str, jax.Array],
    partial: Mapping[str, tuple[int, int]],
) -> dict[str, jax.Array]:
    """Return parameters whose missing entries have the values of a newly initialized model.

    Args:
      program: The program.
      values: The hoisted scalars.
      arrays: Parameters and variables by name, sharded as in the state.
      partial: For those that are held in part: the dimension, and how many entries along it.
    """
    # A larger vocabulary than that of the source: its table fills the first rows, and the rows
    # behind them start as those of a new model do, to the bit. Initialization draws the whole
    # table, since random bits are a function of the place in the whole array; a select joins both.
    # Of the kinds, master weights are first: where there is one, the source was read in its type
    # (`targets`), and the parameter of the new model is rounded already.
    kinds = (MASTERS, "parameters", "variables")
    own = {
        name: next(f"{k}/{name}" for k in kinds if f"{k}/{name}" in program.abstract_state)
        for name in partial
    }
    if not own:
        return dict(arrays)

    def init(values: Values) -> Leaves:
        with program.tracing(values) as experiment:
            state = init_state(experiment)
        return tuple(state[name] for name in own.values())

    # Only these arrays are outputs: the compiler removes the draws of all others.
    shardings = tuple(arrays[name].sharding for name in own)
    drawn = dict(zip(own, program.jit_initialization(init, shardings)(values), strict=True))

    def join(initial: jax.Array, array: jax.Array, name: str) -> jax.Array:
        dimension, count = partial[name]
        shape = [-1 if n == dimension else 1 for n in range(array.ndim)]
        held = (jnp.arange(array.shape[dimension]) < count).reshape(shape)
        return jnp.where(held, array, initial.astype(array.dtype))

    joined = {
        name: jax.jit(join, static_argnums=2, out_shardings=arrays[name].sharding)(
            drawn[name], arrays[name], name
        )
        for name in own
    }
    return dict(arrays) | joined


def init_with(program: Program, values: Values, arrays: Mapping[str, jax.Array]) -> Leaves:
    """Return the state before the first step, with given values in the place of some parameters.

    Parameters that are given are not initialized; master weights, averages and optimizer start
    from them.

    Args:
      program: The program.
      values: The hoisted scalars.
      arrays: Parameters and variables by name, sharded as in the state.
    """
    # The state is made by the usual `init_state`, of a model that already holds `arrays`: what
    # derives from parameters (average, master weights, an optimizer that keeps a copy) follows
    # without code of its own. Arrays of the stored type are not outputs of that function: they
    # become leaves as they are, and are in memory once. Those of a wider type, read for master
    # weights, come out of it twice: rounded as parameters, and as they are as master weights.
    # `name` is of a parameter or of a variable: one of the two places exists in the state.
    places = [f"{kind}/{name}" for name in arrays for kind in ("parameters", "variables")]
    known = {name: program.placements[name] for name in places if name in program.placements}
    unchanged = {
        name: array
        for name, placement in known.items()
        if (array := arrays[name.partition("/")[2]]).dtype == placement.dtype
    }
    computed = [name for name in program.names if name not in unchanged]

    def init(values: Values, arrays: Mapping[str, jax.Array]) -> Leaves:
        with program.tracing(values) as experiment:
            state = init_state(_with_model(experiment, arrays))
        return tuple(state[name] for name in computed)

    shardings = tuple(program.abstract_state[name].sharding for name in computed)
    leaves = program.jit_initialization(init, shardings)(values, dict(arrays))
    state = unchanged | dict(zip(computed, leaves, strict=True))
    return tuple(state[name] for name in program.names)


def _with_model(experiment: Experiment, arrays: Mapping[str, jax.Array]) -> Experiment:
    # The template is wrapped rather than the state patched afterwards, so that the initial values
    # of given parameters have no reader, and the compiler removes their draws.
    make = experiment.model

    def model(**inherited: Any) -> Any:
        structure, parameters, variables = split(make(**inherited))
        return structure.merge({**parameters, **variables, **arrays})

    return dataclasses.replace(experiment, model=model)


def materialize(
    program: Program,
    values: Values,
    *,
    store: Any = None,
    step: int | None = None,
    data: Any = None,
    restoration: Restoration | None = None,
) -> Leaves:
    """Return the state's arrays, each on the devices where it belongs.

    A restored state is read straight into its shards; nothing is initialized first.

    Args:
      program: The program.
      values: The hoisted scalars.
      store: A `luthier.checkpoint.Store` to restore from; None initializes.
      step: The checkpoint of the store.
      data: The data iterator, whose position is restored in place.
      restoration: Source of the first parameters, where the state is not restored; None
        initializes all of them.

    Returns:
      The arrays in the order of `program.names`.

    Raises:
      CheckpointError: The checkpoint is damaged, or does not hold this state.
    """
    if store is None and restoration is not None:
        arrays = complete(program, values, restoration.read(), restoration.partial)
        return init_with(program, values, arrays)
    if store is None:
        return program.init(values)
    # Initializing first and overwriting would need memory for two states at the same time.
    arrays = store.restore(step, program.abstract_state, data)
    return tuple(arrays[name] for name in program.names)
