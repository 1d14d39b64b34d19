"""The Conformer: attention for what is far, convolution for what is near.

Shapes: B rows, L length, D dim, K taps.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys, fold
from luthier.layers.initializers import FanIn, Initializer, Zeros
from luthier.layers.linear import Linear
from luthier.layers.norms import LayerNorm
from luthier.layers.parameters import (
    DType,
    Template,
    biased,
    create,
    parameter,
    value_of,
    vector,
    wide,
)
from luthier.layers.positions import Tokens
from luthier.parallel import constrain

STREAM_AXES = ("batch", "length", "embed")
_POINTWISE = functools.partial(Linear, bias=Zeros())


class ConvolutionModule(nnx.Module):
    """Gated pointwise map, depthwise convolution over the length, norm, `silu`, pointwise map.

    The convolution looks at K // 2 tokens to each side, and never into another segment or padding.

    Args:
      kernel_size: K, odd.
      norm: Template of the norm after the depthwise convolution.
      pointwise: Template of the two pointwise maps.
      kernel: Initializer of the depthwise kernel, which it sees as a matrix (K, D).
      bias: Initializer of the depthwise bias; None means no bias.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Gulati et al. 2020, arXiv:2005.08100, section 2.2, figure 2 (without its first norm,
      which the block has).
    Deviation: The norm is LayerNorm by default, and not batch normalization, so that rows do not
      see each other and a step may be cut into microbatches.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"kernel_size": "1 <= x", "dim": "1 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("kernel_size % 2 == 1",)

    def __init__(
        self,
        kernel_size: int = 31,
        norm: Template = LayerNorm,
        pointwise: Template = _POINTWISE,
        kernel: Initializer = FanIn(),
        bias: Initializer | None = Zeros(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        self.dtype = dtype
        self.gated = create(
            pointwise, **embed, outputs=(2, dim), output_axes=(None, "mlp"), **kinds
        )
        self.kernel = parameter(kernel, (kernel_size,), (dim,), (None, "embed"), param_dtype, rngs)
        self.bias = None if bias is None else vector(bias, (dim,), ("embed",), param_dtype, rngs)
        self.norm = create(norm, dim=dim, **kinds)
        self.output = create(pointwise, **embed, outputs=(dim,), output_axes=("embed",), **kinds)

    def __call__(self, x_BLD: jax.Array, tokens: Tokens) -> jax.Array:
        """Apply the module.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.

        Returns:
          [B, L, D].
        """
        # A gated linear unit: one map to [2, D], whose second half opens the first.
        x_BL2D = self.gated(x_BLD)
        x_BLD = x_BL2D[:, :, 0] * jax.nn.sigmoid(x_BL2D[:, :, 1])
        x_BLD = self.norm(self._convolve(x_BLD, tokens.segments_BL))
        return self.output(jax.nn.silu(x_BLD))

    def _convolve(self, x_BLD: jax.Array, segments_BL: jax.Array) -> jax.Array:
        kind = wide(self.dtype)  # the gradient of a tap is a sum over all tokens
        kernel_KD = value_of(self.kernel, kind)
        reach, length = kernel_KD.shape[0] // 2, x_BLD.shape[1]
        padded = jnp.pad(x_BLD, ((0, 0), (reach, reach), (0, 0)))
        around = jnp.pad(segments_BL, ((0, 0), (reach, reach)))
        y_BLD = jnp.zeros(x_BLD.shape, kind)
        # A sum over taps, and not XLA's convolution, since each token has a mask of its own: a
        # token nearby may belong to another text of a packed row.
        for k in range(kernel_KD.shape[0]):
            same_BL = (around[:, k : k + length] == segments_BL) & (segments_BL > 0)
            tap_BLD = jnp.where(same_BL[..., None], padded[:, k : k + length], 0)
            y_BLD = y_BLD + tap_BLD * kernel_KD[k]
        return (y_BLD if self.bias is None else biased(y_BLD, self.bias)).astype(self.dtype)


class ConformerBlock(nnx.Module):
    """Half a feed-forward step, attention, convolution, half a feed-forward step, norm.

    `x += f1(norm(x)) / 2; x += attention(norm(x)); x += convolution(norm(x));
    x += f2(norm(x)) / 2; norm(x)`.

    Args:
      attention: Template of the attention.
      mlp: Template of both feed-forward parts.
      convolution: Template of the convolution module.
      norm: Template of all norms.
      dropout: Template of the dropout on every part; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Gulati et al. 2020, arXiv:2005.08100, equation 1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        attention: Template,
        mlp: Template,
        convolution: Template = ConvolutionModule,
        norm: Template = LayerNorm,
        dropout: Template | None = None,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.first_mlp_norm = create(norm, **inherited)
        self.first_mlp = create(mlp, **inherited)
        self.attention_norm = create(norm, **inherited)
        self.attention = create(attention, **inherited)
        self.convolution_norm = create(norm, **inherited)
        self.convolution = create(convolution, **inherited)
        self.last_mlp_norm = create(norm, **inherited)
        self.last_mlp = create(mlp, **inherited)
        self.norm = create(norm, **inherited)
        self.dropout = None if dropout is None else create(dropout, **inherited)

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Apply the block.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the tokens.
          dropout: Keys of this layer; None means no dropout.

        Returns:
          The same shape and type.
        """
        # Each part has a norm before it and a residual around it, and the whole block has a norm at
        # the end (equation 1): unlike in `PreNormBlock`, the residual stream itself is normalized.
        part_BLD = self.first_mlp(self.first_mlp_norm(x_BLD))
        x_BLD = self._add(x_BLD, 0.5 * part_BLD, dropout, 0)
        part_BLD = self.attention(self.attention_norm(x_BLD), tokens)
        x_BLD = self._add(x_BLD, part_BLD, dropout, 1)
        part_BLD = self.convolution(self.convolution_norm(x_BLD), tokens)
        x_BLD = self._add(x_BLD, part_BLD, dropout, 2)
        part_BLD = self.last_mlp(self.last_mlp_norm(x_BLD))
        x_BLD = self._add(x_BLD, 0.5 * part_BLD, dropout, 3)
        return constrain(self.norm(x_BLD).astype(x_BLD.dtype), STREAM_AXES)

    def _add(
        self, x_BLD: jax.Array, part_BLD: jax.Array, dropout: DropoutKeys | None, site: int
    ) -> jax.Array:
        if self.dropout is not None:
            part_BLD = self.dropout(part_BLD, fold(dropout, site))
        return constrain(x_BLD + part_BLD.astype(x_BLD.dtype), STREAM_AXES)
