"""A warm start of a program: the parameters that wait for values, and the state made with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier import graph as graphs
from luthier.checkpoint import Restoration, Target
from luthier.program.precision import MASTERS
from luthier.program.program import Leaves, Program, Values
from luthier.program.state import split
from luthier.program.step import init_state, rngs_of
from luthier.recipes.foreign.comparison import compare


class WarmStart:
    """What `experiment.restore` names, opened when it is first asked for; a context manager.

    Args:
      program: What is to be started.
    """

    def __init__(self, program: Program):
        self._program = program
        self._open: Restoration | None = None

    def __enter__(self) -> WarmStart:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def open(self) -> Restoration | None:
        """Open and check it, once; no tensor is read yet, and nothing is written.

        Returns:
          What fits the program; None where the experiment restores nothing.

        Raises:
          CheckpointError: The source does not exist, or does not fit; or the config.json beside it
            says another model: all problems at once.
        """
        experiment = self._program.experiment
        if self._open is None and experiment.restore is not None:
            sizes = limits(abstract_model(experiment))
            self._open = Restoration(experiment.restore, targets(self._program), sizes)
            try:
                self._open.note(self._compare(self._open))
            except BaseException:
                self.close()
                raise
        return self._open

    def _compare(self, restoration: Restoration) -> Mapping[str, str]:
        """Compare the model with what the source says of its own."""
        said = restoration.described
        if said is None:
            return {}
        return compare(
            graphs.get(self._program.graph, "model"),
            said.config,
            said.family,
            str(said.path),
            differing=said.differing,
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
            stacked = next(iter(axes.get(own, ())), None) == "layers"
            # Of a parameter with a master, what is read becomes the master.
            kept = program.abstract_state.get(f"{MASTERS}/{own}", array)
            named = axes.get(own, ())
            found[own] = Target(tuple(array.shape), kept.dtype, array.sharding, stacked, named)
    return found


def abstract_model(experiment: Any) -> Any:
    """Return the model of an experiment without arrays."""
    return nnx.eval_shape(lambda: experiment.model(rngs=rngs_of(experiment.seed)))


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
    """Return parameters, with entries that a source lacks as a new model has them.

    Args:
      program: What to make the state of.
      values: The hoisted scalars.
      arrays: Parameters and variables by name, where they belong.
      partial: For those that are held in part: the dimension, and how many entries along it.
    """
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

    shardings = tuple(arrays[name].sharding for name in own)
    made = dict(zip(own, program.jit_initialization(init, shardings)(values), strict=True))

    def join(made: jax.Array, array: jax.Array, name: str) -> jax.Array:
        dimension, count = partial[name]
        shape = [-1 if n == dimension else 1 for n in range(array.ndim)]
        held = (jnp.arange(array.shape[dimension]) < count).reshape(shape)
        return jnp.where(held, array, made.astype(array.dtype))

    joined = {
        name: jax.jit(join, static_argnums=2, out_shardings=arrays[name].sharding)(
            made[name], arrays[name], name
        )
        for name in own
    }
    return dict(arrays) | joined


def init_with(program: Program, values: Values, arrays: Mapping[str, jax.Array]) -> Leaves:
    """Return the state before the first step, with given values in the place of some parameters.

    What is given is not initialized; masters, averages and optimizer start from it.

    Args:
      program: What to make the state of.
      values: The hoisted scalars.
      arrays: Parameters and variables by name, where they belong.
    """
    places = [f"{kind}/{name}" for name in arrays for kind in ("parameters", "variables")]
    known = {name: program.placements[name] for name in places if name in program.placements}
    given = {
        name: array
        for name, placement in known.items()
        if (array := arrays[name.partition("/")[2]]).dtype == placement.dtype
    }
    made = [name for name in program.names if name not in given]

    def init(values: Values, arrays: Mapping[str, jax.Array]) -> Leaves:
        with program.tracing(values) as experiment:
            state = init_state(_with_model(experiment, arrays))
        return tuple(state[name] for name in made)

    shardings = tuple(program.abstract_state[name].sharding for name in made)
    leaves = program.jit_initialization(init, shardings)(values, dict(arrays))
    state = given | dict(zip(made, leaves, strict=True))
    return tuple(state[name] for name in program.names)


def _with_model(experiment: Any, arrays: Mapping[str, jax.Array]) -> Any:
    make = experiment.model

    def model(**inherited: Any) -> Any:
        structure, parameters, variables = split(make(**inherited))
        return structure.merge({**parameters, **variables, **arrays})

    return dataclasses.replace(experiment, model=model)


# From a program to the arrays of its state.


def materialize(
    program: Program,
    values: Values,
    *,
    store: Any = None,
    step: int | None = None,
    data: Any = None,
    restoration: Any = None,
) -> Leaves:
    """Return the state's arrays, each on the devices where it belongs.

    A restored state is read straight into its shards; nothing is initialized first.

    Args:
      program: What to make the state of.
      values: The hoisted scalars.
      store: A `luthier.checkpoint.Store` to restore from; None initializes.
      step: Which checkpoint of the store.
      data: The data iterator, whose position is restored in place.
      restoration: What first parameters are read from, where the state is not restored; None
        initializes all of them.

    Raises:
      CheckpointError: The checkpoint is damaged, or does not hold this state.
    """
    if store is None and restoration is not None:
        arrays = complete(program, values, restoration.read(), restoration.partial)
        return init_with(program, values, arrays)
    if store is None:
        return program.init(values)
    arrays = store.restore(step, program.abstract_state, data)
    return tuple(arrays[name] for name in program.names)
