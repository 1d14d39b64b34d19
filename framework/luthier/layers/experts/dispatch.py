"""Dispatch of tokens to the experts that they chose: by capacity, or sorted without drops."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from luthier.errors import BadInput, Problem
from luthier.layers.declared import counted, unbalanced
from luthier.layers.experts.routing import RoutedExperts
from luthier.layers.groups import Groups, group_of_tiles, num_tiles, tile_size
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, add_axis, create
from luthier.layers.products import MatrixProduct, Product
from luthier.parallel import Rules, activation_rules, axis_product, constrain, varying
from luthier.parallel.activations import ActivationLayout, current_layout

# Moving tokens to the places of experts and back, where backward is the other way forward.
#
# The derivative of a gather is a scatter-add, which is slow and, on some backends, not
# deterministic: its order of summation is that in which threads arrive. Here every place has at
# most one source, so the derivative is a gather along the inverse. JAX cannot know that the indices
# are a permutation, hence the custom VJPs; `spread` and `collect` are each other's transpose.
#
# Shapes: T tokens, K choices of a token, M places, D dim. Choice k of token t is number `t K + k`;
# `sources_M` holds such numbers, or T K for an empty place; `places_TK` holds places, or M for
# none.


@jax.custom_vjp
def spread(x_TD: jax.Array, sources_M: jax.Array, places_TK: jax.Array) -> jax.Array:
    """Give each place the token that is its source.

    Args:
      x_TD: Tokens.
      sources_M: The choice that each place holds.
      places_TK: The inverse: the place of each choice.

    Returns:
      [M, D]; empty places hold zeros.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (there, a product with a mask).
    """
    return _rows(x_TD, sources_M // places_TK.shape[-1])


def _spread_forward(
    x_TD: jax.Array, sources_M: jax.Array, places_TK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return spread(x_TD, sources_M, places_TK), places_TK


def _spread_backward(places_TK: jax.Array, cotangent_MD: jax.Array) -> tuple[jax.Array, None, None]:
    # A token that went to K places gets the sum of their cotangents; a dropped choice adds zero.
    return _rows(cotangent_MD, places_TK).sum(1), None, None


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def collect(y_MD: jax.Array, sources_M: jax.Array, places_TK: jax.Array) -> jax.Array:
    """Give each choice what is at its place.

    Args:
      y_MD: The contents of the places.
      sources_M: As for `spread`.
      places_TK: As for `spread`.

    Returns:
      [T, K, D]; zeros for a choice without a place.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (there, a product with a mask).
    """
    return _rows(y_MD, places_TK)


def _collect_forward(
    y_MD: jax.Array, sources_M: jax.Array, places_TK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return collect(y_MD, sources_M, places_TK), sources_M


def _collect_backward(
    sources_M: jax.Array, cotangent_TKD: jax.Array
) -> tuple[jax.Array, None, None]:
    flat = cotangent_TKD.reshape(-1, cotangent_TKD.shape[-1])
    return _rows(flat, sources_M), None, None


collect.defvjp(_collect_forward, _collect_backward)


def _rows(array: jax.Array, indices: jax.Array) -> jax.Array:
    """Return rows by number, zeros for a number past the end."""
    return array.at[indices].get(mode="fill", fill_value=0)


def inverse(places_TK: jax.Array, num_places: int) -> jax.Array:
    """Return `sources_M` of `places_TK`.

    Args:
      places_TK: The place of each choice, no place twice; M for none.
      num_places: M.
    """
    # A scatter of integers to distinct places: without additions, so deterministic, and without a
    # derivative. Choices without a place are out of bounds and dropped.
    count = places_TK.size
    numbers = jnp.arange(count, dtype=jnp.int32)
    empty = jnp.full((num_places,), count, jnp.int32)
    return empty.at[places_TK.reshape(-1)].set(numbers, mode="drop")


# Experts as one module, whose parameters have a leading `experts` axis.
#
# Shapes: E experts, `...` any leading dimensions, D dim.

EXPERTS = "experts"
"""The logical axis of experts."""

ACTIVE_SHARE = "active_share"
"""The metadata key of the share of a parameter that one token uses, on average."""


def create_each(
    template: Template, num_experts: int, active: Any, rngs: nnx.Rngs, **inherited: Any
) -> nnx.Module:
    """Make experts of one template, each with a key of its own.

    Args:
      template: Of one expert, called with `rngs` and what is inherited.
      num_experts: E.
      active: Number of experts of one token, on average.
      rngs: Supplies one key; each expert's is folded in from it.
      **inherited: Sizes and dtypes.

    Returns:
      One module. Its parameters have a leading `experts` axis and know which share of them is
      active.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.1 (weights with an expert dimension).
    """
    # One vmapped construction makes all experts, each parameter with a leading dimension E. What
    # the trace of `init` returns are arrays; the structure is the same for all experts, so that of
    # the one trace is kept. Expert e has the same values whatever E is, as its key is folded in.
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    keys = fold(rngs.params(), jnp.arange(num_experts, dtype=jnp.uint32))
    graphdef: Any = None

    def init(key: jax.Array) -> Any:
        nonlocal graphdef
        graphdef, state = nnx.split(create(template, rngs=nnx.Rngs(key), **inherited))
        return nnx.to_pure_dict(state)

    values = jax.vmap(init)(keys)
    experts = nnx.merge(graphdef, values)
    for _, variable in nnx.to_flat_state(nnx.state(experts)):
        add_axis(variable, EXPERTS)
        variable.set_metadata(**{ACTIVE_SHARE: active / num_experts})
    return experts


def apply_each(experts: nnx.Module, x: jax.Array, *, same: bool = False) -> jax.Array:
    """Let each expert map inputs of its own, or all of them the same.

    Args:
      experts: The experts, as `create_each` returns them.
      x: [E, ..., D]; [..., D] for all of them if `same`.
      same: Whether all experts get the same input.

    Returns:
      [E, ..., D].
    """
    graphdef, state = nnx.split(experts)

    def apply(state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, state)(x)

    with _apart():
        return jax.vmap(apply, (0, None if same else 0))(state, x)


def _apart() -> AbstractContextManager[None]:
    """Remove mesh axes that split the experts from the rules for activations of one expert."""
    # Layers of an expert constrain their activations as always, and do not know that they run
    # under a `vmap` whose dimension is split. With `expert` in the rule of `batch` as well, they
    # would ask for rows that are split by the axis that already splits the experts.
    layout = current_layout()
    taken = () if layout is None else layout.mesh_axes(EXPERTS)
    if layout is None or not taken:
        return nullcontext()
    table = {name: tuple(a for a in axes if a not in taken) for name, axes in layout.table}
    return activation_rules(layout.mesh, Rules(activations=table))


# Experts on tokens that are sorted by expert: products of groups of rows.
#
# Shapes: E experts, N rows, I inputs, O outputs.


class GroupedLinear(nnx.Module):
    """The linear maps of all experts, each on its own rows.

    Args:
      linear: The maps, whose parameters have a leading `experts` axis.
      groups: The rows of each expert; rows after those of the last one give anything.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4.
    """

    def __init__(self, linear: Linear, groups: Groups):
        self.linear = linear
        self.groups = nnx.data(groups)

    def __call__(self, x_1NI: jax.Array) -> jax.Array:
        """Map rows [1, N, *inputs], sorted by expert, to [1, N, *outputs]."""
        linear, groups = self.linear, self.groups
        dtype, num_inputs = linear.dtype, linear.num_inputs
        y = _product(x_1NI, linear.kernel[...], groups, num_inputs, dtype, linear.product)
        if linear.bias is None:
            return y
        # The bias of each row's expert, as a grouped product of a column of ones: a lookup by row
        # would have a scatter-add over all rows as its derivative.
        bias = linear.bias[...]
        ones_1N1 = jnp.ones((*y.shape[:2], 1), dtype)
        return y + _product(ones_1N1, bias[:, None], groups, 1, dtype, MatrixProduct())


# Keeps x and the kernel as they are for the backward pass; see `linear`.
@functools.partial(jax.checkpoint, static_argnums=(3, 4, 5), prevent_cse=False)
def _product(
    x: jax.Array,
    kernel: jax.Array,
    groups: Groups,
    num_inputs: int,
    dtype: DType,
    product: Product,
) -> jax.Array:
    inputs, outputs = kernel.shape[1 : 1 + num_inputs], kernel.shape[1 + num_inputs :]
    leading = x.shape[: x.ndim - num_inputs]
    x_NI = x.astype(dtype).reshape(-1, math.prod(inputs))
    kernel_EIO = kernel.astype(dtype).reshape(kernel.shape[0], math.prod(inputs), -1)
    # Varying over the same axes of a `shard_map`, so that JAX sums the gradient of a kernel that
    # rows of several devices use: a product's custom VJP does not.
    x_NI, kernel_EIO = (varying(x, x_NI, kernel_EIO, groups) for x in (x_NI, kernel_EIO))
    # Products in tiles declare what they compute themselves, loop by loop.
    with nullcontext() if groups.tile else counted(groups.active, x_NI.shape[0]):
        y_NO = product.grouped(x_NI, kernel_EIO, groups)
    return y_NO.reshape(*leading, *outputs)


def grouped(experts: nnx.Module, groups: Groups) -> nnx.Module:
    """Return experts that take their rows sorted, as one module with the call of a single expert.

    Args:
      experts: Experts of `create_each`; parameters must be those of `Linear` maps.
      groups: The rows of each expert.

    Returns:
      A module that maps [1, N, D] to [1, N, D].

    Raises:
      BadInput: An expert has other parameters; all of them at once.
    """
    # Experts are any module of `Linear` maps and elementwise functions. Each `Linear` in a copy is
    # replaced by one that multiplies groups of rows, so that the expert's own code runs on all rows
    # of all experts at once. That is right only if nothing else in it has parameters or mixes rows;
    # parameters are checked here.
    copy = nnx.merge(*nnx.split(experts))
    problems: list[Problem] = []
    _replace(copy, groups, "", problems)
    if problems:
        raise BadInput(problems)
    return copy


def _replace(module: nnx.Module, groups: Groups, path: str, problems: list[Problem]) -> None:
    for name, child in list(vars(module).items()):
        at = f"{path}.{name}" if path else name
        if type(child) is Linear:
            setattr(module, name, GroupedLinear(child, groups))
        elif isinstance(child, Linear | nnx.Param):  # also a subclass, whose product is its own
            what = f"Dropless knows the products of Linear only, and experts have {at}"
            kind = type(child).__name__
            remedy = "use Capacity" if kind == "Param" else f"use Capacity, or Linear for {kind}"
            problems.append(Problem(what, remedy=remedy))
        elif isinstance(child, nnx.Module):
            _replace(child, groups, at, problems)


# Dispatch by places, or of all tokens to all experts.
#
# Shapes: B rows, L length, D embed, E experts, K choices of a token, C places of an expert.

PLACE_AXES = (EXPERTS, "batch", None, "embed")
"""Experts first: their mesh axis is theirs, and the rows have the others."""


class Dispatch(Protocol):
    """Brings tokens to their experts and the results back."""

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: RoutedExperts
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts.

        Args:
          experts: The experts, as `create_each` returns them.
          x_BLD: Tokens [B, L, D].
          choice: The experts of each token; a token of no expert takes no place.

        Returns:
          The weighted sum of the experts' results, float32 [B, L, D], and how many choices were
          dropped, a scalar.
        """


