"""Numerical precision of a program: the types that its arrays are stored, summed and multiplied in.

Four types may differ for one parameter: the parameter as it is stored, its master weight, the
optimizer's state, and the sum of its gradients. What layers compute in is the model's `dtype`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from luthier import graph as graphs
from luthier.errors import Problem
from luthier.graph import Graph
from luthier.layers import QuantizedProduct
from luthier.optim import StoredAs

DType = Any

MASTERS = "optimizer/masters"
"""Prefix of the names of master weights in the state.

Below `optimizer/`, so that they follow the optimizer: sharded, offloaded, saved and left out of an
export as its moments are.
"""

_PATH = "precision"
_FLOAT8_SINCE = 8.9  # compute capability of NVIDIA's Ada; Hopper is 9.0


class MatmulPrecision(enum.Enum):
    """Precision of float32 matrix products (`jax.default_matmul_precision`)."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


class Repeatability(enum.Enum):
    """Determinism of a program on GPUs: with `EXACT`, all GPUs of a kind give the same bits."""

    FAST = "fast"
    EXACT = "exact"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Numerical precision of the whole program.

    The type that layers compute in is a setting of the model (`dtype`), and so is how they multiply
    (`product`). The first rule that matches a name decides; names are those of `luthier show
    --params`. Optimizers compute in float32, whatever their state is stored in.

    Args:
      matmul: Precision of float32 matrix products on accelerators with lower-precision units.
      parameters: Types that parameters are stored in; others as the model declares (`param_dtype`).
      masters: Parameters with a master weight, and its type. The optimizer changes this wider copy,
        from which the parameter is rounded after every step: no update is too small to count.
      optimizer: Types that the arrays of the optimizer's state are stored in, by their names
        (`stages/1/second_moment/blocks.mlp.up.kernel`); others as the optimizer declares.
      accumulation: Types that gradients are summed in, over microbatches and over all uses of a
        parameter; others in float32, or wider where the parameter is.
      repeatability: `exact` keeps XLA from nondeterministic operations and from choosing kernels by
        timing them, so that a GPU gives the same bits each time; CPUs and TPUs do anyway. It costs
        speed.

    Source: Micikevicius et al. 2017, arXiv 1710.03740, section 3.1 (master weights).
    """

    matmul: MatmulPrecision = MatmulPrecision.DEFAULT
    parameters: Sequence[StoredAs] = ()
    masters: Sequence[StoredAs] = ()
    optimizer: Sequence[StoredAs] = ()
    accumulation: Sequence[StoredAs] = ()
    repeatability: Repeatability = Repeatability.FAST

    def compiler_options(self) -> dict[str, bool]:
        """Return XLA's options for the program, beside the defaults.

        Returns:
          Values by option.
        """
        is_exact = self.repeatability is Repeatability.EXACT
        return {"xla_gpu_deterministic_ops": True} if is_exact else {}

    def stored(self, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return parameters as they are stored.

        Args:
          parameters: Parameters by name.

        Returns:
          Arrays by name, in the types of the rules.
        """
        return {n: x.astype(_of(self.parameters, n, x.dtype)) for n, x in parameters.items()}

    def masters_of(self, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the master weights of the parameters that have one.

        Args:
          parameters: Parameters as the model made them, before they are stored, by name.

        Returns:
          Arrays by name.
        """
        masters = {}
        for name, array in parameters.items():
            kind = _of(self.masters, name, None)
            # A rule for all parameters gives none to those that are stored as wide: the copy
            # would be equal to the parameter at each step, for twice the memory.
            if kind is not None and _is_wider(kind, _of(self.parameters, name, array.dtype)):
                masters[name] = array.astype(kind)
        return masters

    def stored_optimizer(self, state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the arrays of an optimizer's state as they are stored.

        Args:
          state: Arrays by their names in the state, below `optimizer/`.

        Returns:
          Arrays by name.
        """

        def stored(name: str, array: jax.Array) -> jax.Array:
            if not jnp.issubdtype(array.dtype, jnp.floating):
                return array  # a count in bfloat16 would stop at 256
            own = name.removeprefix("optimizer/")
            return array.astype(_of(self.optimizer, own, array.dtype))

        return {name: stored(name, array) for name, array in state.items()}

    def sums(self, parameters: Mapping[str, jax.Array]) -> dict[str, DType]:
        """Return the type that the gradient by each parameter is summed in.

        Args:
          parameters: Parameters as they are stored, by name.

        Returns:
          Types by name.
        """
        return {
            name: _of(self.accumulation, name, jnp.promote_types(array.dtype, jnp.float32))
            for name, array in parameters.items()
        }


def as_stored(arrays: Mapping[str, jax.Array], state: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return arrays in the types that the entries of the state have.

    Args:
      arrays: New values by their names in the state.
      state: The state.
    """
    return {name: _cast(array, state[name].dtype) for name, array in arrays.items()}


def as_computed(tree: Any, like: Any) -> Any:
    """Return the arrays of a tree in the types of another of the same structure."""
    return jax.tree.map(lambda x, y: _cast(x, y.dtype), tree, like)


def widened(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return arrays in float32, or wider where they are."""
    return {n: x.astype(jnp.promote_types(x.dtype, jnp.float32)) for n, x in arrays.items()}


def problems(graph: Graph, precision: Precision, state: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each rule that matches no array of the state, with the nearest names.

    Args:
      graph: The experiment graph, for the origin of each rule.
      precision: The rules.
      state: Shape and dtype of every array of the state, by name.
    """
    # A pattern with a typo would otherwise leave everything as it is, without a message. The names
    # are known only after the model was traced, so this is not a check of the graph.
    # Master weights lie below `optimizer/` in the state, but have rules of their own, so they are
    # not among the names that a rule for the optimizer may match.
    parameters, optimizer = _floating(state, "parameters/"), _floating(state, "optimizer/")
    masters = [name.removeprefix("masters/") for name in optimizer if name.startswith("masters/")]
    known = {
        "parameters": parameters,
        "masters": parameters,
        "optimizer": [name for name in optimizer if not name.startswith("masters/")],
        "accumulation": parameters,
    }
    for field, names in known.items():
        for index, rule in enumerate(getattr(precision, field)):
            path = f"{_PATH}.{field}[{index}]"
            origin = graphs.origin_of(graph, path)
            if not any(map(rule, names)):
                parts = {part for name in names for part in re.split(r"[./]", name)}
                near = graphs.nearest(rule.pattern, sorted(parts | set(names)))
                remedy = "" if near else f"there are {', '.join(names[:4])}, ..."
                what = f"{rule.pattern!r} matches no name"
                yield Problem(what, f"{path}.pattern", origin, remedy, near)
            # A master weight exists only where it is wider than what is stored: such a rule may
            # match a name and still have no effect.
            elif field == "masters" and not any(map(rule, masters)):
                kind = _name(rule.dtype)
                what = f"no trained parameter that matches is stored in a type narrower than {kind}"
                yield Problem(what, path, origin, f"set {_PATH}.parameters, or remove this rule")


def unsupported(graph: Graph, devices: Sequence[jax.Device]) -> Iterator[Problem]:
    """Yield a problem for each product of float8 factors that the devices do not support.

    CPUs compute such products in wider types, to the same result.

    Args:
      graph: The experiment graph.
      devices: The devices to run on.
    """
    since = getattr(devices[0], "compute_capability", None)
    try:
        lacks = since is not None and float(since) < _FLOAT8_SINCE
    except ValueError:
        return  # no number: a GPU of another make
    if not lacks:
        return
    reported: set[int] = set()  # a product that many layers share is reported once
    for place in graphs.walk(graph, defaults=False, once=True):
        is_product = getattr(place.value, "__fn_or_cls__", None) is QuantizedProduct
        if not is_product or id(place.value) in reported:
            continue
        reported.add(id(place.value))
        if any(name.startswith("float8") for name in graphs.build(place.value).types):
            what = f"{devices[0].device_kind} does not support float8 matrix products"
            remedy = "use int8 or bf16; NVIDIA GPUs support them from compute capability 8.9"
            yield Problem(what, place.path, graphs.origin_of(graph, place.path), remedy)


def _cast(array: jax.Array, kind: DType) -> jax.Array:
    return array if array.dtype == kind else array.astype(kind)


def _of(rules: Sequence[StoredAs], name: str, otherwise: DType) -> DType:
    """Return the type of the first rule that matches a name."""
    return next((rule.dtype for rule in rules if rule(name)), otherwise)


def _floating(state: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names below a prefix of arrays of floating point numbers."""
    return [
        name.removeprefix(prefix)
        for name, array in state.items()
        if name.startswith(prefix) and jnp.issubdtype(array.dtype, jnp.floating)
    ]


def _is_wider(kind: DType, than: DType) -> bool:
    return jnp.finfo(kind).bits > jnp.finfo(than).bits


def _name(kind: DType) -> str:
    return jnp.dtype(kind).name
