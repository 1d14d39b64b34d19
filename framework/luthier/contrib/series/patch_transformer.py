"""A transformer over patches of series: it forecasts every channel by itself.

Shapes: B rows, L length, C channels, H horizon, S = B C series, N patches, P steps in a patch,
D dim, Q quantiles.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers import (
    DropoutKeys,
    Linear,
    Normal,
    Scanned,
    Stack,
    Template,
    Tokens,
    Zeros,
    create,
    fold,
    vector,
)
from luthier.layers.parameters import biased, wide
from luthier.parallel import RESIDUAL_AXES, constrain, gather_length

DType = Any

_LINEAR = functools.partial(Linear, bias=Zeros())


class PatchTransformer(nnx.Module):
    """Forecasts series: instance normalization, patches, layers, one linear map per channel.

    Every channel goes through the same weights and sees no other. It is brought to mean 0 and
    deviation 1, and its forecast is taken back. Its last value is repeated `stride` times at the
    end, so that there are (L - P) // stride + 2 patches. Attention between patches is not causal:
    the block's attention needs a core whose mask is `SameDocument`.

    Args:
      length: L.
      horizon: H.
      dim: D.
      num_layers: Number of blocks.
      block: Template of a layer, such as `PostNormBlock`.
      norm: Template of a norm after the last layer; None where blocks end with one.
      patch_length: P.
      stride: Steps from one patch to the next.
      num_quantiles: Q, for a loss of quantiles; None for point forecasts.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      dtype: Dtype of the computation, in all parts that do not set their own; parameters are stored
        in float32.
      rngs: Random number generators used to initialize the parameters.

    Raises:
      BadInput: A patch is longer than a series.

    Source: Nie et al. 2022, arXiv:2211.14730, section 3.1; the normalization: Kim et al. 2021,
      "Reversible instance normalization", without its affine map.
    Deviation: Scores are not handed from layer to layer, and norms are those of the block (the
      original's are batch normalization).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {
        "length": "1 <= x",
        "horizon": "1 <= x",
        "dim": "1 <= x",
        "num_layers": "1 <= x",
        "patch_length": "1 <= x",
        "stride": "1 <= x",
        "num_quantiles": "1 <= x",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("patch_length <= length",)

    def __init__(
        self,
        length: int,
        horizon: int,
        dim: int,
        num_layers: int,
        block: Template,
        norm: Template | None = None,
        patch_length: int = 16,
        stride: int = 8,
        num_quantiles: int | None = None,
        stack: Stack = Scanned(),
        *,
        dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Checked in the constructor, as sizes are never tracers: with a longer patch the number of
        # patches below would be 1 or less, and indices beyond the end would be clamped silently.
        if patch_length > length:
            what = f"patches of {patch_length} steps in series of {length}"
            raise BadInput(Problem(what, remedy="set patch_length to at most length"))
        kinds = {"dtype": dtype, "param_dtype": jnp.float32}
        inherited = {"dim": dim, **kinds}
        self.length, self.horizon = length, horizon
        self.patch_length, self.stride = patch_length, stride
        self.num_quantiles = num_quantiles
        # One more than fit: the end is padded by a stride (`_forecast`), as in the paper.
        self.num_patches = (length - patch_length) // stride + 2
        self.stack = stack
        embed = {"outputs": (dim,), "output_axes": ("embed",), "rngs": rngs, **kinds}
        self.embedding = create(_LINEAR, inputs=(patch_length,), input_axes=(None,), **embed)
        axes = (None, "embed")
        shape = (self.num_patches, dim)
        # Learned and absolute, one for each patch, as in the paper: the length is fixed anyway,
        # since the head below is one map from all patches at once.
        self.positions = vector(Normal(0.02), shape, axes, jnp.float32, rngs)
        self.blocks = stack.create(
            lambda rngs: create(block, rngs=rngs, **inherited), num_layers, rngs
        )
        self.norm = None if norm is None else create(norm, rngs=rngs, **inherited)
        # A flattening head: (N, D) inputs to H (or H Q) outputs, shared by all channels.
        outputs = horizon * (1 if num_quantiles is None else num_quantiles)
        ends = {"inputs": shape, "input_axes": axes, "outputs": (outputs,), "output_axes": (None,)}
        self.head = create(_LINEAR, rngs=rngs, **ends, **kinds)

    def __call__(self, inputs_BLC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Forecast.

        Args:
          inputs_BLC: The last values of the series, [B, L, C].
          dropout: Keys, one for each row [B, 1]; None means no dropout (evaluation).

        Returns:
          [B, H, C], or [B, H, C, Q] where the model gives quantiles; float32 or wider.

        Raises:
          BadInput: The series are not `length` steps long.
        """
        B, L, C = inputs_BLC.shape
        if self.length != L:
            what = f"the model is for series of {self.length} steps, not {L}"
            raise BadInput(Problem(what, remedy=f"set length={L}"))
        # Instance normalization: series whose level drifts would otherwise be out of the range seen
        # in training. Statistics are of the context only, in float32 or wider, and are put back on
        # the forecast. The constant under the root is for series that do not vary.
        #
        # Channels become rows ("channel independence"), so that blocks see B C series of one
        # channel.
        x_BCL = inputs_BLC.astype(wide(inputs_BLC.dtype)).swapaxes(1, 2)
        mean_BC1 = x_BCL.mean(-1, keepdims=True)
        deviation_BC1 = jnp.sqrt(x_BCL.var(-1, keepdims=True) + 1e-5)
        normed_SL = ((x_BCL - mean_BC1) / deviation_BC1).reshape(B * C, L)
        y_BCO = self._forecast(normed_SL, _each_channel(dropout, C)).reshape(B, C, -1)
        y_BCO = y_BCO.astype(x_BCL.dtype) * deviation_BC1 + mean_BC1
        if self.num_quantiles is None:
            return y_BCO.swapaxes(1, 2)
        return y_BCO.reshape(B, C, self.horizon, self.num_quantiles).swapaxes(1, 2)

    def _forecast(self, series_SL: jax.Array, dropout: DropoutKeys | None) -> jax.Array:
        padded = jnp.pad(series_SL, ((0, 0), (0, self.stride)), mode="edge")
        # A gather with a constant index [N, P]: patches overlap, so no reshape gives them.
        starts_N = jnp.arange(self.num_patches) * self.stride
        patches_SNP = padded[:, starts_N[:, None] + jnp.arange(self.patch_length)]
        x_SND = self.embedding(patches_SNP)
        x_SND = constrain(biased(x_SND, self.positions), RESIDUAL_AXES)
        # One segment a series and no mask of time: a patch may look at later ones of the context.
        tokens = Tokens.single(*x_SND.shape[:2])
        keys = None if dropout is None else _each_place(dropout, self.num_patches)

        def apply(block: Any, index: jax.Array, x_SND: jax.Array, _: None, rows: Any) -> Any:
            tokens, keys = rows
            return block(x_SND, tokens, fold(keys, index)), None

        x_SND, _ = self.stack.apply(self.blocks, apply, x_SND, rows=(tokens, keys))
        x_SND = x_SND if self.norm is None else self.norm(x_SND)
        return self.head(gather_length(x_SND))


# [S] keys with [N] numbers give [S, N] keys. Keys come from the row and not from the place in the
# batch, so that cutting a batch into microbatches does not change what is dropped.
_fold_each = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))


def _each_channel(keys: DropoutKeys | None, num_channels: int) -> DropoutKeys | None:
    """Key every channel by its row's key: [B, 1] to [B C, 1]."""
    if keys is None:
        return None
    channels_C = jnp.arange(num_channels, dtype=jnp.uint32)
    return DropoutKeys(_fold_each(keys.token_keys_BL[:, 0], channels_C).reshape(-1, 1))


def _each_place(keys: DropoutKeys, length: int) -> DropoutKeys:
    """Key every patch by its series' key: [S, 1] to [S, N]."""
    return DropoutKeys(_fold_each(keys.token_keys_BL[:, 0], jnp.arange(length, dtype=jnp.uint32)))
