"""Creation of modules from templates, and of parameters.

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
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, describe
from luthier.parallel import constrain, current_layout, is_explicit, result_sharding
from luthier.parallel.activations import whole
from luthier.parallel.specs import resolve

# Other callables, such as an activation, may be objects themselves. By the marker `luthier.graph`
# knows that a node at such a place is an `fdl.Partial`. Text, as no component imports the graph.
Template = Annotated[Callable[..., Any], "template"]
DType = Any

AXES = "logical_axes"
"""The metadata key under which a parameter carries one logical axis name per dimension."""

STACKED = "is_stacked"
"""The metadata key of a parameter without logical axes that holds those of several layers."""

_is_outline = contextvars.ContextVar("is_outline", default=False)


def create(template: Template, **offered: Any) -> Any:
    """Make a module from its template, and pass on the arguments that it inherits.

    A child lists the arguments that it takes from its parent in `INHERITED`; a callable without
    that attribute gets the offered values that its signature names. Arguments that the template
    binds itself (`dtype=jnp.float32` on a norm) are left alone. Settings of the child are not
    offered but bound: `create(functools.partial(Convolution, kernel_size=5), dim=dim, rngs=rngs)`.

    Args:
      template: A class, function, or partial of one.
      **offered: Arguments that the parent offers: sizes, `dtype`, `param_dtype`, `rngs`.

    Returns:
      The result of the template, usually an `nnx.Module`.

    Raises:
      TypeError: An offered argument is a setting of the child, which it does not inherit.

    Example:
      >>> import functools
      >>> from flax import nnx
      >>> from luthier import layers
      >>> template = functools.partial(layers.RMSNorm, epsilon=1e-5)
      >>> norm = layers.create(template, dim=8, rngs=nnx.Rngs(0))
      >>> norm.scale.shape
      (8,)
    """
    # The parent offers everything it has, and does not know which child is in its place: a norm
    # without `rngs`, a user's own layer and an `Experts` are called alike. A list in the class
    # rather than the signature, because classes may wrap or forward `**kwargs`.
    target, bound = template, set[str]()
    while isinstance(target, functools.partial):
        bound |= target.keywords.keys()
        target = target.func
    # Within the partial, Fiddle wraps the class of an `fdl.Partial` with `ArgFactory` arguments,
    # which are made afresh by each call; the wrapper holds the class as `func`.
    target = getattr(target, "func", target)
    taken = inspect.signature(target.__init__ if inspect.isclass(target) else target).parameters
    names = getattr(target, "INHERITED", taken)
    # It would be dropped without a message, and the child would have its default.
    settings = [name for name in offered if name in taken and name not in (*names, *bound)]
    if settings:
        name = getattr(target, "__name__", str(target))
        written = ", ".join(f"{setting}=..." for setting in settings)
        raise TypeError(
            f"{name} does not inherit {', '.join(settings)}; bind what is not passed down: "
            f"create(functools.partial({name}, {written}), ...)"
        )
    return template(**{k: v for k, v in offered.items() if k in names and k not in bound})


@contextlib.contextmanager
def outlined() -> Iterator[None]:
    """Make parameters zeros within this context, for callers that replace them: traced faster.

    Yields:
      Nothing; use it as `with outlined():` around the constructor of a model.

    Example:
      >>> from flax import nnx
      >>> from luthier import layers
      >>> with layers.outlined():
      ...     norm = layers.RMSNorm(dim=2, rngs=nnx.Rngs(0))
      >>> print(norm.scale[...])
      [0. 0.]
    """
    # A context variable, because the constructors in between are the user's, and take no such
    # argument. Shapes, types and metadata are those of the real model.
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
    # `rngs.params()` counts its calls: the key of a parameter is given by the order in which the
    # parameters are made. To make one earlier changes the initial values of all that follow.
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
      optimizers know it as a matrix, as `num_inputs`, and `initializer` as text.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> initializer, axes = layers.Normal(stddev=0.02), ("embed", "heads", "head_dim")
      >>> kernel = layers.parameter(
      ...     initializer, (8,), (2, 4), axes, jnp.float32, nnx.Rngs(0)
      ... )
      >>> kernel.shape, kernel.get_metadata()["logical_axes"]
      ((8, 2, 4), ('embed', 'heads', 'head_dim'))
    """
    matrix = _initial(initializer, rngs, (math.prod(inputs), math.prod(outputs)), dtype)
    array = matrix.reshape(*inputs, *outputs)
    text = describe(initializer)
    return nnx.Param(array, logical_axes=tuple(axes), num_inputs=len(inputs), initializer=text)


