"""Toy NNX modules (this imports flax)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class Positional(nnx.Module):
    """A module whose size its parent passes by position."""

    INHERITED = ("dim",)

    def __init__(self, dim: int, /, scale: float = 1.0, *, rngs: nnx.Rngs):
        self.dim = dim


class Dense(nnx.Module):
    INHERITED: ClassVar[tuple[str, ...]] = ("dim",)

    def __init__(self, dim: int, out: int, use_bias: bool = True, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(dim, out, use_bias=use_bias, rngs=rngs)


class Net(nnx.Module):
    def __init__(
        self,
        dim: int,
        block: Callable[..., nnx.Module],
        activation: Callable[..., Any] = nnx.relu,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        self.block = block(dim, rngs=rngs)


class Bare(nnx.Module):
    pass
