"""A stack whose layers share their parameters.

Shapes: N layers, G groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.experts.routing import carrying
from luthier.layers.remat import NoRemat, Remat
from luthier.layers.stacks import Apply, MakeLayer, Scanned, with_rows

T = TypeVar("T")


class SharedLayers(nnx.Module):
    """Groups of parameters, and how many layers run with them.

    Args:
      groups: The parameters, with a leading axis of G.
      num_layers: N.
    """

    def __init__(self, groups: nnx.Module, num_layers: int):
        self.groups = groups
        self.num_layers = num_layers


@dataclasses.dataclass(frozen=True)
class Shared:
    """Runs each group of parameters for `N / G` layers in a row; one group serves all by default.

    Parameters are named `blocks.groups.<...>`, with a leading axis of G.

    Args:
      num_groups: G, a divisor of the number of layers.
      remat: Rematerialization policy of a layer.

    Source: Lan et al. 2019, arXiv 1909.11942, section 3.1 (cross-layer parameter sharing).
    """

    RANGES: ClassVar[dict[str, str]] = {"num_groups": "1 <= x"}
    num_groups: int = 1
    remat: Remat = NoRemat()

    def create(self, make_layer: MakeLayer, num_layers: int, rngs: nnx.Rngs) -> SharedLayers:
        """Make the groups.

        Args:
          make_layer: Makes a layer, given its `rngs`.
          num_layers: N.
          rngs: Supplies one key; each group's is folded in from it.

        Returns:
          The layers, as one module.

        Raises:
          BadInput: The layers do not divide into the groups.
        """
        if num_layers % self.num_groups:
            what = f"{num_layers} layers do not divide into {self.num_groups} groups"
            raise BadInput(Problem(what, remedy="set num_groups to a divisor of num_layers"))
        return SharedLayers(Scanned().create(make_layer, self.num_groups, rngs), num_layers)

    @carrying
    def apply(
        self, layers: SharedLayers, function: Apply, carry: T, own: Any = None, rows: Any = None
    ) -> tuple[T, Any]:
        """Thread `carry` through the layers.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer, index, carry, own)` -> `(carry, given)`; the index
            counts layers, so that dropout differs between layers that share parameters.
          carry: A pytree; its shapes and types stay.
          own: A pytree of arrays with a leading layers axis, or None.
          rows: Per-row inputs of the layers, see `Scanned.apply`, or None.

        Returns:
          The last carry, and what the layers gave, stacked.
        """
        # Two nested scans: the outer one takes apart the groups, the inner one runs N / G layers
        # with the parameters of its group, which it closes over. Their gradients are therefore
        # summed over the layers of a group by the inner scan, in the type of the parameters, which
        # `program.step` has widened to float32.
        function = with_rows(function, rows)
        graphdef, state = nnx.split(layers.groups)
        values_G, treedef = jax.tree.flatten(state)
        G = values_G[0].shape[0]
        N = layers.num_layers

        def cut(array: jax.Array) -> jax.Array:
            return array.reshape(G, N // G, *array.shape[1:])

        def run_group(carry: T, each: Any) -> tuple[T, Any]:
            values, indices, own = each

            def body(carry: T, each: Any) -> tuple[T, Any]:
                index, own = each
                layer = nnx.merge(graphdef, jax.tree.unflatten(treedef, values))
                return function(layer, index, carry, own)

            return jax.lax.scan(self.remat.wrap(body, scanned=True), carry, (indices, own))

        indices_GN = cut(jnp.arange(N, dtype=jnp.uint32))
        each = (values_G, indices_GN, jax.tree.map(cut, own))
        carry, given = jax.lax.scan(run_group, carry, each)
        return carry, jax.tree.map(lambda gift: gift.reshape(N, *gift.shape[2:]), given)

    def init_own(self, layers: SharedLayers, function: Callable[[Any], Any]) -> Any:
        """Make the state of each layer, stacked over the layers, not the groups.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading axis of all layers.
        """
        # Layers that share parameters do not share state: each has a cache of its own.
        given = Scanned().init_own(layers.groups, function)

        def repeat(gift_G: jax.Array) -> jax.Array:
            return jnp.repeat(gift_G, layers.num_layers // gift_G.shape[0], axis=0)

        return jax.tree.map(repeat, given)
