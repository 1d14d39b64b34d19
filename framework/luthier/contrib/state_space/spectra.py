"""First values of a diagonal state matrix and of its step sizes. Shapes: N states.

A spectrum holds the states of positive frequency only: the others are their conjugates, and are
accounted for by twice the real part of the output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

DType = Any


class Spectrum(Protocol):
    """The first eigenvalues of a state matrix."""

    def __call__(self, num_states: int) -> np.ndarray:
        """Return the eigenvalues.

        Args:
          num_states: Number of states, N.

        Returns:
          complex128 [N], real parts negative, imaginary parts positive.
        """


@dataclasses.dataclass(frozen=True)
class LinearSpectrum:
    r"""S4D-Lin: $-\frac{1}{2} + i \pi n$.

    Source: Gu et al. 2022, arXiv:2206.11893, equation 9.
    """

    def __call__(self, num_states: int) -> np.ndarray:
        """Return the eigenvalues of `num_states` states.

        Args:
          num_states: Number of states, N.

        Returns:
          complex128 [N], real parts negative, imaginary parts positive.
        """
        return -0.5 + 1j * np.pi * np.arange(num_states)


@dataclasses.dataclass(frozen=True)
class InverseSpectrum:
    r"""S4D-Inv: $-\frac{1}{2} + i \frac{N}{\pi} (\frac{N}{2n + 1} - 1)$, N counting conjugates too.

    Source: Gu et al. 2022, arXiv:2206.11893, equation 8.
    """

    def __call__(self, num_states: int) -> np.ndarray:
        """Return the eigenvalues of `num_states` states.

        Args:
          num_states: Number of states, N.

        Returns:
          complex128 [N], real parts negative, imaginary parts positive.
        """
        total = 2 * num_states
        order = np.arange(num_states)
        return -0.5 + 1j * total / np.pi * (total / (2 * order + 1) - 1)


@dataclasses.dataclass(frozen=True)
class HippoNormal:
    r"""The eigenvalues of the normal part of HiPPO-LegS, in equal blocks.

    $$ A_{nk} = -\tfrac{1}{2} \delta_{nk} - \operatorname{sgn}(n - k)
       \sqrt{(n + \tfrac{1}{2})(k + \tfrac{1}{2})} $$

    Args:
      num_blocks: Equal blocks along the diagonal.

    Source: Gu et al. 2021, arXiv:2111.00396, equation 9; Smith et al. 2022, arXiv:2208.04933,
      section 4.3 and appendix B.1.1.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_blocks": "1 <= x"}
    num_blocks: int = 1

    def __call__(self, num_states: int) -> np.ndarray:
        """Return the eigenvalues of `num_states` states, which the blocks divide.

        Args:
          num_states: Number of states, N.

        Returns:
          complex128 [N], real parts negative, imaginary parts positive.
        """
        # HiPPO-LegS is a normal matrix plus one of rank 1; the normal part is -1/2 I plus a skew
        # one, whose eigenvalues are imaginary. -i times a skew-symmetric matrix is Hermitian:
        # `eigvalsh` gives real frequencies exactly in pairs, where a general solver would leave
        # real parts of the size of rounding. Computed once, in float64, when parameters are made.
        size = 2 * num_states // self.num_blocks
        root = np.sqrt(np.arange(size) + 0.5)
        skew = -np.sign(np.subtract.outer(np.arange(size), np.arange(size))) * np.outer(root, root)
        frequencies = np.linalg.eigvalsh(-1j * skew)  # of a Hermitian matrix: real, in pairs
        block = -0.5 + 1j * frequencies[frequencies > 0]
        return np.tile(block, self.num_blocks)


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """Initializer of log step sizes: uniform between the logs of two bounds.

    Args:
      smallest: Smallest step.
      largest: Largest step.

    Source: Gu et al. 2021, arXiv:2111.00396, appendix B.2 (0.001 to 0.1).
    """

    RANGES: ClassVar[dict[str, str]] = {"smallest": "0 < x", "largest": "0 < x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("smallest <= largest",)
    smallest: float = 0.001
    largest: float = 0.1

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return the logs of step sizes.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        # Uniform in the logarithm: time scales of several orders of magnitude are equally covered.
        unit = jax.random.uniform(key, tuple(shape), jnp.float32)
        low, high = math.log(self.smallest), math.log(self.largest)
        return (low + unit * (high - low)).astype(dtype)
