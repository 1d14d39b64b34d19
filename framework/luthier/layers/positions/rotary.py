"""Rotary positions, and how their frequencies are stretched for longer rows.

Shapes: B rows, L length, H heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from luthier.layers.parameters import wide


class RotaryScaling(Protocol):
    """Changes the frequencies of a rotation, so that it reaches further."""

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the changed frequencies, in radians per position, of the same shape and type."""


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: `w' = w / factor`, as if positions stood closer together.

    Args:
      factor: How many times longer rows become.

    Source: Chen et al. 2023, arXiv 2306.15595, equation 4.
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x"}
    factor: float

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the frequencies divided by the factor."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Stretches slow rotations by `factor`, keeps fast ones, and blends those between.

    With `r = original_length * w / (2 pi)`, the turns that a frequency makes over the rows of the
    first training, and `s = (r - low) / (high - low)` cut to [0, 1],
    `w' = (1 - s) w / factor + s w`.

    Args:
      factor: How many times longer rows become.
      low_frequency_factor: Turns up to which a frequency is stretched whole.
      high_frequency_factor: Turns from which a frequency is kept.
      original_length: Tokens in the rows of the first training.

    Source: Grattafiori et al. 2024, arXiv 2407.21783, section 3.4.2, and the released model code;
      the blend is that of Peng et al. 2023, arXiv 2309.00071, definition 2 ("NTK by parts").
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x", "original_length": "1 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("low_frequency_factor < high_frequency_factor",)
    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the frequencies, slow ones divided by the factor."""
        turns = self.original_length * frequencies / (2 * jnp.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        return (1.0 - kept) * frequencies / self.factor + kept * frequencies


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions: the pair `(x_i, x_{i + R/2})` is turned by the angle `p base^(-2i/R)`.

    Args:
      base: Base of the geometric series of frequencies.
      scaling: Changes the frequencies; None keeps them.
      fraction: Part of the head that is turned: the first R = fraction K elements.

    Source: Su et al. 2021, arXiv 2104.09864, equations 15 and 34; Black et al. 2022,
      arXiv 2204.06745, section 2.1.1 (a part of the head).
    Deviation: Pairs are half a head apart and not neighbours, as in GPT-NeoX and Llama.
    """

    RANGES: ClassVar[dict[str, str]] = {"base": "0 < x", "fraction": "0 < x <= 1"}
    base: float = 10_000.0
    scaling: RotaryScaling | None = None
    fraction: float = 1.0

    def __call__(self, x_BLHK: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Rotate queries or keys.

        Args:
          x_BLHK: [B, L, H, K]; the part that is turned is even.
          positions_BL: int32 [B, L].

        Returns:
          The same shape and type; the angles are computed in float32 or wider.
        """
        half = int(x_BLHK.shape[-1] * self.fraction) // 2
        kind = wide(x_BLHK.dtype)
        frequencies = jnp.asarray(self.base, kind) ** (-jnp.arange(half, dtype=kind) / half)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        angles = (positions_BL[:, :, None].astype(kind) * frequencies)[:, :, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        x = x_BLHK.astype(kind)
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
        return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)