def vector(
    initializer: Initializer,
    shape: Sequence[int],
    axes: Sequence[str | None],
    dtype: DType,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a parameter that is not a kernel: a bias, a scale or a table.

    Args:
      initializer: Called as `initializer(key, shape, dtype)`.
      shape: Its shape.
      axes: One logical axis name per dimension.
      dtype: Type to store.
      rngs: Supplies one key of the `params` stream.

    Returns:
      The parameter. Its metadata are `axes` as `logical_axes`, and `initializer` as text.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> bias = layers.vector(layers.Zeros(), (4,), ("mlp",), jnp.float32, nnx.Rngs(0))
      >>> bias.shape, bias.get_metadata()["initializer"]
      ((4,), 'Zeros()')
    """
    array = _initial(initializer, rngs, tuple(shape), dtype)
    return nnx.Param(array, logical_axes=tuple(axes), initializer=describe(initializer))


def wide(dtype: DType) -> DType:
    """Return the type for sums, exponentials and angles: float32, or wider if `dtype` is.

    Args:
      dtype: A floating point type.

    Returns:
      The type that both promote to.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.wide(jnp.bfloat16), layers.wide(jnp.float64)
      (dtype('float32'), dtype('float64'))
    """
    return jnp.promote_types(dtype, jnp.float32)


def axes_of(variable: nnx.Variable) -> tuple[str | None, ...] | None:
    """Return the logical axes that a variable declares, as a layer of luthier or as Flax does.

    Flax's own annotation is that of `nnx.with_partitioning(initializer, ("embed", "mlp"))`. Its
    names are logical axes, or mesh axes where there is no rule for them.

    Args:
      variable: Any variable of a module.

    Returns:
      A name, or None, for every dimension; None if nothing is declared.

    Raises:
      BadInput: Flax's annotation gives one dimension several names.
    """
    metadata = variable.get_metadata()
    axes = metadata.get(AXES)
    if axes is not None:
        return tuple(axes)
    # Names by dimension, or a sharding that has them as its spec. Trailing dimensions may be left
    # out, as in a `PartitionSpec`.
    sharding = metadata.get("out_sharding")
    entries = tuple(getattr(sharding, "spec", sharding) or ())
    if not entries:
        return None
    # Rules of the annotation itself, such as `(("mlp", "tensor"),)`, come before those of the
    # experiment, and name a mesh axis.
    rules = dict(metadata.get("sharding_rules") or ())
    names = [rules.get(entry, entry) if isinstance(entry, str) else entry for entry in entries]
    for name in names:
        if name is not None and not isinstance(name, str):
            what = f"Flax's annotation {entries} gives one dimension several names: {name!r}"
            remedy = "write one name, and let a rule split it along several mesh axes"
            raise BadInput(Problem(what, remedy=remedy))
    return (*names, *[None] * (variable.get_value().ndim - len(names)))


def add_axis(variable: nnx.Variable, name: str) -> None:
    """Record that an array of several parameters got a leading axis.

    Args:
      variable: The variable that holds them now.
      name: The logical axis, such as `layers`.
    """
    axes = axes_of(variable)
    if axes is not None and AXES not in variable.get_metadata():
        axes = axes[: variable.get_value().ndim - 1]  # filled up to the rank that it has now
    variable.set_metadata(**({STACKED: True} if axes is None else {AXES: (name, *axes)}))


def gather_unnamed(module: nnx.Module, stacked: bool = True) -> None:
    """Constrain the parameters that declare no logical axes to be whole on every device.

    `fsdp` splits such parameters by their sizes. A layer that declares no axes constrains no
    activations either, so that the compiler could split its products by its kernels, and gather the
    batch instead of the kernels.

    Args:
      module: The module, made in the current trace; its parameters are changed in place.
      stacked: Whether those that hold the parameters of several layers are included.
    """
    layout = current_layout()
    if layout is None or layout.sizes.get("fsdp", 1) == 1:
        return
    for _, variable in [*nnx.iter_graph(module)]:
        if not isinstance(variable, nnx.Param):
            continue
        is_stacked = variable.get_metadata().get(STACKED, False)
        if axes_of(variable) is None and (stacked or not is_stacked):
            variable.set_value(whole(variable.get_value()))


def value_of(param: nnx.Param, dtype: DType) -> jax.Array:
    """Return the parameter's array in the type that is computed in.

    Where the axes of the mesh are explicit, dimensions that `fsdp` splits are gathered here.

    Args:
      param: The parameter.
      dtype: The dtype of the result.

    Returns:
      The array, of the parameter's shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> layers.value_of(nnx.Param(jnp.ones(2)), jnp.bfloat16).dtype
      dtype(bfloat16)
    """
    return jnp.asarray(gathered(param), dtype)


def biased(y: jax.Array, param: nnx.Param) -> jax.Array:
    """Return `y + b` in the type of y, added in float32 or wider.

    The gradient of b is a sum over all tokens: added up in bfloat16 it would be wrong by percents,
    so that tokens are widened before they are added up, not afterwards.

    Args:
      y: [..., *shape of b].
      param: b.

    Returns:
      The sum, of the shape and dtype of `y`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> print(layers.biased(jnp.ones((2, 3)), nnx.Param(jnp.arange(3.0))))
      [[1. 2. 3.]
       [1. 2. 3.]]
    """
    # The transpose of the broadcast of b is a sum over tokens in the type in which b was added.
    # XLA fuses both casts with the addition, so nothing wider is written to memory.
    kind = wide(y.dtype)
    return (y.astype(kind) + value_of(param, kind)).astype(y.dtype)


def looked_up(
    param: nnx.Param, indices: jax.Array, dtype: DType, beyond: str = "fill"
) -> jax.Array:
    """Return rows of a table in the type that is computed in; its gradient is summed in float32.

    The transpose of a lookup adds up the gradients of all places that have the same index: in
    bfloat16, those of a frequent token would stop growing. Measured on 32 x 1,024 tokens: a token
    that occurs 1,653 times had a gradient 4.7 % off.

    Args:
      param: The table [V, D], of logical axes (vocabulary or None, embed).
      indices: [B, L] integers.
      dtype: Type of the result.
      beyond: Result for an index beyond the table: `fill` is NaN, and `clip` the last row.

    Returns:
      [B, L, D] in `dtype`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> table = nnx.Param(jnp.eye(3), logical_axes=(None, "embed"))
      >>> print(layers.looked_up(table, jnp.array([[2, 0]]), jnp.float32))
      [[[0. 0. 1.]
        [1. 0. 0.]]]
    """
    return _first_by_rows(_rows(gathered(param), indices, jnp.dtype(dtype), beyond))


def _first_by_rows(x_BLD: jax.Array) -> jax.Array:
    """Exchange the parts of D that the mesh axes of the batch hold for rows.

    A lookup in a table whose D is split gives vectors that are split in the same way. Where some of
    the mesh axes split the batch and others the length, the compiler knows no exchange for both at
    once, and would put all vectors on every device. That of the batch comes first here; what layers
    constrain the result to is the other one.
    """
    layout = current_layout()
    if layout is None or layout.is_explicit or x_BLD.ndim != 3:
        return x_BLD
    own = resolve(("embed",), dict(layout.parameters), layout.sizes)[0].mesh_axes
    of_batch, of_length = set(layout.mesh_axes("batch")), set(layout.mesh_axes("length"))
    if not (of_batch.intersection(own) and of_length.intersection(own)):
        return x_BLD
    rest = tuple(axis for axis in own if axis not in of_batch)
    return constrain(x_BLD, ("batch", "length", "embed"), {"length": (), "embed": rest})


# The forward pass casts, then looks up: devices that hold a part of the table gather it in `dtype`,
# which is half the traffic in bfloat16. The derivative of that order would add up in `dtype`, too.
# So the tangent goes the other way round, looks up, then casts, which is the same linear map with
# the transpose that is wanted: the gradient widens, and then adds up. A custom JVP, not a custom
# VJP, so that forward mode and `linearize` work, and JAX derives the transpose by itself.
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
    """Return the parameter's array, in the sharding that layers compute in if axes are explicit."""
    # With automatic axes the compiler decides where it gathers a parameter that `fsdp` splits.
    # With explicit ones a product of operands that share a mesh axis is an error, so each layer
    # gathers where it uses the parameter. `axes[-ndim:]`: within a scan over layers the array has
    # lost its leading `layers` axis, and the metadata have not.
    array: jax.Array = param[...]
    axes = param.get_metadata().get(AXES)
    if axes is None or not is_explicit():
        return array
    return constrain(array, axes[-array.ndim :])
