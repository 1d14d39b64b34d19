"""What is done to queries and keys before they are rotated and multiplied: norms and scales.

Shapes: B rows, L length, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.initializers import Initializer, Zeros
from luthier.layers.norms import RMSNorm
from luthier.layers.parameters import DType, Template, create, value_of, vector, wide


class QueryKey(Protocol):
    """Changes queries and keys between their projections and their rotation."""

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both, of the same shapes and types."""


class HeadNorms(nnx.Module):
    """Normalizes each head of the queries and of the keys, with one scale for all heads.

    Args:
      norm: Template of both norms.
      head_dim: K.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: Henry et al. 2020, arXiv 2010.04245, section 3; as in Gemma 3 and Qwen 3.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("head_dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        norm: Template = RMSNorm,
        *,
        head_dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.query_norm = create(norm, dim=head_dim, axes=("head_dim",), **kinds)
        self.key_norm = create(norm, dim=head_dim, axes=("head_dim",), **kinds)

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both, normalized over K."""
        return self.query_norm(query_BLHK), self.key_norm(key_BLGK)


class ProjectionNorms(nnx.Module):
    """Normalizes the queries of all heads together, and the keys likewise.

    Args:
      norm: Template of both norms.
      num_heads: H.
      num_kv_heads: G.
      head_dim: K.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: OLMo et al. 2024, arXiv 2501.00656, section 3.3.2; Dehghani et al. 2023,
      arXiv 2302.05442, section 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = (
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "dtype",
        "param_dtype",
        "rngs",
    )

    def __init__(
        self,
        norm: Template = RMSNorm,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        # One dimension of heads and their elements, heads first: shared out like the heads.
        self.query_norm = create(norm, dim=num_heads * head_dim, axes=("heads",), **kinds)
        self.key_norm = create(norm, dim=num_kv_heads * head_dim, axes=("kv_heads",), **kinds)

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both, normalized over all heads and K."""
        return _flat(self.query_norm, query_BLHK), _flat(self.key_norm, key_BLGK)


class QueryScale(nnx.Module):
    """Scales each dimension of the queries: `q_k softplus(theta_k) / softplus(0)`.

    Args:
      theta: Initializer of theta; zero scales by one.
      head_dim: K.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: Pax (Praxis 1.4.0, `attentions.PerDimScale`).
    Deviation: The core divides by sqrt(K), which Pax makes a part of this scale.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("head_dim", "param_dtype", "rngs")

    def __init__(
        self,
        theta: Initializer = Zeros(),
        *,
        head_dim: int,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.theta = vector(theta, (head_dim,), ("head_dim",), param_dtype, rngs)

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the scaled queries, and the keys as they are."""
        theta_K = value_of(self.theta, wide(query_BLHK.dtype))
        scale_K = jax.nn.softplus(theta_K) / jnp.log(jnp.asarray(2.0, theta_K.dtype))
        return query_BLHK * scale_K.astype(query_BLHK.dtype), key_BLGK


def _flat(norm: nnx.Module, x_BLHK: jax.Array) -> jax.Array:
    return norm(x_BLHK.reshape(*x_BLHK.shape[:2], -1)).reshape(x_BLHK.shape)  # type: ignore[operator]
