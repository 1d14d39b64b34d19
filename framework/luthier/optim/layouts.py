"""Layouts: what an optimizer must know about a parameter beside its name and its array.

The state is flat, and a parameter of a scanned stack holds those of all its layers. A stage that
treats a parameter as a whole (its norm, its matrix) must do so for each layer by itself, or the
same model would train differently scanned and unrolled.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from luthier.errors import BadInput, Problem

STACKED_AXES = ("layers", "experts")
"""Logical axes that count parameters of their own, where they come first."""


@dataclasses.dataclass(frozen=True)
class Axes:
    """Logical axes of one array of an optimizer's state, a leaf of a tree of them.

    Args:
      names: A logical axis name, or None, for every dimension.
    """

    names: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The structure of a parameter: stacked, input and output dimensions.

    Args:
      shape: The array's shape.
      axes: A logical axis name, or None, for every dimension; None where they are unknown.
      num_inputs: For a kernel, the number of dimensions that are summed over when it is applied,
        after the stacked ones; None for parameters other than kernels (a bias, a scale, a table).

    Example:
      >>> from luthier import optim
      >>> optim.Layout((12, 8, 4), ("layers", "embed", "mlp"), num_inputs=1).num_stacked
      1
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...] | None = None
    num_inputs: int | None = None

    @property
    def num_stacked(self) -> int:
        """Number of leading dimensions that count parameters of their own."""
        # Leading ones only: a scanned stack puts its axis first, in front of that of experts. An
        # axis of this name further inside is a dimension of each parameter like others.
        return sum(1 for _ in itertools.takewhile(STACKED_AXES.__contains__, self.axes or ()))

    @property
    def own_dims(self) -> tuple[int, ...]:
        """Dimensions of the array that belong to each single parameter."""
        return tuple(range(self.num_stacked, len(self.shape)))

    @property
    def is_matrix(self) -> bool:
        """Whether each single parameter is the kernel of a linear map."""
        # Both sides must have a dimension. A kernel of inputs alone (a head with one output) is a
        # vector, for which orthogonalization and Kronecker factors mean nothing.
        num_own = len(self.shape) - self.num_stacked
        return self.num_inputs is not None and 0 < self.num_inputs < num_own

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Fan in and fan out: products of the input and of the output dimensions of a kernel."""
        inputs, outputs = self._sides
        return math.prod(self.shape[d] for d in inputs), math.prod(self.shape[d] for d in outputs)

    @property
    def matrix_axes(self) -> tuple[Axes, Axes]:
        """Logical axes of a square matrix [*stacked, n, n] over the inputs, and over the outputs.

        Its first side goes along the first of the dimensions that it is made of.
        """
        # A side may be several dimensions (heads, head_dim) that are one of the square matrix, and
        # it is sharded like the first of them. The second side of the square stays whole: it stands
        # for the same dimensions, and a mesh axis may shard only one dimension of an array.
        axes = self.axes or (None,) * len(self.shape)
        stacked = axes[: self.num_stacked]
        inputs, outputs = self._sides
        return Axes((*stacked, axes[inputs[0]], None)), Axes((*stacked, axes[outputs[0]], None))

    @property
    def _sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = self.num_inputs or 0
        return self.own_dims[:count], self.own_dims[count:]

    def to_matrices(self, x: jax.Array) -> jax.Array:
        """Return a kernel as matrices.

        Args:
          x: An array of the parameter's shape.

        Returns:
          [*stacked, fan in, fan out].
        """
        return x.reshape(*self.shape[: self.num_stacked], *self.matrix_shape)

    def from_matrices(self, x: jax.Array) -> jax.Array:
        """Return matrices as the kernel.

        Args:
          x: [*stacked, fan in, fan out].

        Returns:
          An array of the parameter's shape.
        """
        return x.reshape(self.shape)

    def mean_square(self, x: jax.Array) -> jax.Array:
        """Return the mean of the square over each single parameter.

        Args:
          x: An array of the parameter's shape.

        Returns:
          An array of the rank of `x`, whose shape is 1 in the reduced dimensions.
        """
        return jnp.mean(x * x, axis=self.own_dims, keepdims=True)

    def norm(self, x: jax.Array) -> jax.Array:
        """Return the 2-norm of each single parameter.

        Args:
          x: An array of the parameter's shape.

        Returns:
          An array of the rank of `x`, whose shape is 1 in the reduced dimensions.
        """
        return jnp.sqrt(jnp.sum(x * x, axis=self.own_dims, keepdims=True))


