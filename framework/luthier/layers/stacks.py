"""Stacks of layers: one program for equal ones (`Scanned`) or one for each (`Unrolled`).

Both make bit-identical parameters and run the same mathematics, so they can be swapped. `Scanned`
keeps each parameter of all equal layers in one array with a leading `layers` axis.

Layers of P kinds may take turns (local and global attention, say): layer i is of kind i mod P.
Inputs and outputs of each layer (caches, say) are then a `Turns`, because kinds may differ in
shape.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.declared import is_merged
from luthier.layers.experts.routing import carrying
from luthier.layers.parameters import add_axis, gather_unnamed
from luthier.layers.remat import NoRemat, Remat, SaveProjections
from luthier.parallel import current_platform

T = TypeVar("T")
MakeLayer = Callable[[nnx.Rngs], nnx.Module]
# (layer, index, carry, the layer's own input, ...) -> (carry, the layer's output)
Apply = Callable[..., tuple[T, Any]]

_MOST_UNROLLED = 48  # layers: compiling takes as long as they are many


class Turns(NamedTuple):
    """Per-layer values for a stack whose layers are of several kinds by turns.

    Args:
      cycle: For each kind, stacked over the whole turns.
      rest: For each layer after the last whole turn.
    """

    cycle: tuple[Any, ...]
    rest: tuple[Any, ...]


# A `Cycle` is a module and a `Turns` a plain tuple: one holds parameters, whose names are paths in
# the state (`blocks.cycle.0. ...`), the other holds inputs and outputs of a scan.
class Cycle(nnx.Module):
    """Layers of several kinds by turns, each kind of all whole turns in one module.

    Args:
      cycle: A module for each kind, whose parameters have a leading `layers` axis, one entry for
        each whole turn; none where there is no whole turn.
      rest: The layers after the last whole turn.
    """

    def __init__(self, cycle: Sequence[nnx.Module], rest: Sequence[nnx.Module]):
        self.cycle = nnx.List(cycle)
        self.rest = nnx.List(rest)


class Stack(Protocol):
    """Makes the layers of a stack, and applies them one after the other."""

    def create(
        self, make_layer: MakeLayer | Sequence[MakeLayer], num_layers: int, rngs: nnx.Rngs
    ) -> nnx.Module:
        """Make the layers, as one module.

        Args:
          make_layer: Makes a layer, given its `rngs`; several make layers by turns.
          num_layers: Number of layers.
          rngs: Supplies one key.

        Returns:
          The layers, as one module.
        """

    def apply(
        self, layers: Any, function: Apply, carry: T, own: Any = None, rows: Any = None
    ) -> tuple[T, Any]:
        """Thread `carry` through the layers.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer, index, carry, own)` -> `(carry, given)`.
          carry: A pytree whose leading axes are rows.
          own: State of the layers, stacked; or None.
          rows: Inputs per row that layers do not change; or None.

        Returns:
          The last carry, and what the layers gave.
        """

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make the state of each layer, such as a cache, stacked over the layers.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading layers axis.
        """


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Layers in a `jax.lax.scan`: small programs that compile fast, whatever the depth.

    Where layers take turns, the scan runs whole turns; the layers after the last one follow it.

    Args:
      remat: Rematerialization policy of a layer.
      unroll: Layers (or turns) per iteration of the loop; all layers of a shallow model in one make
        its steps faster on CPUs, those of a deep one make it compile longer. `auto` means all of
        them on GPUs, if they are at most 48 and the remat policy is `NoRemat` or
        `SaveProjections`, and else 1: GPUs move fewer bytes without a loop, but save little memory
        by other policies.
    """

    RANGES: ClassVar[dict[str, str]] = {"unroll": "1 <= x"}
    remat: Remat = NoRemat()
    unroll: int | Literal["auto"] = 1

    def create(
        self, make_layer: MakeLayer | Sequence[MakeLayer], num_layers: int, rngs: nnx.Rngs
    ) -> nnx.Module:
        """Make one module whose parameters have a leading `layers` axis, or a `Cycle` of such.

        Args:
          make_layer: Makes a layer, given its `rngs`; several make layers by turns.
          num_layers: Number of layers.
          rngs: Supplies one key; each layer's is folded in from it.

        Returns:
          The layers.
        """
        # Layer i has key i in every stack, so scanned and unrolled layers start alike. The kinds
        # of a cycle take every P-th key; `zip` below ends with the last incomplete turn.
        makers, keys = _makers(make_layer), _layer_keys(rngs, num_layers)
        if len(makers) == 1:
            return _stacked(makers[0], keys)
        turns, left = divmod(num_layers, len(makers))
        whole = keys[: num_layers - left]
        cycle = [_stacked(make, whole[i :: len(makers)]) for i, make in enumerate(makers) if turns]
        last = zip(makers, keys[num_layers - left :], strict=False)
        return Cycle(cycle, [make(nnx.Rngs(key)) for make, key in last])

    @carrying
    def apply(
        self, layers: Any, function: Apply, carry: T, own: Any = None, rows: Any = None
    ) -> tuple[T, Any]:
        """Thread `carry` through the layers.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer, index, carry, own)` -> `(carry, given)`, with `rows`
            as a fifth argument where they are given.
          carry: A pytree; its shapes and types stay. Leading axes are rows.
          own: A pytree of arrays with a leading layers axis, a `Turns` for layers by turns, or
            None.
          rows: Per-row inputs that layers do not change, such as positions: a pytree of
            arrays whose leading axis is the carry's, or None. A pipeline runs a few rows at a
            time, and hands these to the function.

        Returns:
          The last carry, and what the layers gave: stacked, or a `Turns` for layers by turns. A
          pipeline adds up what layers give for a few rows each: they give sums over rows.
        """
        # `rows` are closed over by the scan: constants of its body, the same for every layer.
        function = with_rows(function, rows)
        run = functools.partial(scan_turns, remat=self.remat, unroll=self.unroll)
        if not isinstance(layers, Cycle):
            carry, (given,) = run([layers], function, carry, (own,))
            return carry, given
        kinds = len(layers.cycle)
        own = Turns((None,) * kinds, (None,) * len(layers.rest)) if own is None else own
        given, turned = (), 0
        if kinds:
            carry, given = run(layers.cycle, function, carry, own.cycle)
            turned = kinds * num_layers_of(layers.cycle[0])
        # Layers after the last whole turn are modules of their own, and are applied one by one.
        rest = []
        for i, (layer, its) in enumerate(zip(layers.rest, own.rest, strict=True), turned):
            carry, gift = _apply_one(self.remat, layer, function, i, carry, its)
            rest.append(gift)
        return carry, Turns(given, tuple(rest))

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make the state of each layer, stacked, or a `Turns` where layers take turns.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading layers axis.
        """

        def of_kind(layers: Any) -> Any:
            graphdef, state = nnx.split(layers)
            return jax.vmap(lambda state: function(nnx.merge(graphdef, state)))(state)

        if not isinstance(layers, Cycle):
            return of_kind(layers)
        return Turns(tuple(map(of_kind, layers.cycle)), tuple(map(function, layers.rest)))


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """Layers one by one: larger programs, in which the compiler can optimize across layers.

    Args:
      remat: Rematerialization policy of a layer.
    """

    remat: Remat = NoRemat()

    def create(
        self, make_layer: MakeLayer | Sequence[MakeLayer], num_layers: int, rngs: nnx.Rngs
    ) -> nnx.List:
        """Make the layers as a list, in order; see `Scanned.create`.

        Args:
          make_layer: Makes a layer, given its `rngs`; several make layers by turns.
          num_layers: Number of layers.
          rngs: Supplies one key.

        Returns:
          The layers.
        """
        makers, keys = _makers(make_layer), _layer_keys(rngs, num_layers)
        return nnx.List([makers[i % len(makers)](nnx.Rngs(keys[i])) for i in range(num_layers)])

    @carrying
    def apply(
        self, layers: Any, function: Apply, carry: T, own: Any = None, rows: Any = None
    ) -> tuple[T, Any]:
        """Thread `carry` through the layers; see `Scanned.apply`.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer, index, carry, own)` -> `(carry, given)`.
          carry: A pytree whose leading axes are rows.
          own: State of the layers, stacked; or None.
          rows: Inputs per row that layers do not change; or None.

        Returns:
          The last carry, and what the layers gave, stacked.
        """
        function, given = with_rows(function, rows), []
        for i, layer in enumerate(layers):
            carry, gift = _apply_one(self.remat, layer, function, i, carry, _at(own, i))
            given.append(gift)
        return carry, _together(given)

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make the state of each layer, stacked where it can be; see `Scanned.init_own`.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading layers axis.
        """
        return _together([function(layer) for layer in layers])


def _makers(make_layer: MakeLayer | Sequence[MakeLayer]) -> Sequence[MakeLayer]:
    return [make_layer] if callable(make_layer) else make_layer


def _layer_keys(rngs: nnx.Rngs, num_layers: int) -> jax.Array:
    # Folded in, not split: a deeper model has the same first layers.
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return fold(rngs.params(), jnp.arange(num_layers, dtype=jnp.uint32))


def with_rows(function: Apply, rows: Any) -> Apply:
    """Return the function of a layer, given what it reads of every row, if there is any."""
    if rows is None:
        return function
    return lambda layer, index, carry, own: function(layer, index, carry, own, rows)


def num_layers_of(layers: Any) -> int:
    """Return the number of layers of one kind in a stack of `Scanned.create`."""
    # Any array will do: `_stacked` gave all of them the same leading axis.
    return jax.tree.leaves(nnx.state(layers))[0].shape[0]


def scan_turns(
    kinds: Sequence[Any],
    function: Apply,
    carry: T,
    own: Sequence[Any],
    *,
    remat: Remat,
    unroll: int | Literal["auto"] = 1,
    first: Any = 0,
) -> tuple[T, tuple[Any, ...]]:
    """Scan over whole turns, in each of which one layer of every kind is applied.

    Args:
      kinds: For each kind, its layers of all turns, stacked.
      function: As for `Scanned.apply`, without `rows`.
      carry: A pytree.
      own: For each kind, the state of its layers.
      remat: Rematerialization policy of a layer.
      unroll: Turns per iteration of the loop; see `Scanned`.
      first: Number of the first layer; may be traced.

    Returns:
      The last carry, and for each kind, what its layers gave, stacked.
    """
    # One iteration is one turn: a layer of every kind. The scan carries `carry` (activations) from
    # layer to layer, and takes apart, along the leading `layers` axis, the parameters, the numbers
    # of the layers and what is the layers' own. Static, and closed over: the structure of a layer
    # and the function. The number of a layer is traced; dropout folds it into its keys.
    num_layers = len(kinds) * num_layers_of(kinds[0])
    indices = first + jnp.arange(num_layers, dtype=jnp.uint32).reshape(-1, len(kinds))
    if unroll == "auto":
        unroll = len(indices) if _is_faster_unrolled(num_layers, remat) else 1
    # A loop of one iteration is none: the forward and the backward pass are in one program, where
    # XLA merges a layer with its recomputation unless barriers keep them apart. With
    # `SaveProjections` it may: on an H100, GPT-2 of 124M needs the same memory with barriers and
    # moves 10 % more bytes; a Llama of 368M saves 3 of 16 GB and moves 6 % more.
    may_merge = True
    if unroll >= len(indices):
        may_merge = isinstance(remat, SaveProjections)
        remat = NoRemat() if is_merged() else remat
    applies, each = [], []
    for i, layers in enumerate(kinds):
        graphdef, state = nnx.split(layers)
        values, treedef = jax.tree.flatten(state)
        apply = functools.partial(_merge_and_apply, function, graphdef, treedef)
        # Each layer is rematerialized by itself, not the whole turn: the backward pass then holds
        # the activations of one layer at a time.
        applies.append(remat.wrap(apply, scanned=may_merge))
        each.append((values, indices[:, i], own[i]))

    def body(carry: T, each: Any) -> tuple[T, tuple[Any, ...]]:
        given = []
        for apply, of_kind in zip(applies, each, strict=True):
            carry, gift = apply(carry, of_kind)
            given.append(gift)
        return carry, tuple(given)

    return jax.lax.scan(body, carry, each, unroll=unroll)


def _is_faster_unrolled(num_layers: int, remat: Remat) -> bool:
    # Without a loop, XLA for GPUs computes the gradients of the parameters of all layers at the
    # end, and keeps until then what they are computed from, whatever the policy wants. A Llama of
    # 368M with `FullRemat` on h100:8, 32 rows of 2,048 tokens on each device, needs 46 GiB
    # unrolled, 22 if the gradients of a layer are made to come before the next layer, and 8 as a
    # loop, which moves 2 % more bytes. A loop saves two of 13 GiB for 8 rows with
    # `SaveProjections`, and moves 21 % more.
    keeps_much = isinstance(remat, NoRemat | SaveProjections)
    return current_platform() == "gpu" and num_layers <= _MOST_UNROLLED and keeps_much


def _apply_one(
    remat: Remat, layer: Any, function: Apply, index: int, carry: T, own: Any
) -> tuple[T, Any]:
    """Apply a layer that is not scanned."""
    # `scanned=False`: in one program XLA could merge the recomputation with the forward pass, and
    # keep everything after all; JAX then adds optimization barriers (`prevent_cse`).
    graphdef, state = nnx.split(layer)
    values, treedef = jax.tree.flatten(state)
    apply = functools.partial(_merge_and_apply, function, graphdef, treedef)
    return remat.wrap(apply, scanned=False)(carry, (values, jnp.uint32(index), own))


def _merge_and_apply(
    function: Apply, graphdef: Any, treedef: Any, carry: T, each: Any
) -> tuple[T, Any]:
    values, index, own = each
    layer = nnx.merge(graphdef, jax.tree.unflatten(treedef, values))
    gather_unnamed(layer)  # of this layer alone, and again where the backward pass recomputes it
    return function(layer, index, carry, own)


def _together(each: Sequence[Any]) -> Any:
    """Stack the outputs of layers; those of several kinds that differ in shape are a `Turns`."""
    # Equal shapes are stacked as a scan would, so that both stacks return the same.
    shapes = {str(jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), one)) for one in each}
    if len(shapes) > 1:
        return Turns((), tuple(each))
    return jax.tree.map(lambda *gifts: jnp.stack(gifts), *each)


def _at(own: Any, index: int) -> Any:
    """Return the state of one layer of an unrolled stack."""
    if isinstance(own, Turns):
        return own.rest[index]
    # None has no leaves: each layer of a stack without state gets None.
    return jax.tree.map(lambda x: x[index], own)


def _stacked(make_layer: MakeLayer, keys: jax.Array) -> nnx.Module:
    """Make layers as one module, and name the new axis on every parameter."""
    # One trace of the constructor, vmapped over keys, makes all layers, whatever the depth. The
    # structure is the same for each key, so it leaves the trace as a Python value.
    graphdef: Any = None

    def init(key: jax.Array) -> Any:
        nonlocal graphdef
        graphdef, state = nnx.split(make_layer(nnx.Rngs(key)))
        return nnx.to_pure_dict(state)

    values = jax.vmap(init)(keys)
    layers = nnx.merge(graphdef, values)
    for _, variable in nnx.to_flat_state(nnx.state(layers)):
        add_axis(variable, "layers")
    return layers
