"""The training state: a flat mapping from names to arrays, and the way to a module and back.

Names are paths: `step`, `parameters/<parameter>`, `variables/<variable>`, `optimizer/<leaf>`,
`ema/<parameter>`, `guard/<leaf>`. Parameters that are not trained have no entry below `optimizer`
and `ema`. On the hot path the state is the tuple of the arrays in the order of their names (see
`program.Leaves`); modules exist only inside a trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem, listed
from luthier.layers.dropout import Dropout, DropoutUse
from luthier.layers.experts import ACTIVE_SHARE
from luthier.layers.parameters import axes_of, gather_unnamed
from luthier.optim import Layout

State = dict[str, Any]

_NUM_SHOWN = 8

DROPOUT_REMEDY = (
    "use luthier.layers.Dropout(rate), and pass it the keys that the model is called with: "
    "def __call__(self, x, *, dropout=None), and in it self.drop(x, dropout)"
)
"""How to replace the dropout of Flax, for errors."""


@dataclasses.dataclass(frozen=True)
class Structure:
    """A module without its arrays; made and used inside one trace.

    Args:
      graphdef: The model's graph definition, as NNX splits it.
      variables: The path in the module and the variable, by dotted name.
    """

    # `graphdef` holds the static part, hoisted settings among it as tracers, which is why it must
    # not leave its trace. `variables` maps the dotted name of each variable to its path in the
    # module and to the variable itself, whose metadata (axes, initializer) are read here and whose
    # value is replaced in `merge`.
    graphdef: Any
    variables: Mapping[str, tuple[tuple[Any, ...], nnx.Variable]]

    def merge(self, arrays: Mapping[str, Any]) -> Any:
        """Return the module with `arrays` in it, by variable name.

        Args:
          arrays: Arrays by name.

        Returns:
          The module.
        """
        flat = [(path, v.replace(arrays[name])) for name, (path, v) in self.variables.items()]
        module = nnx.merge(self.graphdef, nnx.from_flat_state(flat))
        gather_unnamed(module, stacked=False)  # a stack gathers those of a layer where it runs
        return module

    def axes(self) -> dict[str, tuple[str | None, ...]]:
        """Return the logical axes of every variable that declares them.

        Returns:
          Axis names by variable.

        Raises:
          BadInput: An annotation of Flax cannot be read; all of them at once.
        """
        found: dict[str, tuple[str | None, ...]] = {}
        problems: list[Problem] = []
        for name, (_, variable) in self.variables.items():
            try:
                axes = axes_of(variable)
            except BadInput as error:
                problems += [dataclasses.replace(p, path=name) for p in error.problems]
                continue
            if axes is not None:
                found[name] = axes
        if problems:
            raise BadInput(problems)
        return found

    def initializers(self) -> dict[str, str]:
        """Return the initializer of every variable as text, for those that record it.

        Returns:
          Texts by variable.
        """
        texts = {n: v.get_metadata().get("initializer") for n, (_, v) in self.variables.items()}
        return {name: text for name, text in texts.items() if text is not None}

    def active_shares(self) -> dict[str, float]:
        """Return the share of a parameter that one token uses, for those of experts.

        Returns:
          Numbers from 0 to 1 by parameter.
        """
        shares = {n: v.get_metadata().get(ACTIVE_SHARE) for n, (_, v) in self.variables.items()}
        return {name: share for name, share in shares.items() if share is not None}

    def layouts(self) -> dict[str, Layout]:
        """Return the shape, axes and number of input dimensions of every parameter.

        Returns:
          Layouts by parameter.
        """
        # Optimizers get flat arrays: which dimensions of `(embed, heads, head_dim)` are inputs of
        # the matrix, and which axis stacks layers, is known to the model alone.
        axes = self.axes()
        return {
            name: Layout(v.get_value().shape, axes.get(name), v.get_metadata().get("num_inputs"))
            for name, (_, v) in self.variables.items()
            if isinstance(v, nnx.Param)
        }


def split(module: Any) -> tuple[Structure, dict[str, Any], dict[str, Any]]:
    """Take a module apart.

    Args:
      module: A Flax NNX module.

    Returns:
      Its structure, its parameters and its other variables, both by dotted name.

    Example:
      >>> from flax import nnx
      >>> from luthier import program
      >>> structure, parameters, variables = program.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
      >>> {name: array.shape for name, array in parameters.items()}
      {'bias': (3,), 'kernel': (2, 3)}
    """
    graphdef, state = nnx.split(module)
    flat = {".".join(map(str, path)): (path, v) for path, v in nnx.to_flat_state(state)}
    parameters = {n: v.get_value() for n, (_, v) in flat.items() if isinstance(v, nnx.Param)}
    variables = {n: v.get_value() for n, (_, v) in flat.items() if not isinstance(v, nnx.Param)}
    return Structure(graphdef, flat), parameters, variables


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> State:
    """Return `arrays` with every name put below `prefix`."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `state` below `prefix`, without it."""
    start = prefix + "/"
    return {name[len(start) :]: array for name, array in state.items() if name.startswith(start)}


