"""Biases that are added to attention scores by the distance from query to key.

Biases are made from positions of queries and keys, never from places in an array, so they hold for
packed rows and for caches alike.

Shapes: B rows, L queries, S keys, H heads.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.declared import counted
from luthier.layers.initializers import Initializer, Normal
from luthier.layers.parameters import DType, value_of, vector, wide
from luthier.layers.positions import Tokens
from luthier.parallel import current_platform, is_explicit

_REMEDY = "raise max_distance, or take fewer buckets"


class Bias(Protocol):
    """Decides what is added to the scores."""

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return the bias, which is added before the softmax, after scale and cap.

        The tokens may be a block of longer rows; see `AttentionMask`.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          Float32 or wider [B, H, L, S].
        """


class Alibi(nnx.Module):
    """Linear biases: `-m_h |p_query - p_key|`, with slopes `m_h = 2^(-8 h / H)`, h = 1 ... H.

    Where H is not a power of two, the slopes are those of the power of two below it, and then every
    second one of twice as many heads. No parameters.

    Args:
      num_heads: H.

    Example:
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> print(layers.Alibi(num_heads=1)(tokens, tokens).round(4))
      [[[[-0.     -0.0039 -0.0078]
         [-0.0039 -0.     -0.0039]
         [-0.0078 -0.0039 -0.    ]]]]

    Source: Press, Smith and Lewis 2021, arXiv 2108.12409, section 3.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar[dict[str, str]] = {"num_heads": "1 <= x"}

    def __init__(self, num_heads: int):
        self.num_heads = num_heads

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return the bias.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          Float32 or wider [B, H, L, S].
        """
        slopes_H = jnp.asarray(_slopes(self.num_heads), wide(jnp.float32))
        distance_BLS = jnp.abs(_offsets(query, key)).astype(slopes_H.dtype)
        return -slopes_H[:, None, None] * distance_BLS[:, None]


class Buckets(Protocol):
    """Sorts the ways from a query to a key into a few classes."""

    @property
    def num_buckets(self) -> int:
        """Number of classes."""

    def __call__(self, offsets_BLS: jax.Array) -> jax.Array:
        """Return the class of each offset, key position minus query position: int32 [B, L, S].

        Args:
          offsets_BLS: Key position minus query position, int32 [B, L, S].

        Returns:
          int32 [B, L, S], from 0.
        """


def _check(exact: int, max_distance: int) -> None:
    if max_distance <= exact:
        what = (
            f"max_distance is {max_distance}, and distances below {exact} have buckets of their own"
        )
        raise BadInput(Problem(what, "max_distance", remedy=_REMEDY))


