"""Rematerialization policies: the residuals that a layer keeps for its backward pass.

Layers name what they compute (`jax.ad_checkpoint.checkpoint_name`): query, key, value,
attention_context, attention_output, mlp_gate, mlp_up, mlp_output; kernels of attention name what
their backward pass needs: attention_residuals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import jax
from jax.extend import core as jex_core

HOST_MEMORY = "pinned_host"
"""The memory of the host that devices read and write by themselves, as JAX names it."""


# On `prevent_cse`: in a program without a loop, XLA sees the forward pass and its recomputation
# side by side, merges the equal operations, and so undoes the rematerialization; JAX prevents that
# by optimization barriers. Within a scan the two are in different loops, nothing can be merged, and
# the barriers would only keep XLA from fusing.
class Remat(Protocol):
    """Wraps the function of one layer."""

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function with the policy applied.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """


@dataclasses.dataclass(frozen=True)
class NoRemat:
    """Keep everything: fastest, and the most memory."""

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function unchanged.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """
        return function


@dataclasses.dataclass(frozen=True)
class FullRemat:
    """Keep only what enters the layer, and compute the layer again: a third more FLOPs.

    Source: Chen et al. 2016, arXiv 1604.06174, section 4.
    """

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """
        return jax.checkpoint(function, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class SaveNamed:
    """Keep what enters the layer and the named residuals, and compute the rest again.

    Args:
      names: Names of residuals; a name that no layer uses keeps nothing.
    """

    names: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # hashable, also from a list

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for the named residuals.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """
        policy = jax.checkpoint_policies.save_only_these_names(*self.names)
        return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class SaveProjections:
    """Keep the results of products with parameters, and compute the rest again.

    What is computed again, the attention scores and the elementwise parts, costs few FLOPs.
    """

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for products without batch dimensions.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """
        # A product with parameters has no batch dimensions in a jaxpr, since layers flatten tokens
        # to [T, D]; scores of attention have rows and heads as batch dimensions.
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class SaveWithin:
    """Keep the named residuals that cost most to compute again, as far as a budget of bytes goes.

    A residual is worth the FLOPs of the products that lead to it from what enters the layer and
    from other named residuals, per byte. Those of most worth are kept first.

    Args:
      bytes_per_layer: Bytes of the residuals of one layer, over all devices and for all rows that
        run at a time; a pipeline runs those of a microbatch.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 5 (to keep what is dear by the byte).
    """

    RANGES: ClassVar[dict[str, str]] = {"bytes_per_layer": "0 <= x"}
    bytes_per_layer: int

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for the residuals that fit the budget.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """

        # Chosen while tracing, from the jaxpr of the layer at the shapes at hand; the layer is
        # traced twice. Greedy by FLOPs per byte, and a residual that does not fit is skipped, not
        # the end: smaller ones after it may fit. Sizes are global, not per device.
        def wrapped(*arguments: Any) -> Any:
            residuals = named_residuals(jax.make_jaxpr(function)(*arguments).jaxpr)
            kept, left = [], self.bytes_per_layer
            for residual in sorted(residuals, key=lambda found: -found.flops / found.num_bytes):
                if residual.num_bytes <= left:
                    kept.append(residual.name)
                    left -= residual.num_bytes
            return SaveNamed(kept).wrap(function, scanned=scanned)(*arguments)

        return wrapped


@dataclasses.dataclass(frozen=True)
class OffloadNamed:
    """Keep the named residuals in the memory of the host, and compute the rest again.

    Args:
      names: Names of residuals.

    It needs devices that read the memory of their host by themselves; others are refused.

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1 (activations on the host).
    """

    names: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for residuals that wait on the host.

        Args:
          function: A function of pytrees of arrays.
          scanned: Whether it is the body of a scan.

        Returns:
          A function of the same arguments and results.
        """
        # Pinned memory, so that the device copies by itself, beside its computation.
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=list(self.names),
            offload_src="device",
            offload_dst=HOST_MEMORY,
        )
        return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class Residual:
    """A named intermediate result of a layer.

    Args:
      name: The name that `checkpoint_name` gave it.
      num_bytes: Its bytes, over all devices.
      flops: FLOPs of the products that lead to it from named residuals and from arguments.
    """

    name: str
    num_bytes: int
    flops: int


def named_residuals(jaxpr: jex_core.Jaxpr) -> list[Residual]:
    """Return the named residuals of a function, those of the same name together.

    Args:
      jaxpr: The function's jaxpr; a function that it calls counts as one operation.

    Returns:
      The name, the bytes and the FLOPs of recomputation of each, in the order of their first use.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.ad_checkpoint import checkpoint_name
      >>> from luthier import layers
      >>> jaxpr = jax.make_jaxpr(lambda x: checkpoint_name(x @ x, "product"))(jnp.ones((4, 4)))
      >>> layers.named_residuals(jaxpr.jaxpr)
      [Residual(name='product', num_bytes=64, flops=128)]
    """
    producers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    residuals: dict[str, Residual] = {}
    for equation in jaxpr.eqns:
        # `checkpoint_name` is the primitive `name`, an identity.
        if equation.primitive.name != "name":
            continue
        name, aval = equation.params["name"], _aval(equation.outvars[0])
        same = residuals.get(name, Residual(name, 0, 0))
        size = math.prod(aval.shape) * jax.numpy.dtype(aval.dtype).itemsize
        flops = same.flops + _cost(equation.invars[0], producers)
        residuals[name] = Residual(name, same.num_bytes + size, flops)
    return list(residuals.values())


def _cost(var: Any, producers: dict[Any, jex_core.JaxprEqn]) -> int:
    """Return the FLOPs of the products between named residuals and a variable."""
    # A walk against the data flow that ends at arguments and at other named residuals, as if those
    # were kept; each equation counts once, also where several ways lead to it. Only products count:
    # everything else is bound by memory.
    waiting, seen, total = [var], set[int](), 0
    while waiting:
        var = waiting.pop()
        equation = None if isinstance(var, jex_core.Literal) else producers.get(var)
        if equation is None or equation.primitive.name == "name" or id(equation) in seen:
            continue
        seen.add(id(equation))
        total += _product(equation)
        waiting += equation.invars
    return total


def _aval(variable: Any) -> Any:
    return variable.aval  # JAX annotates it as a type without shape and dtype


def _product(equation: jex_core.JaxprEqn) -> int:
    """Return the FLOPs of the matrix products of an equation and of all that it calls."""
    if equation.primitive.name == "dot_general":
        (contract, _), _ = equation.params["dimension_numbers"]
        left, out = _aval(equation.invars[0]).shape, _aval(equation.outvars[0]).shape
        return 2 * math.prod(out) * math.prod(left[i] for i in contract)
    name, params = equation.primitive.name, equation.params
    if name == "cond":  # which branch runs is data; the largest is an upper bound
        return max(_products(branch) for branch in params["branches"])
    # The body of a `shard_map` has the sizes of one shard of the axes that it makes manual.
    axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
    axes = axes if name == "shard_map" else ()
    times = math.prod(params["mesh"].shape[axis] for axis in axes)
    times *= params["length"] if name == "scan" else 1
    return times * sum(_products(p) for p in params.values())


def _products(jaxpr: Any) -> int:
    equations = getattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns", ())
    return sum(_product(equation) for equation in equations)