@dataclasses.dataclass(frozen=True)
class AllExperts:
    """Every expert computes every token, and the weights choose: the reference, at E / K the cost.

    Source: Jacobs et al. 1991, Adaptive mixtures of local experts, equation 1.
    """

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: RoutedExperts
    ) -> tuple[jax.Array, jax.Array]:
        """Apply all experts; see `Dispatch`.

        Args:
          experts: The experts, as `create_each` returns them.
          x_BLD: [B, L, D].
          choice: The experts of each token; a token of no expert takes no place.

        Returns:
          The weighted sum of the experts' results, float32 [B, L, D], and the number of dropped
          choices, a scalar.
        """
        # `counted(0, 1)`: products that only route (weights by expert, sums of results) are no work
        # that the model owes, and count as idle; of those of the experts, K in E are needed.
        E, K = choice.logits_BLE.shape[-1], choice.experts_BLK.shape[-1]
        chosen_BLKE = jax.nn.one_hot(choice.experts_BLK, E, dtype=choice.weights_BLK.dtype)
        with counted(0, 1):
            weights_BLE = jnp.einsum("blke,blk->ble", chosen_BLKE, choice.weights_BLK)
        with counted(K, E):
            y_EBLD = apply_each(experts, x_BLD, same=True)
        y_EBLD = constrain(y_EBLD, (EXPERTS, "batch", "length", "embed"))
        with counted(0, 1):
            y_BLD = jnp.einsum("ebld,ble->bld", y_EBLD.astype(weights_BLE.dtype), weights_BLE)
        return y_BLD, jnp.zeros((), weights_BLE.dtype)


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Every expert has a number of places in each row, and choices that find none are dropped.

    An expert has `C = ceil(factor K L / E)` places for a row of L tokens (at most L), so a row's
    result does not depend on the other rows, nor on how a batch is cut or split. First choices
    have priority over second ones, then earlier tokens over later ones. A dropped choice counts
    zero: the residual carries the token on. A token's result so depends on tokens before it, and
    for K > 1 on later ones too: to generate text, use `Dropless`.

    Args:
      factor: Places per choice, where the load is balanced; E / K never drops.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (capacity, priority; groups here are
      rows); Fedus et al. 2021, arXiv:2101.03961, equation 3 (factor).
    Deviation: Tokens are moved by gathers, not by products with one-hot matrices: the same result
      for a small part of the FLOPs.
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x"}

    factor: Any = 1.25

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: RoutedExperts
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts where there is place; see `Dispatch`.

        Args:
          experts: The experts, as `create_each` returns them.
          x_BLD: [B, L, D].
          choice: The experts of each token; a token of no expert takes no place.

        Returns:
          The weighted sum of the experts' results, float32 [B, L, D], and the number of dropped
          choices, a scalar.
        """
        # Capacity is per row and per choice: K L choices of a row over E experts. Pax counts places
        # for each token instead, so its factor of 2.0 is one of 1.0 here for K = 2. C is a shape,
        # so it must be static: `float` raises for a traced factor.
        L, E = choice.logits_BLE.shape[-2:]
        K = choice.experts_BLK.shape[-1]
        C = min(math.ceil(float(self.factor) * K * L / E), L)
        places_BLK = jax.vmap(lambda chosen: _places(chosen, E, C))(choice.experts_BLK)
        sources_BM = jax.vmap(lambda places: inverse(places, E * C))(places_BLK)
        x_BMD = jax.vmap(spread)(x_BLD, sources_BM, places_BLK)
        with counted(min(K * L, E * C), E * C):
            y_BMD = through_places(experts, x_BMD)
        y_BLKD = jax.vmap(collect)(y_BMD, sources_BM, places_BLK)
        # The weighted sum in float32, the type of the weights. A dropped choice adds zero, and the
        # weights of the others are not raised to make up for it.
        is_dropped_BLK = (choice.experts_BLK < E) & (places_BLK == E * C)
        dropped = jnp.sum(is_dropped_BLK, dtype=choice.weights_BLK.dtype)
        return _weighted(y_BLKD, choice.weights_BLK), dropped


def through_places(experts: nnx.Module, x_BMD: jax.Array) -> jax.Array:
    """Apply experts to the tokens at their places.

    Over an `expert` mesh axis this is an all-to-all before and another one after the experts.

    Args:
      experts: The experts, as `create_each` returns them.
      x_BMD: The contents of the places of each row, [B, M, D] with M = E C.

    Returns:
      What the experts made of it, [B, M, D].
    """
    # The constraints before and after the swap of dimensions are the exchange: from rows split over
    # all batch axes to experts split over theirs, and back. The compiler makes all-to-alls of them.
    B, _, D = x_BMD.shape
    E = jax.tree.leaves(nnx.state(experts))[0].shape[0]
    x_BMD = constrain(x_BMD, ("batch", None, "embed"))
    x_EBCD = jnp.swapaxes(x_BMD.reshape(B, E, -1, D), 0, 1)
    y_EBCD = apply_each(experts, constrain(x_EBCD, PLACE_AXES))
    y_BECD = jnp.swapaxes(constrain(y_EBCD, PLACE_AXES), 0, 1)
    return constrain(y_BECD.reshape(B, -1, D), ("batch", None, "embed"))


def _places(experts_LK: jax.Array, num_experts: int, capacity: int) -> jax.Array:
    """Return the place of each choice of one row, `num_experts * capacity` where there is none."""
    # The place of a choice is the number of choices of the same expert before it, by a cumulative
    # sum over one-hot rows [N, E]: GShard's priority, in which no later choice displaces an earlier
    # one. Expert number E (padding) has an all-zero row, and no place.
    E, C = num_experts, capacity
    experts_N = experts_LK.T.reshape(-1)  # all first choices before all second ones
    chosen_NE = jax.nn.one_hot(experts_N, E, dtype=jnp.int32)
    before_N = jnp.sum((jnp.cumsum(chosen_NE, 0) - 1) * chosen_NE, -1)
    has_place_N = (experts_N < E) & (before_N < C)
    places_N = jnp.where(has_place_N, experts_N * C + before_N, E * C)
    return places_N.reshape(experts_LK.shape[::-1]).T


# Dispatch that drops nothing: tokens sorted by expert, products of groups of any size.
#
# Shapes: B rows, L length, D embed, E experts, K choices of a token, T tokens, N = T K choices, M
# places.


@dataclasses.dataclass(frozen=True)
class Dropless:
    """Every expert computes just the tokens that chose it, however many.

    On TPUs products are by `jax.lax.ragged_dot`. Elsewhere the tokens of an expert fill tiles, of
    at most 64 tokens on CPUs and 1,024 on GPUs; its last one is filled up with zeros.

    Over a mesh, every device sorts its own tokens. Devices that split both the rows and the
    experts, as those of an `expert` axis, send each other the tokens of their experts by all-to-all
    exchanges of a fixed size. One is enough unless a device sends another one more than `factor`
    times the mean; then all devices exchange what is left in further rounds, until nothing is. The
    result does not depend on it.

    Experts must be made of `Linear` maps and functions of single numbers.

    Args:
      factor: Places of a round for the choices of a device, where those of a balanced load take
        one. More places need more memory and traffic, fewer need more rounds.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4 (grouped products for any load); Lepikhin
      et al. 2020, arXiv:2006.16668, section 3.2 (all-to-all exchange).
    Deviation: In rounds, as shapes of a program are known beforehand and the router's load is not.
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "1 <= x"}

    factor: Any = 1.5

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: RoutedExperts
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts; see `Dispatch`.

        Args:
          experts: The experts, as `create_each` returns them.
          x_BLD: [B, L, D].
          choice: The experts of each token; a token of no expert takes no place.

        Returns:
          The weighted sum of the experts' results, float32 [B, L, D], and the number of dropped
          choices, a scalar.
        """
        experts_BLK, weights_BLK = choice.experts_BLK, choice.weights_BLK
        layout, dropped = current_layout(), jnp.zeros((), weights_BLK.dtype)
        if layout is None or layout.mesh.size == 1:
            y_BLKD = _apply(experts, x_BLD, experts_BLK)
            return _weighted(y_BLKD, weights_BLK), dropped
        shares = (experts_BLK, weights_BLK)
        return _apply_sharded(layout, experts, x_BLD, *shares, float(self.factor)), dropped


def _weighted(y_BLKD: jax.Array, weights_BLK: jax.Array) -> jax.Array:
    with counted(0, 1):
        return jnp.einsum("blkd,blk->bld", y_BLKD.astype(weights_BLK.dtype), weights_BLK)


def _apply(
    experts: nnx.Module, x_BLD: jax.Array, experts_BLK: jax.Array, active: int | None = None
) -> jax.Array:
    """Apply the experts of this device to its tokens, and return the result of each choice.

    Args:
      experts: The experts, E of them.
      x_BLD: [B, L, D].
      experts_BLK: Numbers of experts; number E is none of them, whose result is zeros.
      active: Choices of these experts at a balanced load; None means all.
    """
    # A counting sort as gathers: `order` lists choices by expert (stable, so rows of an expert are
    # in the order of tokens), `rank` is its inverse. Choices of no local expert sort to the end,
    # and have neither a source nor a place. Where products are of tiles, the places of an expert
    # begin with a tile, and those after its last choice stay empty. All sizes of arrays are static.
    K, D = experts_BLK.shape[-1], x_BLD.shape[-1]
    E = jax.tree.leaves(nnx.state(experts))[0].shape[0]
    experts_N = experts_BLK.reshape(-1)
    N = experts_N.size
    elsewhere, active = active is not None, N if active is None else active
    tile = tile_size(active, E)
    order_N, rank_N = _sorted(experts_N)
    sizes_E = jnp.sum(experts_N[:, None] == jnp.arange(E), 0, dtype=jnp.int32)
    if tile:
        M = tile * num_tiles(N, E, tile)
        places_E = -(-sizes_E // tile) * tile
        # How much further the places of an expert begin than its choices in the order.
        shift_E = (jnp.cumsum(places_E) - places_E) - (jnp.cumsum(sizes_E) - sizes_E)
        expert_M = jnp.repeat(group_of_tiles(places_E, tile, M // tile), tile)
        rank_M = jnp.arange(M, dtype=jnp.int32) - _rows(shift_E, expert_M)
        is_filled_M = (expert_M < E) & (rank_M < _rows(jnp.cumsum(sizes_E), expert_M))
        sources_M = jnp.where(is_filled_M, order_N[rank_M], N)
        places_N = jnp.where(experts_N < E, rank_N + _rows(shift_E, experts_N), M)
    else:
        M, places_E = N, sizes_E
        sources_M = jnp.where(experts_N[order_N] < E, order_N, N)
        places_N = jnp.where(experts_N < E, rank_N, M)
    places_TK = places_N.reshape(-1, K)
    groups = Groups(places_E, active, tile, elsewhere=elsewhere)
    x_MD = spread(x_BLD.reshape(-1, D), sources_M, places_TK)
    y_MD = grouped(experts, groups)(x_MD[None])[0]
    y_TKD = collect(y_MD, sources_M, places_TK)
    return y_TKD.reshape(*experts_BLK.shape, D)


def _sorted(keys_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the order that sorts keys, stable, and its inverse: the rank of each."""
    order_N = jnp.argsort(keys_N, stable=True).astype(jnp.int32)
    numbers_N = jnp.arange(keys_N.size, dtype=jnp.int32)
    return order_N, jnp.zeros_like(order_N).at[order_N].set(numbers_N, unique_indices=True)