Layouts = Mapping[str, Layout]
"""Layout by parameter name."""


class OptimizerStage(optax.GradientTransformationExtraArgs):
    """A transformation whose `init`, too, takes the keyword argument `layouts`.

    Its `update` takes `count`, the number of updates so far, and `layouts`. Without layouts both
    go by the shapes: see `complete`.
    """

    # Optax passes extra arguments to `update` only. A stage whose state depends on the layout (the
    # factors of Adafactor, the squares of Shampoo) needs it in `init` too, and a type of its own is
    # how `chain` and `Optimizer` know which transformations may be given it. Optax's combinators
    # still see one of their own kind.

    __slots__ = ()


def complete(parameters: Mapping[str, Any], layouts: Layouts | None) -> dict[str, Layout]:
    """Return a layout for every parameter.

    Args:
      parameters: Arrays by name.
      layouts: The known layouts; a parameter without one counts as not stacked, and as a matrix
        if it has exactly two dimensions.
    """
    known = layouts or {}
    return {
        name: known.get(name) or Layout(tuple(p.shape), None, 1 if p.ndim == 2 else None)
        for name, p in parameters.items()
    }


def state_axes(state: Any, layouts: Layouts) -> Any:
    """Return the logical axes of the arrays of an optimizer's state whose stage declares them.

    A stage whose arrays are not of their parameters' shapes keeps them in a named tuple with a
    method `axes(layouts)`, which returns the same tuple with `Axes` in the place of the arrays.

    Args:
      state: The state; arrays may be abstract.
      layouts: Layout of every parameter.

    Returns:
      A tree with an `Axes` for every such array and None for every other.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> optimizer = optim.adafactor(learning_rate=0.1, least_factored_dim=2)
      >>> parameters = {"kernel": jnp.ones((2, 4))}
      >>> layouts = {"kernel": optim.Layout((2, 4), ("embed", "mlp"))}
      >>> axes = optim.state_axes(optimizer.init(parameters, layouts), layouts)
      >>> print(axes.stages[1].rows["kernel"], axes.stages[1].columns["kernel"])
      Axes(names=('embed',)) Axes(names=('mlp',))
    """

    # By duck typing: stages of other packages (`luthier.contrib`, the user's own) need not register
    # anything. Arrays without a declaration get None, which the caller takes as "like the parameter
    # of that name, if shapes agree".
    def has_axes(node: Any) -> bool:
        return isinstance(node, tuple) and hasattr(node, "axes")

    return jax.tree.map(lambda n: n.axes(layouts) if has_axes(n) else None, state, is_leaf=has_axes)


# What arrays of a training state are stored in: rules by regular expression over names.

DType = Any

_SMALLEST_BITS = 16


@dataclasses.dataclass(frozen=True)
class StoredAs:
    """A rule: arrays whose name has a match of the pattern are stored in a type.

    Args:
      pattern: A regular expression, as `re.search` takes it; an empty one matches every name.
      dtype: A floating point type of 16 bits or more.

    Raises:
      BadInput: The pattern is not a regular expression, or the type cannot be used for storage.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> rule = optim.StoredAs("mlp", jnp.bfloat16)
      >>> rule("blocks.mlp.up.kernel"), rule("embedding.table")
      (True, False)
    """

    pattern: str
    dtype: DType

    def __post_init__(self) -> None:
        """Reject invalid regular expressions, and types whose range is too small."""
        problems = []
        try:
            re.compile(self.pattern)
        except re.error as error:
            what = f"{self.pattern!r} is not a regular expression: {error}"
            problems.append(Problem(what, "pattern"))
        kind = jnp.dtype(self.dtype)
        # Eight bits would need a scale for each array, as quantization has; stored as they are,
        # second moments of 1e-12 would all be zero.
        if not jnp.issubdtype(kind, jnp.floating) or jnp.finfo(kind).bits < _SMALLEST_BITS:
            what = f"arrays cannot be stored as {kind.name}: its range is too small"
            remedy = "use bfloat16, float16, float32 or float64"
            problems.append(Problem(what, "dtype", remedy=remedy))
        if problems:
            raise BadInput(problems)

    def __call__(self, name: str) -> bool:
        """Return whether the rule applies to the array called `name`.

        Args:
          name: The name of the array in the state.

        Returns:
          True if it does.
        """
        return re.search(self.pattern, name) is not None