def model_arrays(state: Mapping[str, Any], weights: str = "parameters") -> dict[str, Any]:
    """Return the arrays of a model, its parameters and its other variables, by name.

    Args:
      state: Named arrays.
      weights: `parameters` or `ema`; parameters that have no average are taken as they are.

    Returns:
      The arrays by their names in the model, without the prefix of the state.

    Example:
      >>> from luthier import program
      >>> state = {"step": 0, "parameters/kernel": 1.0, "variables/mean": 2.0}
      >>> program.model_arrays(state)
      {'kernel': 1.0, 'mean': 2.0}
    """
    parameters = below("parameters", state) | below(weights, state)
    return parameters | below("variables", state)


def chosen(parameters: Mapping[str, Any], mask: Callable[[str], bool] | None) -> dict[str, Any]:
    """Return the parameters that are trained.

    Args:
      parameters: All parameters, by name.
      mask: `training.trainable`; None means all.

    Raises:
      BadInput: The mask matches no parameter.
    """
    if mask is None:
        return dict(parameters)
    trained = {name: array for name, array in parameters.items() if mask(name)}
    if not trained:
        names = sorted(parameters)
        shown = ", ".join(names[:_NUM_SHOWN]) + (", ..." if len(names) > _NUM_SHOWN else "")
        what = f"{mask} matches none of the {len(names)} parameters, so nothing would be trained"
        raise BadInput(Problem(what, "training.trainable", remedy=f"there are: {shown}"))
    return trained


def changed(prefix: str, updates: Mapping[str, Any], state: Mapping[str, Any]) -> State:
    """Return the entries of the state that `updates` replaces, in the types that they have there.

    Args:
      prefix: Prefix of the names in the state.
      updates: New values, by name without the prefix.
      state: Named arrays.

    Raises:
      BadInput: There is no such entry, or it has another shape; all problems at once.
    """
    # A compiled step takes its own output as its next input, so names, shapes and types of the
    # state must stay what they are.
    replaced, problems = {}, []
    for name, array in updates.items():
        old = state.get(f"{prefix}/{name}")
        if old is None:
            known = sorted(below(prefix, state))
            listed = ", ".join(known[:_NUM_SHOWN])
            remedy = f"there are: {listed}" if listed else f"the model has no {prefix}"
            what = f"the task updates {name}, which is not among the model's {prefix}"
            problems.append(Problem(what, "task", remedy=remedy))
        elif jnp.shape(array) != old.shape:
            what = f"the task updates {name} of shape {old.shape} by shape {jnp.shape(array)}"
            problems.append(Problem(what, "task"))
        else:
            replaced[f"{prefix}/{name}"] = jnp.asarray(array, old.dtype)
    if problems:
        raise BadInput(problems)
    return replaced


