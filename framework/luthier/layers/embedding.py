"""From tokens to vectors, and from vectors to logits.

Shapes: B rows, L length, D embed, V vocab.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.attention.cores import soft_cap
from luthier.layers.dropout import DropoutKeys
from luthier.layers.initializers import FanIn, Initializer, Normal, describe
from luthier.layers.linear import flattened
from luthier.layers.parameters import (
    DType,
    Template,
    create,
    looked_up,
    parameter,
    value_of,
    vector,
    wide,
)
from luthier.layers.positions import Tokens
from luthier.layers.products import stored_product
from luthier.parallel import (
    RESIDUAL_AXES,
    axis_product,
    constrain,
    current_layout,
    current_platform,
    cut_padding,
    gather_length,
    result_sharding,
)

LOGITS_AXES = ("batch", "length", "vocab")


class Embedding(nnx.Module):
    """A learned vector for every token, plus that of its position where there is one.

    Args:
      table: Initializer of the token vectors, which it sees as the kernel (D, V) of the
        projection to logits: `FanIn()` gives each vector an expected norm of 1.
      position: Template of the position embedding; None where attention encodes positions.
      dropout: Template of the dropout on the sum; None means none.
      pad_to_multiple: Rows of the table are a multiple of this, so that meshes divide it; rows
        beyond the vocabulary are zero at first and never used.
      scale: Factor of the token vectors, rounded to `dtype` as Gemma does; None means none.
      vocab_size: V.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> embedding = layers.Embedding(vocab_size=16, dim=8, rngs=nnx.Rngs(0))
      >>> embedding(jnp.array([[3, 1]]), layers.Tokens.single(batch_size=1, length=2)).shape
      (1, 2, 8)
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("vocab_size", "dim", "dtype", "param_dtype", "rngs")
    EXECUTION: ClassVar[tuple[str, ...]] = ("pad_to_multiple",)
    RANGES: ClassVar[dict[str, str]] = {"pad_to_multiple": "1 <= x", "vocab_size": "1 <= x"}

    def __init__(
        self,
        table: Initializer = Normal(0.02),
        position: Template | None = None,
        dropout: Template | None = None,
        pad_to_multiple: int = 1,
        scale: float | None = None,
        *,
        vocab_size: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.vocab_size = vocab_size
        self.scale = scale
        self.dtype = dtype
        # Drawn as the kernel (D, V) of the projection to logits and then transposed, so that a
        # fan-in initializer takes D for the fan in: the table is stored as rows, [V, D], and tied
        # models use it as a kernel as well. Padding follows the draw, so that the values of real
        # rows do not depend on how far the table is padded.
        kernel = parameter(table, (dim,), (vocab_size,), ("embed", "vocab"), param_dtype, rngs)
        rows = _pad(kernel[...], vocab_size, pad_to_multiple).T
        description = describe(table)
        self.table = nnx.Param(rows, logical_axes=("vocab", "embed"), initializer=description)
        self.position = None if position is None else create(position, **inherited)
        self.dropout = None if dropout is None else create(dropout, **inherited)

    def check_length(self, length: int) -> None:
        """Reject rows that are longer than there are positions.

        Args:
          length: Length of the rows.

        Raises:
          BadInput: There are not that many positions.
        """
        if self.position is not None and hasattr(self.position, "check_length"):
            self.position.check_length(length)

    def __call__(
        self, inputs_BL: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Embed tokens.

        Args:
          inputs_BL: Token ids, int32 [B, L]. An id beyond the table gives NaN.
          tokens: Their positions and segments.
          dropout: Keys of this site; None means no dropout.

        Returns:
          [B, L, D] in `dtype`.
        """
        # NaN for an id beyond the table, where `table[ids]` would take the last row: a vocabulary
        # that does not fit the data then shows in the first loss.
        x_BLD = looked_up(self.table, inputs_BL, self.dtype)
        if _is_larger(self.table, inputs_BL):
            x_BLD = gather_length(x_BLD)
        if self.scale is not None:
            x_BLD = x_BLD * jnp.asarray(self.scale, self.dtype)
        if self.position is not None:
            x_BLD = x_BLD + self.position(tokens.positions_BL)
        if self.dropout is not None:
            x_BLD = self.dropout(x_BLD, dropout)
        return constrain(x_BLD, RESIDUAL_AXES)


def _is_larger(table: nnx.Param, inputs_BL: jax.Array) -> bool:
    """Return whether a table has more rows than a device looks up."""
    # Where the axis that splits the table also splits the length of its result (the residual stream
    # of `tensor` with `sequence_parallel`), either the table or the result has to be whole within
    # the lookup, and its gradient in float32 within the transpose: the smaller one.
    layout = current_layout()
    if layout is None:
        return False
    axes = (*layout.mesh_axes("batch"), *layout.mesh_axes("length"))
    return table.shape[0] * axis_product(axes, layout.sizes) > inputs_BL.size


class TiedUnembedding(nnx.Module):
    """Logits by the inner products with the embedding table: an explicit tie.

    `cap tanh((x E^T + b) / cap)`; without a bias there are no parameters.

    Args:
      cap: Upper bound of the logits; None means no cap: the tanh is left out.
      bias: Initializer of b; None means no bias.
      logits_dtype: Type in which the product is stored; float64 where the table is. In bfloat16,
        as PyTorch's autocast stores logits, the loss moves half the bytes, and a logit is right to
        0.4 % of itself.
      vocab_size: V; only a bias needs it.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters; only a bias needs them.

    Source: Press and Wolf 2017, arXiv 1608.05859, section 3; Gemma Team 2024, arXiv 2408.00118,
      section 2 (cap).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("vocab_size", "param_dtype", "rngs")
    EXECUTION: ClassVar[tuple[str, ...]] = ("logits_dtype",)
    # The component whose weights are used here. `show` and `diff` list ties by it, apart from
    # settings that are shared: two nodes with equal settings have weights of their own.
    TIES: ClassVar[str] = "the embedding"
    RANGES: ClassVar[dict[str, str]] = {"cap": "0 < x"}

    def __init__(
        self,
        cap: float | None = None,
        bias: Initializer | None = None,
        logits_dtype: DType = jnp.float32,
        *,
        vocab_size: int = 0,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        self.cap = cap
        self.logits_dtype = logits_dtype
        if bias is None:
            self.bias = None
        elif rngs is None:
            raise TypeError("a bias needs rngs")
        else:
            # Not split: only the padded vocabulary is sure to be divided by the mesh.
            self.bias = vector(bias, (vocab_size,), (None,), param_dtype, rngs)

    def __call__(self, hidden_BLD: jax.Array, embedding: Embedding) -> jax.Array:
        """Score every token of the vocabulary.

        Args:
          hidden_BLD: [B, L, D].
          embedding: The module whose table is used.

        Returns:
          Logits [B, L, V] in `logits_dtype`; where a bias or a cap follows the product, in float32
          or wider.
        """
        # The gradient of the table is the sum of two cotangents, of the lookup and of this product;
        # both arrive in float32 (see `looked_up`, and the widening in `program.step`).
        table_VD = value_of(embedding.table, embedding.dtype)
        logits_BLV = _logits(hidden_BLD, table_VD.T, self.logits_dtype)
        return _finished(logits_BLV, embedding.vocab_size, self.bias, self.cap)


class Unembedding(nnx.Module):
    """Logits by a kernel of their own, `cap tanh((x W + b) / cap)`.

    Args:
      kernel: Initializer of the kernel, a matrix (D, V).
      pad_to_multiple: Columns of the kernel are a multiple of this, so that meshes divide it.
      cap: Upper bound of the logits; None means no cap: the tanh is left out.
      bias: Initializer of b; None means no bias.
      logits_dtype: Type in which the product is stored; as in `TiedUnembedding`.
      vocab_size: V.
      dim: D.
      dtype: Type of the factors of the product.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> unembedding = layers.Unembedding(vocab_size=16, dim=8, rngs=nnx.Rngs(0))
      >>> embedding = layers.Embedding(vocab_size=16, dim=8, rngs=nnx.Rngs(0))
      >>> unembedding(jnp.ones((1, 3, 8)), embedding).shape
      (1, 3, 16)
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("vocab_size", "dim", "dtype", "param_dtype", "rngs")
    EXECUTION: ClassVar[tuple[str, ...]] = ("pad_to_multiple", "logits_dtype")
    RANGES: ClassVar[dict[str, str]] = {"pad_to_multiple": "1 <= x", "vocab_size": "1 <= x"}

    def __init__(
        self,
        kernel: Initializer = FanIn(),
        pad_to_multiple: int = 1,
        cap: float | None = None,
        bias: Initializer | None = None,
        logits_dtype: DType = jnp.float32,
        *,
        vocab_size: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.vocab_size = vocab_size
        self.cap = cap
        self.logits_dtype = logits_dtype
        self.dtype = dtype
        axes = ("embed", "vocab")
        real = parameter(kernel, (dim,), (vocab_size,), axes, param_dtype, rngs)
        padded = _pad(real[...], vocab_size, pad_to_multiple)
        self.kernel = nnx.Param(padded, logical_axes=axes, initializer=describe(kernel))
        # Not split: the vocabulary itself need not divide.
        own = None if bias is None else vector(bias, (vocab_size,), (None,), param_dtype, rngs)
        self.bias = own

    def __call__(self, hidden_BLD: jax.Array, embedding: Embedding) -> jax.Array:
        """Score every token of the vocabulary.

        Args:
          hidden_BLD: [B, L, D].
          embedding: Not used; tied unembeddings read its table.

        Returns:
          Logits [B, L, V] in `logits_dtype`; where a bias or a cap follows the product, in float32
          or wider.
        """
        kernel_DV = value_of(self.kernel, self.dtype)
        logits_BLV = _logits(hidden_BLD, kernel_DV, self.logits_dtype)
        return _finished(logits_BLV, self.vocab_size, self.bias, self.cap)


def _pad(kernel_DV: jax.Array, vocab_size: int, multiple: int) -> jax.Array:
    return jnp.pad(kernel_DV, ((0, 0), (0, -vocab_size % multiple)))


def _finished(
    logits_BLV: jax.Array, vocab_size: int, bias: nnx.Param | None, cap: float | None
) -> jax.Array:
    # Widened here and not rounded again: what reads logits widens them anyway, so nothing but the
    # product is ever stored in a narrow type.
    if bias is not None or cap is not None:
        logits_BLV = logits_BLV.astype(wide(logits_BLV.dtype))
    if bias is not None:
        bias_V = value_of(bias, logits_BLV.dtype)
        logits_BLV = logits_BLV + jnp.pad(bias_V, (0, logits_BLV.shape[-1] - vocab_size))
    if cap is not None:
        logits_BLV = soft_cap(logits_BLV, cap)
    # A class of logit -inf is none: the loss reads the same from what is not cut.
    return cut_padding(logits_BLV, vocab_size, LOGITS_AXES, fill=-jnp.inf)


def _logits(hidden_BLD: jax.Array, kernel_DV: jax.Array, dtype: DType) -> jax.Array:
    # Factors in the layer's type, the result in float32: accelerators accumulate in float32 anyway,
    # and a bfloat16 logit of 20 would be right to 0.06, which the softmax turns into an error of
    # 6 %.
    is_double = kernel_DV.dtype == jnp.float64
    kind = kernel_DV.dtype if is_double else jnp.dtype(dtype)
    sharding = result_sharding(hidden_BLD, 2, ("vocab",))
    hidden_BLD = hidden_BLD.astype(kernel_DV.dtype)
    # On TPUs, XLA computes the gradient of the logits within the two products that read it, unless
    # a reshape comes between: then it is an array of its own.
    is_matrix = sharding is None and current_platform() != "tpu"
    x = flattened(hidden_BLD) if is_matrix else hidden_BLD
    logits = stored_product("...D,DV->...V", x, kernel_DV, kind, sharding)
    return logits.reshape(*hidden_BLD.shape[:-1], -1)