def _apply_sharded(
    layout: ActivationLayout,
    experts: nnx.Module,
    x_BLD: jax.Array,
    experts_BLK: jax.Array,
    weights_BLK: jax.Array,
    factor: float,
) -> jax.Array:
    """Apply experts that are split over a mesh, inside of a `shard_map`.

    The mesh axes fall into four kinds. Those of `rows` and `length` split tokens, those of `owners`
    split experts. Over axes that split both (`exchanged`), devices exchange their tokens by
    all-to-all. Axes that split experts but not tokens (`repeated`) see the same tokens already:
    each device computes those of its own experts, and the results are summed.
    """
    # Each device sorts its own tokens; a sort of the whole batch would move all of them.
    #
    # Only axes of the batch are ever exchanged over. An axis that splits both the length and the
    # experts is not supported: it would count as `repeated`, whose sum would mix different tokens.
    # The rules of this framework give experts the axis `expert`, and the length others. An axis
    # that splits an expert's inside and no tokens (`tensor`) stays with the compiler; one that
    # splits rows, too (`fsdp`), is manual here, so the compiler gathers the experts over it first.
    rows = _fitting(layout, "batch", x_BLD.shape[0])
    length = _fitting(layout, "length", x_BLD.shape[1])
    owners = layout.mesh_axes(EXPERTS)
    exchanged = tuple(axis for axis in owners if axis in rows)
    repeated = tuple(axis for axis in owners if axis not in rows)
    sizes = layout.sizes  # within the `shard_map`, axes have a size of 1
    num_owners = axis_product(owners, sizes)
    graphdef, state = nnx.split(experts)
    leaves, treedef = jax.tree.flatten(state)
    manual = tuple(dict.fromkeys((*rows, *length, *owners)))

    def on_device(leaves: Any, x_BLD: Any, experts_BLK: Any, weights_BLK: Any) -> jax.Array:
        # Devices that have the same tokens or experts sum the gradients of these once, here.
        leaves, x_BLD = jax.tree.map(lambda x: varying(x, leaves, x_BLD), (leaves, x_BLD))
        # Of an owner's number over all axes, digit by digit: its number over those exchanged over,
        # and whether it is among this device's peers, which have its place over the others.
        num_own, num_choices = leaves[0].shape[0], experts_BLK.size
        owner_BLK, local_BLK = experts_BLK // num_own, experts_BLK % num_own
        peer_BLK, is_peer_BLK = jnp.zeros_like(owner_BLK), owner_BLK < num_owners
        stride = num_owners
        for axis in owners:
            stride //= sizes[axis]
            digit_BLK = owner_BLK // stride % sizes[axis]
            if axis in exchanged:
                peer_BLK = peer_BLK * sizes[axis] + digit_BLK
            else:
                is_peer_BLK &= digit_BLK == jax.lax.axis_index(axis)
        if not exchanged:
            own = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
            here_BLK = jnp.where(is_peer_BLK, local_BLK, num_own)
            active = num_choices // num_owners if owners else None
            y_BLKD = _apply(own, x_BLD, here_BLK, active)
        else:
            num_peers = axis_product(exchanged, sizes)
            places = min(_whole(factor * num_choices / num_owners), num_choices)
            active = num_choices * num_peers // num_owners
            exchange = _Exchange(graphdef, treedef, exchanged, num_peers, places, active)
            peer_BLK = jnp.where(is_peer_BLK, peer_BLK, num_peers)
            y_BLKD = exchange(leaves, x_BLD, peer_BLK, local_BLK, manual)
        # Each device has the part of the weighted sum that its experts contribute, in float32.
        y_BLD = _weighted(y_BLKD, weights_BLK)
        return jax.lax.psum(y_BLD, repeated) if repeated else y_BLD

    if not manual:
        return on_device(leaves, x_BLD, experts_BLK, weights_BLK)
    spec = PartitionSpec(rows or None, length or None, None)
    run = layout.shard_map(
        on_device, manual, ([PartitionSpec(owners or None)] * len(leaves), spec, spec, spec), spec
    )
    return run(leaves, x_BLD, experts_BLK, weights_BLK)


