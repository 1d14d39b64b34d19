"""Stacks of equal layers: one program for all (`Scanned`) or one for each (`Unrolled`).

Both make bit-identical parameters and run the same mathematics, so they can be swapped. `Scanned`
keeps each parameter of all layers in one array with a leading `layers` axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.parameters import AXES
from luthier.layers.remat import NoRemat, Remat

T = TypeVar("T")
MakeLayer = Callable[[nnx.Rngs], nnx.Module]
# (layer, index, carry, what is the layer's own) -> (carry, what the layer gives)
Apply = Callable[[Any, jax.Array, T, Any], tuple[T, Any]]


class Stack(Protocol):
    """Makes the layers of a stack, and applies them one after the other."""

    def create(self, make_layer: MakeLayer, num_layers: int, rngs: nnx.Rngs) -> nnx.Module:
        """Make the layers, as one module."""

    def apply(self, layers: Any, function: Apply, carry: T, own: Any = None) -> tuple[T, Any]:
        """Thread `carry` through the layers."""

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make what belongs to each layer, such as a cache, stacked over the layers."""


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Layers in a `jax.lax.scan`: small programs that compile fast, whatever the depth.

    Args:
      remat: What a layer keeps for the backward pass.
      unroll: Layers per iteration of the loop.
    """

    RANGES: ClassVar[dict[str, str]] = {"unroll": "1 <= x"}
    remat: Remat = NoRemat()
    unroll: int = 1

    def create(self, make_layer: MakeLayer, num_layers: int, rngs: nnx.Rngs) -> nnx.Module:
        """Make one module whose parameters have a leading `layers` axis.

        Args:
          make_layer: Makes a layer, given its `rngs`.
          num_layers: Number of layers.
          rngs: Supplies one key; each layer's is folded in from it.

        Returns:
          The layers.
        """
        graphdef = None

        def init(key: jax.Array) -> Any:
            nonlocal graphdef
            graphdef, state = nnx.split(make_layer(nnx.Rngs(key)))
            return nnx.to_pure_dict(state)

        values = jax.vmap(init)(_layer_keys(rngs, num_layers))
        return _stacked(graphdef, values)

    def apply(self, layers: Any, function: Apply, carry: T, own: Any = None) -> tuple[T, Any]:
        """Thread `carry` through the layers.

        Args:
          layers: What `create` made.
          function: Called as `function(layer, index, carry, own)` -> `(carry, given)`.
          carry: A pytree; its shapes and types stay.
          own: A pytree of arrays with a leading layers axis, or None.

        Returns:
          The last carry, and what the layers gave, stacked.
        """
        graphdef, state = nnx.split(layers)
        values, treedef = jax.tree.flatten(state)
        num_layers = values[0].shape[0]

        def body(carry: T, each: Any) -> tuple[T, Any]:
            values, index, own = each
            layer = nnx.merge(graphdef, jax.tree.unflatten(treedef, values))
            return function(layer, index, carry, own)

        body = self.remat.wrap(body, scanned=True)
        each = (values, jnp.arange(num_layers, dtype=jnp.uint32), own)
        return jax.lax.scan(body, carry, each, unroll=self.unroll)

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make what belongs to each layer, stacked.

        Args:
          layers: What `create` made.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading layers axis.
        """
        graphdef, state = nnx.split(layers)
        return jax.vmap(lambda state: function(nnx.merge(graphdef, state)))(state)


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """Layers one by one: larger programs, in which the compiler can optimize across layers.

    Args:
      remat: What a layer keeps for the backward pass.
    """

    remat: Remat = NoRemat()

    def create(self, make_layer: MakeLayer, num_layers: int, rngs: nnx.Rngs) -> nnx.List:
        """Make the layers as a list; see `Scanned.create`."""
        keys = _layer_keys(rngs, num_layers)
        return nnx.List([make_layer(nnx.Rngs(keys[i])) for i in range(num_layers)])

    def apply(self, layers: Any, function: Apply, carry: T, own: Any = None) -> tuple[T, Any]:
        """Thread `carry` through the layers; see `Scanned.apply`."""
        given = []
        for i, layer in enumerate(layers):
            graphdef, state = nnx.split(layer)

            def body(carry: T, each: Any, graphdef: Any = graphdef) -> tuple[T, Any]:
                state, index, own = each
                return function(nnx.merge(graphdef, state), index, carry, own)

            each = (state, jnp.uint32(i), jax.tree.map(lambda x, i=i: x[i], own))
            carry, gift = self.remat.wrap(body, scanned=False)(carry, each)
            given.append(gift)
        return carry, jax.tree.map(lambda *gifts: jnp.stack(gifts), *given)

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make what belongs to each layer, stacked; see `Scanned.init_own`."""
        return jax.tree.map(lambda *each: jnp.stack(each), *[function(layer) for layer in layers])


def _layer_keys(rngs: nnx.Rngs, num_layers: int) -> jax.Array:
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return fold(rngs.params(), jnp.arange(num_layers, dtype=jnp.uint32))


def _stacked(graphdef: Any, values: Any) -> nnx.Module:
    """Merge stacked values into a module, and name the new axis on every parameter."""
    layers = nnx.merge(graphdef, values)
    for _, variable in nnx.to_flat_state(nnx.state(layers)):
        axes = variable.get_metadata().get(AXES)
        if axes is not None:
            variable.set_metadata(**{AXES: ("layers", *axes)})
    return layers