@dataclasses.dataclass(frozen=True)
class PastBuckets:
    """Buckets for a decoder: the nearer half one by one, the others on a logarithmic scale.

    With `n = max(p_query - p_key, 0)` and `E = num_buckets / 2`: n where n < E, else
    `E + floor(log(n / E) / log(max_distance / E) (num_buckets - E))`, at most the last bucket.

    Args:
      num_buckets: Number of buckets.
      max_distance: Distance from which all keys fall into the last bucket; above half of the
        buckets.

    Raises:
      BadInput: The distance is not above half of the buckets.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.PastBuckets(num_buckets=4)(jnp.array([[[0, -1, -2, -100]]])))
      [[[0 1 2 3]]]

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1, and the released model code.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_buckets": "2 <= x", "max_distance": "1 <= x"}
    RELATIONS: ClassVar[dict[str, str]] = {"num_buckets // 2 < max_distance": _REMEDY}
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        """Refuse what `RELATIONS` refuse in a config: a distance that the nearer half reaches."""
        _check(self.num_buckets // 2, self.max_distance)

    def __call__(self, offsets_BLS: jax.Array) -> jax.Array:
        """Return the bucket of each offset.

        Args:
          offsets_BLS: Key position minus query position, int32 [B, L, S].

        Returns:
          int32 [B, L, S], from 0.
        """
        return _bucket(jnp.maximum(-offsets_BLS, 0), self.num_buckets, self.max_distance)


@dataclasses.dataclass(frozen=True)
class SignedBuckets:
    """Buckets for an encoder: one half for earlier keys, one for later ones; see `PastBuckets`.

    Args:
      num_buckets: Number of buckets of both directions together.
      max_distance: Distance from which all keys of one direction fall into its last bucket; above
        a quarter of the buckets.

    Raises:
      BadInput: The distance is not above a quarter of the buckets.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.SignedBuckets(num_buckets=8)(jnp.array([[[0, -1, 1, 100]]])))
      [[[0 1 5 7]]]

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1, and the released model code.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_buckets": "4 <= x", "max_distance": "1 <= x"}
    RELATIONS: ClassVar[dict[str, str]] = {
        "num_buckets % 2 == 0": "",
        "num_buckets // 4 < max_distance": _REMEDY,
    }
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        """Refuse what `RELATIONS` refuse in a config: a distance that the nearer half reaches."""
        _check(self.num_buckets // 4, self.max_distance)

    def __call__(self, offsets_BLS: jax.Array) -> jax.Array:
        """Return the bucket of each offset.

        Args:
          offsets_BLS: Key position minus query position, int32 [B, L, S].

        Returns:
          int32 [B, L, S], from 0.
        """
        half = self.num_buckets // 2
        bucket = _bucket(jnp.abs(offsets_BLS), half, self.max_distance)
        return bucket + jnp.where(offsets_BLS > 0, half, 0)


class RelativeBias(nnx.Module):
    """A learned number for every head and every class of offsets.

    Args:
      num_heads: H.
      buckets: Sorts offsets into classes: `PastBuckets` for decoders, `SignedBuckets` for encoders.
      table: Initializer of the numbers.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> from flax import nnx
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> bias = layers.RelativeBias(num_heads=2, rngs=nnx.Rngs(0))
      >>> bias(tokens, tokens).shape
      (1, 2, 3, 3)

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_heads": "1 <= x"}

    def __init__(
        self,
        num_heads: int,
        buckets: Buckets = PastBuckets(),
        table: Initializer = Normal(0.02),
        *,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.buckets = buckets
        shape = (buckets.num_buckets, num_heads)
        self.table = vector(table, shape, (None, "heads"), param_dtype, rngs)

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return the bias.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          Float32 or wider [B, H, L, S].
        """
        # In float32 also for its gradient: each of the few numbers sums over all pairs of a bucket.
        table = value_of(self.table, wide(self.table.dtype))
        buckets_BLS = self.buckets(_offsets(query, key))
        # TPUs store rows of 128 numbers. What a lookup finds has the heads last, so that a few of
        # them take the memory of 128; a product has the order that its result is read in. Each sum
        # has one term, so "highest" precision, three parts in bfloat16, gives the table's numbers.
        if current_platform() == "tpu" and not is_explicit():
            chosen_BLSN = jax.nn.one_hot(buckets_BLS, table.shape[0], dtype=table.dtype)
            with counted(active=0, places=1):  # a lookup is none of the model's FLOPs
                return jnp.einsum("BLSN,NH->BHLS", chosen_BLSN, table, precision="highest")
        return table[buckets_BLS].transpose(0, 3, 1, 2)


def _offsets(query: Tokens, key: Tokens) -> jax.Array:
    return key.positions_BL[:, None, :] - query.positions_BL[:, :, None]


def _slopes(num_heads: int) -> list[float]:
    # In double, on the host: the slopes are constants of the model, as in the released code.
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    finer = [2.0 ** (-8.0 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes + finer[: num_heads - power]


def _bucket(distance: jax.Array, num_buckets: int, max_distance: int) -> jax.Array:
    # `maximum` keeps the logarithm off zero for near keys, whose result is not selected: -inf cast
    # to an integer is undefined. Always float32, as in T5's program: in another precision, a
    # distance at the edge of two buckets could fall into the other one.
    # `max_distance` is beyond `exact`, or the second logarithm would not be positive (`_check`).
    exact = num_buckets // 2
    far = jnp.maximum(distance, exact).astype(jnp.float32) / exact
    steps = jnp.log(far) / math.log(max_distance / exact) * (num_buckets - exact)
    coarse = jnp.minimum(exact + steps.astype(jnp.int32), num_buckets - 1)
    return jnp.where(distance < exact, distance, coarse)