def check_updates(
    model: Any, before: Mapping[str, Any], updates: Mapping[str, Any], *, is_restored: bool
) -> None:
    """Check that the training step keeps all state that the layers of a model rely on.

    Args:
      model: The model after the loss was computed, inside the trace.
      before: Its arrays before, by name.
      updates: The variables that the task updates (`LossSums.updates`).
      is_restored: Whether the model starts from pretrained weights.

    Raises:
      BadInput: Nothing updates the statistics of a layer, or a layer keeps random state of its own;
        all problems at once.
    """
    # A module changes its variables in place, and lives inside one trace only: a change that the
    # task does not return is lost. `nnx.BatchNorm` would train on the statistics of each batch and
    # be saved with those that it was created with; `nnx.Dropout` would repeat its mask in every
    # step, and drop in evaluation, too.
    layers = {".".join(map(str, path)): layer for path, layer in nnx.iter_modules(model)}
    flax, own = dict[str, None](), dict[str, None]()  # as ordered sets
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.BatchStat)):
        name = ".".join(map(str, path))
        # Statistics that come with pretrained weights may be frozen: nothing has changed them.
        is_frozen = is_restored and variable.get_value() is before[name]
        if name not in updates and not is_frozen:
            layer = name.rpartition(".")[0]
            kind = flax if isinstance(layers.get(layer), nnx.BatchNorm) else own
            kind[layer or "the model"] = None
    random = [
        name
        for name, layer in layers.items()
        if isinstance(layer, nnx.Dropout | nnx.MultiHeadAttention)
        and layer.rngs is not None
        and not layer.deterministic
    ]
    problems = []
    observe = "return its updates from the model's observe(): `luthier help write_a_layer`"
    if flax:
        what = f"nothing updates the running statistics of nnx.BatchNorm in {_shown(flax)}"
        problems.append((what, f"use luthier.layers.BatchNorm, and {observe}"))
    if own:
        problems.append((f"nothing updates the running statistics in {_shown(own)}", observe))
    if random:
        what = f"the dropout of Flax in {_shown(random)} would draw one mask for all steps"
        problems.append((what, DROPOUT_REMEDY))
    if problems:
        raise BadInput([Problem(what, "model", remedy=remedy) for what, remedy in problems])


def check_dropout(model: Any, use: DropoutUse) -> None:
    """Check that a loss passes keys to a model that has dropout.

    Args:
      model: The model after the loss was computed, inside the trace.
      use: How its layers used dropout meanwhile.

    Raises:
      BadInput: Every dropout layer was called without keys, as in evaluation.
    """
    # Some layers without keys are no mistake: a loss may also call its model for a fixed reference.
    if use.is_drawn or not use.is_skipped:
        return
    found = [
        ".".join(map(str, path))
        for path, layer in nnx.iter_modules(model)
        if isinstance(layer, Dropout) and layer.is_active
    ]
    what = f"the loss calls the model without dropout keys, so that {_shown(found)} drops nothing"
    remedy = (
        "make them of the loss's key, model(..., dropout=luthier.tasks.row_keys(key, batch)), and "
        "pass them down to the layers; or set the rate to 0"
    )
    raise BadInput(Problem(what, "task", remedy=remedy))


def _shown(names: Iterable[str]) -> str:
    return listed(list(names), most=4)


def flatten(prefix: str, tree: Any) -> State:
    """Return the leaves of a pytree (an optimizer's state) as named arrays below `prefix`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}/{_name(path)}": leaf for path, leaf in leaves}


def unflatten(prefix: str, tree: Any, state: Mapping[str, Any]) -> Any:
    """Return `tree` with its leaves replaced by those of `state` below `prefix`.

    Args:
      prefix: The name that `flatten` was given.
      tree: A pytree of the same structure; its leaves are not read.
      state: Named arrays.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: state[f"{prefix}/{_name(path)}"], tree)


# The names of an optimizer's leaves come from JAX's key paths: `stages/1/second_moment/...`. They
# are what checkpoints and rules of `Precision.optimizer` name, so fields keep their names.
def _name(path: tuple[Any, ...]) -> str:
    return "/".join(jax.tree_util.keystr((entry,), simple=True) for entry in path)
