"""The training state: a flat mapping from names to arrays, and the way to a module and back.

Names are paths: `step`, `parameters/<parameter>`, `variables/<variable>`, `optimizer/<leaf>`,
`ema/<parameter>`, `guard/<leaf>`. On the hot path the state is the tuple of the arrays in the
order of their names; modules exist only inside a trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Structure:
    """A module without its arrays; made and used inside one trace."""

    graphdef: Any
    variables: Mapping[str, tuple[tuple[Any, ...], nnx.Variable]]

    def merge(self, arrays: Mapping[str, Any]) -> Any:
        """Return the module with `arrays` in it, by variable name."""
        flat = [(path, v.replace(arrays[name])) for name, (path, v) in self.variables.items()]
        return nnx.merge(self.graphdef, nnx.from_flat_state(flat))

    def axes(self) -> dict[str, tuple[str | None, ...]]:
        """Return the logical axes of every variable that declares them."""
        found = {
            name: variable.get_metadata().get("logical_axes")
            for name, (_, variable) in self.variables.items()
        }
        return {name: tuple(axes) for name, axes in found.items() if axes is not None}


def split(module: Any) -> tuple[Structure, dict[str, Any], dict[str, Any]]:
    """Take a module apart.

    Args:
      module: A Flax NNX module.

    Returns:
      Its structure, its parameters and its other variables, both by dotted name.
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


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(jax.tree_util.keystr((entry,), simple=True) for entry in path)