def _whole(places: float) -> int:
    # A multiple of the rows of a memory tile of TPUs, whatever the type.
    return -(-math.ceil(places) // 32) * 32


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """The exchange of choices among peers: devices that split both the tokens and the experts.

    Args:
      graphdef: Structure of the experts.
      treedef: Structure of their state.
      axes: Mesh axes of the peers.
      num_peers: P.
      places: C, the choices that a device sends each peer in a round, at most.
      active: Choices that a device gets in all, at a balanced load.
    """

    # Shapes: B rows, L length, K choices of a token, D dim, N = B L K choices, P peers, C places
    # for a peer, S = P C places of a round, sent and received.

    graphdef: Any
    treedef: Any
    axes: tuple[str, ...]
    num_peers: int
    places: int
    active: int

    def __call__(
        self,
        leaves: list[jax.Array],
        x_BLD: jax.Array,
        peer_BLK: jax.Array,
        local_BLK: jax.Array,
        manual: tuple[str, ...],
    ) -> jax.Array:
        """Return the result of each choice, [B, L, K, D]; zeros for one without a peer."""
        # The choices for a peer are numbered; round r takes those from r C to (r + 1) C.
        peer_N = peer_BLK.reshape(-1)
        order_N, rank_N = _sorted(peer_N)
        sizes_P = jnp.sum(peer_N[:, None] == jnp.arange(self.num_peers), 0, dtype=jnp.int32)
        number_N = rank_N - _rows(jnp.cumsum(sizes_P) - sizes_P, peer_N)
        routes = (peer_BLK, local_BLK, number_N.reshape(peer_BLK.shape), order_N, sizes_P)
        floats = {n: x for n, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)}
        inputs = floats, x_BLD
        fixed = {n: x for n, x in enumerate(leaves) if n not in floats}, routes
        y_BLKD = self.round(0, inputs, *fixed)
        if self.places == peer_BLK.size:
            return y_BLKD
        rounds = jax.lax.pmax(-(-jnp.max(sizes_P) // self.places), manual)
        return y_BLKD + _further_rounds(self.round, inputs, (*fixed, rounds))

    def round(self, turn: Any, inputs: Any, quantized: Any, routes: Any) -> jax.Array:
        """Return the results of the choices of one round, zeros for all others."""
        floats, x_BLD = inputs
        peer_BLK, local_BLK, number_BLK, order_N, sizes_P = routes
        leaves = [x for _, x in sorted((floats | quantized).items())]
        K, D = peer_BLK.shape[-1], x_BLD.shape[-1]
        P, C = self.num_peers, self.places
        own = nnx.merge(self.graphdef, jax.tree.unflatten(self.treedef, leaves))
        num_own = leaves[0].shape[0]
        is_sent_BLK = (peer_BLK < P) & (number_BLK // C == turn)
        place_BLK = jnp.where(is_sent_BLK, peer_BLK * C + number_BLK - turn * C, P * C)
        places_TK = place_BLK.reshape(-1, K)
        # Its inverse, without a scatter: the choices for a peer are neighbours in the order.
        number_PC = turn * C + jnp.arange(C, dtype=jnp.int32)[None]
        rank_PC = (jnp.cumsum(sizes_P) - sizes_P)[:, None] + number_PC
        is_filled_PC = number_PC < sizes_P[:, None]
        sources_S = jnp.where(is_filled_PC, _rows(order_N, rank_PC), order_N.size).reshape(-1)
        local_S = local_BLK.reshape(-1).at[sources_S].get(mode="fill", fill_value=num_own)
        x_SD = self._send(spread(x_BLD.reshape(-1, D), sources_S, places_TK))
        y_S1D = _apply(own, x_SD[:, None], self._send(local_S)[:, None, None], self.active)[:, 0]
        y_TKD = collect(self._send(y_S1D[:, 0]), sources_S, places_TK)
        return y_TKD.reshape(*peer_BLK.shape, D)

    def _send(self, x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, self.axes, split_axis=0, concat_axis=0, tiled=True)


# A custom VJP, because the number of turns of the loop is data: JAX has no derivative for one.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _further_rounds(function: Callable[..., jax.Array], inputs: Any, fixed: Any) -> jax.Array:
    """Return the sum of `function(turn, inputs, *fixed)` over turns from 1 on.

    Args:
      function: Computes one round; all have the same shape.
      inputs: What has a gradient.
      fixed: What has none: further arguments, and the number of rounds, the first included.
    """
    *others, rounds = fixed

    def add(turn: Any, total: jax.Array) -> jax.Array:
        return total + function(turn, inputs, *others)

    one = jax.eval_shape(function, 1, inputs, *others)
    start = varying(jnp.zeros(one.shape, one.dtype), inputs)
    with unbalanced():
        return jax.lax.fori_loop(1, rounds, add, start)


def _further_rounds_forward(
    function: Callable[..., jax.Array], inputs: Any, fixed: Any
) -> tuple[jax.Array, Any]:
    return _further_rounds(function, inputs, fixed), (inputs, fixed)


def _further_rounds_backward(
    function: Callable[..., jax.Array], kept: Any, gradient: jax.Array
) -> tuple[Any, None]:
    inputs, (*others, rounds) = kept

    def add(turn: Any, sums: Any) -> Any:
        _, pull = jax.vjp(lambda inputs: function(turn, inputs, *others), inputs)
        return jax.tree.map(jnp.add, sums, *pull(gradient))

    start = jax.tree.map(lambda x: varying(jnp.zeros_like(x), x, gradient), inputs)
    with unbalanced():
        return jax.lax.fori_loop(1, rounds, add, start), None


_further_rounds.defvjp(_further_rounds_forward, _further_rounds_backward)


def _fitting(layout: ActivationLayout, logical: str, size: int) -> tuple[str, ...]:
    """Return the mesh axes that split a dimension; none where they do not divide it."""
    # The compiler pads uneven parts, a `shard_map` does not take them.
    axes = layout.mesh_axes(logical)
    return () if size % math.prod(layout.sizes[axis] for axis in axes) else axes
