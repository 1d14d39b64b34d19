"""Random bits on a CPU, as one kernel instead of a loop of many.

JAX keeps the rounds of its generator as a loop when it compiles for a CPU. Each of its operations
becomes a kernel, about ten for every use of a key; a model uses a key for each parameter, and these
kernels took more than half of the time of compiling its initialization. Here the rounds are
unrolled: one kernel, with the same bits.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Threefry-2x32 with 20
  rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

# Private: JAX has no public way to read the lowering that a primitive has on a platform, which
# `install` must know to put it back.
from jax._src.interpreters import mlir as mlir_registry
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_NUM_GROUPS = 5  # of four rounds, with a key added after each


def threefry(
    key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the two words of Threefry-2x32 from a key and a counter of two words each.

    Args:
      key0: First word of the key: uint32, of any shape.
      key1: Second word, of the same shape.
      count0: First word of the counter, of the same shape.
      count1: Second word, of the same shape.
    """
    # Bit by bit what JAX computes (a test compares them): four rounds of add, rotate and xor, five
    # times, with the key schedule of three words added in between.
    keys: Sequence[jax.Array] = (key0, key1, key0 ^ key1 ^ _PARITY)
    x, y = count0 + key0, count1 + key1
    for group in range(_NUM_GROUPS):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(distance)) | (y >> np.uint32(32 - distance))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


_LOWER = mlir.lower_fun(threefry, multiple_results=True)
_replaced: dict[str, Any] = {"rule": None}  # JAX's own rule, once `install` has replaced it


def install() -> Callable[[], None]:
    """Register this lowering of JAX's generator for CPUs; the bits are the same.

    Returns:
      A function that restores JAX's own lowering. Compiled programs stay as they are.
    """
    # `register_lowering` is public, but only the private table has the rule that was registered
    # before, which undoing needs. Installing twice must not take our own rule for JAX's. Undoing
    # works whoever installed it: every function that compiles does.
    rules = mlir_registry._platform_specific_lowerings["cpu"]
    before = rules.get(threefry2x32_p)
    if before is None or getattr(before, "rule", None) is not _LOWER:
        _replaced["rule"] = before
        mlir.register_lowering(threefry2x32_p, _LOWER, platform="cpu")

    def undo() -> None:
        if getattr(rules.get(threefry2x32_p), "rule", None) is not _LOWER:
            return  # it is undone already
        if _replaced["rule"] is None:
            del rules[threefry2x32_p]
        else:
            rules[threefry2x32_p] = _replaced["rule"]

    return undo
