"""How modules are made from templates, and how parameters are made.

A *template* is a callable that makes a module: a class, or a partial of one with its settings. The
parent calls it with what the child inherits (sizes, dtypes, `rngs`), through `create`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.initializers import Initializer, describe
from luthier.parallel import constrain, is_explicit, result_sharding

Template = Callable[..., Any]
DType = Any

AXES = "logical_axes"
"""The metadata key under which a parameter carries one logical axis name per dimension."""

_is_outline = contextvars.ContextVar("is_outline", default=False)


def create(template: Template, **offered: Any) -> Any:
    """Make a module from its template, handing it what it inherits.

    A child declares what it takes from its parent in `INHERITED`; a callable without that
    attribute gets the offered values that its signature names. What the template binds itself
    (`dtype=jnp.float32` on a norm) is left alone.

    Args:
      template: A class, function, or partial of one.
      **offered: What the parent has to give: sizes, `dtype`, `param_dtype`, `rngs`.

    Returns:
      What the template makes, usually an `nnx.Module`.
    """
    target, bound = template, set[str]()
    while isinstance(target, functools.partial):
        bound |= target.keywords.keys()
        target = target.func
    # Fiddle wraps a class whose arguments are made afresh by each call.
    target = getattr(target, "func", target)
    names = getattr(target, "INHERITED", None)
    if names is None:
        signed = target.__init__ if inspect.isclass(target) else target
        names = inspect.signature(signed).parameters
    return template(**{k: v for k, v in offered.items() if k in names and k not in bound})


@contextlib.contextmanager
def outlined() -> Iterator[None]:
    """Let parameters be zeros, for who needs a model but not its initial values: traced faster."""
    token = _is_outline.set(True)
    try:
        yield
    finally:
        _is_outline.reset(token)


def _initial(
    initializer: Initializer, rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DType
) -> jax.Array:
    if _is_outline.get():
        return jnp.zeros(shape, dtype)
    return initializer(rngs.params(), shape, dtype)


def parameter(
    initializer: Initializer,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    dtype: DType,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a parameter of shape `inputs + outputs`.

    The initializer always sees the matrix `(fan in, fan out)`, so that variance scaling is right
    for kernels of any rank, such as `(embed, heads, head_dim)`.

    Args:
      initializer: Called as `initializer(key, shape, dtype)`.
      inputs: Sizes of the dimensions that are summed over when the kernel is applied.
      outputs: Sizes of the other dimensions.
      axes: One logical axis name per dimension.
      dtype: Type to store.
      rngs: Supplies one key of the `params` stream.

    Returns:
      The parameter. Its metadata are `axes` as `logical_axes`, the number of its inputs, by which
      optimizers know it as a matrix, as `num_inputs`, and how `initializer` is written.
    """
    matrix = _initial(initializer, rngs, (math.prod(inputs), math.prod(outputs)), dtype)
    array = matrix.reshape(*inputs, *outputs)
    description = describe(initializer)
    return nnx.Param(array, logical_axes=tuple(axes), num_inputs=len(inputs), initializer=description)


def vector(
    initializer: Initializer,
    shape: Sequence[int],
    axes: Sequence[str | None],
    dtype: DType,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a parameter that is no kernel: a bias or a scale.

    Args:
      initializer: Called as `initializer(key, shape, dtype)`.
      shape: Its shape.
      axes: One logical axis name per dimension.
      dtype: Type to store.
      rngs: Supplies one key of the `params` stream.

    Returns:
      The parameter. Its metadata are `axes` as `logical_axes`, and how `initializer` is written.
    """
    array = _initial(initializer, rngs, tuple(shape), dtype)
    return nnx.Param(array, logical_axes=tuple(axes), initializer=describe(initializer))


def wide(dtype: DType) -> DType:
    """Return the type for sums, exponentials and angles: float32, or wider if `dtype` is."""
    return jnp.promote_types(dtype, jnp.float32)


def value_of(param: nnx.Param, dtype: DType) -> jax.Array:
    """Return the parameter's array in the type that is computed in.

    Where the axes of the mesh are explicit, what `fsdp` splits is gathered here.
    """
    return jnp.asarray(gathered(param), dtype)


def biased(y: jax.Array, param: nnx.Param) -> jax.Array:
    """Return `y + b` in the type of y, added in float32 or wider.

    The gradient of b is a sum over all tokens: added up in bfloat16 it would be wrong by percents,
    so that tokens are widened before they are added up, not afterwards.

    Args:
      y: [..., *shape of b].
      param: b.
    """
    kind = wide(y.dtype)
    return (y.astype(kind) + value_of(param, kind)).astype(y.dtype)


def looked_up(
    param: nnx.Param, indices: jax.Array, dtype: DType, beyond: str = "fill"
) -> jax.Array:
    """Return rows of a table in the type that is computed in; its gradient is summed in float32.

    The transpose of a look-up adds up the gradients of all places that have the same index: in
    bfloat16, those of a frequent token would stop growing.

    Args:
      param: The table [V, D], of logical axes (vocabulary or None, embed).
      indices: [B, L] integers.
      dtype: Type of the result.
      beyond: What an index beyond the table gives: `fill` is NaN, and `clip` the last row.

    Returns:
      [B, L, D] in `dtype`.
    """
    return _rows(gathered(param), indices, jnp.dtype(dtype), beyond)


# The forward pass casts, then looks up: devices that hold a part of the table gather it in `dtype`.
# The tangent looks up, then casts: its transpose, the gradient, widens and then adds up.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _rows(table_VD: jax.Array, indices: jax.Array, dtype: DType, beyond: str) -> jax.Array:
    return _take(table_VD.astype(dtype), indices, beyond)


@_rows.defjvp
def _rows_jvp(dtype: DType, beyond: str, primals: Any, tangents: Any) -> tuple[Any, Any]:
    (table_VD, indices), (tangent_VD, _) = primals, tangents
    # Without the barrier, XLA adds up into the gradient of a tied unembedding, which it would first
    # gather whole under `fsdp`.
    widened = jax.lax.optimization_barrier(tangent_VD.astype(wide(tangent_VD.dtype)))
    return _rows(table_VD, indices, dtype, beyond), _take(widened, indices, beyond).astype(dtype)


def _take(table_VD: jax.Array, indices: jax.Array, beyond: str) -> jax.Array:
    sharding = result_sharding(indices, indices.ndim, ("embed",))
    if sharding is None:
        return jnp.take(table_VD, indices, axis=0, mode=beyond)
    filler = jnp.nan if beyond == "fill" else None
    return table_VD.at[indices].get(mode=beyond, fill_value=filler, out_sharding=sharding)


def gathered(param: nnx.Param) -> jax.Array:
    """Return the parameter's array, laid out as layers compute where axes are explicit."""
    array: jax.Array = param[...]
    axes = param.get_metadata().get(AXES)
    if axes is None or not is_explicit():
        return array
    return constrain(array, axes[-array.ndim :])
