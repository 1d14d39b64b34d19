"""Residual networks: images to classes, by convolutions.

Shapes: B rows, H height, W width, C channels, D dim of the last stage, K classes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import DropoutKeys, Linear, Normal, Template, Zeros, create
from luthier.layers.convolution import BottleneckBlock, LargeStem
from luthier.layers.parameters import wide

DType = Any

_HEAD = functools.partial(Linear, Normal(0.01), Zeros())


class ResNet(nnx.Module):
    """Classifies images: a stem, stages of residual blocks, the mean over places, a linear map.

    Every stage after the first halves height and width in its first block, and doubles the width.

    Args:
      num_classes: K.
      stage_sizes: Number of blocks in every stage.
      width: Channels of the stem and width of the first stage's blocks.
      num_channels: C.
      block: Template of a block, `BasicBlock` or `BottleneckBlock`.
      stem: Template of the layers before the first block, `LargeStem` or `SmallStem`.
      head: Template of the map to logits.
      dtype: Dtype of the computation, in all parts that do not set their own.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: He et al. 2015, arXiv:1512.03385, table 1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {
        "num_classes": "1 <= x",
        "width": "1 <= x",
        "num_channels": "1 <= x",
    }

    def __init__(
        self,
        num_classes: int,
        stage_sizes: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        num_channels: int = 3,
        block: Template = BottleneckBlock,
        stem: Template = LargeStem,
        head: Template = _HEAD,
        *,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Table 1 of the paper: stage n has width 64 * 2^n, and its first block halves the image,
        # but for the first stage, whose input the stem has already reduced. Blocks differ in shape
        # and cannot be scanned; each is a module of its own.
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.stem = create(stem, in_dim=num_channels, out_dim=width, **kinds)
        dim, stages = width, []
        for number, size in enumerate(stage_sizes):
            blocks = []
            for i in range(size):
                stride = 2 if number and not i else 1  # the first block of all stages but the first
                sizes = {"in_dim": dim, "width": width << number, "stride": stride}
                blocks.append(create(block, **sizes, **kinds))
                dim = sizes["width"] * blocks[-1].EXPANSION
            stages.append(nnx.List(blocks))
        self.stages = nnx.List(stages)
        # Classes are few, and their number is seldom even, so no mesh axis splits them.
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        classes = {"outputs": (num_classes,), "output_axes": (None,)}
        self.head = create(head, **embed, **classes, **kinds)

    def hidden(self, images_BHWC: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Run everything but the head.

        Args:
          images_BHWC: [B, H, W, C].
          weights_B: Weights of the rows in training; None means evaluation.

        Returns:
          The mean over places of the last stage, [B, D], float32 or wider.
        """
        x = self.stem(images_BHWC, weights_B)
        for stage in self.stages:
            for block in stage:
                x = block(x, weights_B)
        return x.astype(wide(x.dtype)).mean((1, 2))  # 49 places at 224 pixels: summed in float32

    def __call__(self, images_BHWC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Classify images by the running statistics.

        Args:
          images_BHWC: [B, H, W, C].
          dropout: Not used: residual networks have none.

        Returns:
          Logits, float32 or wider [B, K].
        """
        return self._logits(self.hidden(images_BHWC))

    def observe(
        self,
        images_BHWC: jax.Array,
        weights_B: jax.Array,
        *,
        dropout: DropoutKeys | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Classify images by the statistics of this batch, as in training.

        Args:
          images_BHWC: [B, H, W, C].
          weights_B: Weights of the rows; those of weight 0 count nothing in the statistics.
          dropout: Not used: residual networks have none.

        Returns:
          Logits, float32 or wider [B, K], and the running statistics after the batch, by name.
        """
        # The norms change their statistics in place. This module lives inside of one trace and is
        # dropped after it, so the changed values are read here and returned to the task, whose
        # updates the step applies if it accepts the step.
        logits_BK = self._logits(self.hidden(images_BHWC, weights_B))
        flat = nnx.to_flat_state(nnx.state(self, nnx.BatchStat))
        return logits_BK, {".".join(map(str, path)): v.get_value() for path, v in flat}

    def _logits(self, x_BD: jax.Array) -> jax.Array:
        logits_BK = self.head(x_BD)
        return logits_BK.astype(wide(logits_BK.dtype))
