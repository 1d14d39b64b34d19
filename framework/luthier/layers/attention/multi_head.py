"""Multi-head attention with its projections: to the same text, or from one text to another."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from luthier.errors import BadInput, Problem
from luthier.layers.attention.auto import AutoAttention
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.cores import Core
from luthier.layers.attention.masks import SameDocument
from luthier.layers.dropout import DropoutKeys
from luthier.layers.initializers import Initializer, Zeros
from luthier.layers.linear import Linear, jointly
from luthier.layers.norms import RMSNorm
from luthier.layers.parameters import DType, Template, create, value_of, vector, wide
from luthier.layers.positions import Rotary, Tokens
from luthier.parallel import constrain

# Norms and scales of queries and keys, applied before they are rotated and multiplied.
#
# Shapes: B rows, L length, H heads, G key and value heads, K head_dim.


class QueryKey(Protocol):
    """Changes queries and keys between their projections and their rotation."""

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both, of the same shapes and types.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BLGK: Keys [B, L, G, K].

        Returns:
          Queries [B, L, H, K] and keys [B, L, G, K], in the types of the arguments.
        """


class HeadNorms(nnx.Module):
    """Normalizes each head of the queries and of the keys, with one scale for all heads.

    Args:
      norm: Template of both norms.
      head_dim: K.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> norms = layers.HeadNorms(head_dim=8, rngs=nnx.Rngs(0))
      >>> query, key = norms(jnp.ones((1, 3, 4, 8)), jnp.ones((1, 3, 2, 8)))
      >>> query.shape, key.shape
      ((1, 3, 4, 8), (1, 3, 2, 8))

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
        """Return both, normalized over K.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BLGK: Keys [B, L, G, K].

        Returns:
          Queries [B, L, H, K] and keys [B, L, G, K], in the types of the arguments.
        """
        return self.query_norm(query_BLHK), self.key_norm(key_BLGK)


class ProjectionNorms(nnx.Module):
    """Normalizes the queries of all heads together, and the keys likewise.

    Args:
      norm: Template of both norms.
      num_heads: H.
      num_kv_heads: G.
      head_dim: K.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

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
        # One dimension of heads and their elements, heads first: split like the heads. Under a mesh
        # axis on heads the mean square is then summed over devices by the compiler.
        self.query_norm = create(norm, dim=num_heads * head_dim, axes=("heads",), **kinds)
        self.key_norm = create(norm, dim=num_kv_heads * head_dim, axes=("kv_heads",), **kinds)

    def __call__(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both, normalized over all heads and K.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BLGK: Keys [B, L, G, K].

        Returns:
          Queries [B, L, H, K] and keys [B, L, G, K], in the types of the arguments.
        """
        return _flat(self.query_norm, query_BLHK), _flat(self.key_norm, key_BLGK)


class QueryScale(nnx.Module):
    """Scales each dimension of the queries: `q_k softplus(theta_k) / softplus(0)`.

    Args:
      theta: Initializer of theta; zero scales by one.
      head_dim: K.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

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
        """Return the scaled queries, and the keys as they are.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BLGK: Keys [B, L, G, K].

        Returns:
          Queries [B, L, H, K] and keys [B, L, G, K], in the types of the arguments.
        """
        # softplus(0) = log 2. The core keeps its 1 / sqrt(K), which Pax makes part of this scale:
        # the product of both is the same, and a core without this layer is scaled as well.
        theta_K = value_of(self.theta, wide(query_BLHK.dtype))
        scale_K = jax.nn.softplus(theta_K) / jnp.log(jnp.asarray(2.0, theta_K.dtype))
        return query_BLHK * scale_K.astype(query_BLHK.dtype), key_BLGK


def _flat(norm: nnx.Module, x_BLHK: jax.Array) -> jax.Array:
    return norm(x_BLHK.reshape(*x_BLHK.shape[:2], -1)).reshape(x_BLHK.shape)  # type: ignore[operator]


# Multi-head attention with its projections.
#
# Shapes: B rows, L length, D embed, H heads, G key and value heads, K head_dim, S cached length.

QUERY_AXES = ("batch", "length", "heads", "head_dim")
KEY_AXES = ("batch", "length", "kv_heads", "head_dim")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """The keys and values that an attention layer has seen.

    Args:
      key_BSGK: Keys, already rotated, [B, S, G, K].
      value_BSGK: Values [B, S, G, K].
    """

    key_BSGK: jax.Array
    value_BSGK: jax.Array


class Attention(nnx.Module):
    """Multi-head attention; grouped-query where key and value heads are fewer than query heads.

    Args:
      num_heads: H.
      num_kv_heads: G, a divisor of H; None means H.
      head_dim: K; None means D / H.
      projection: Template of the query, key and value projections.
      output: Template of the output projection.
      rotary: Rotates queries and keys by their positions; None means no rotation.
      core: The attention implementation, which also holds the mask; the default is chosen by the
        device, the lengths and what is asked for.
      query_key: Template of a transformation of queries and keys before rotation, such as
        `HeadNorms`; None means none.
      joint: Whether queries, keys and values come from one product, with their three kernels side
        by side (see `jointly`). The parameters are the same, and the results are to rounding.
      sinks: Initializer of the sinks [H]: for each head one more score in the softmax, with the
        value zero, so that a head need not attend to any token; None means no sinks.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Raises:
      BadInput: The heads do not divide evenly, or the core takes no sinks.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> attention = layers.Attention(num_heads=2, dim=8, rngs=nnx.Rngs(0))
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> attention(jnp.ones((1, 3, 8)), tokens).shape
      (1, 3, 8)

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2; Ainslie et al. 2023,
      arXiv 2305.13245; OpenAI 2025, arXiv 2508.10925, section 2.3 (sinks).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    EXECUTION: ClassVar[tuple[str, ...]] = ("joint",)
    RANGES: ClassVar[dict[str, str]] = {
        "num_heads": "1 <= x",
        "num_kv_heads": "1 <= x",
        "head_dim": "1 <= x",
        "dim": "1 <= x",
    }
    RELATIONS: ClassVar[dict[str, str]] = {
        "num_heads % num_kv_heads == 0": "set num_kv_heads to a divisor of num_heads",
        "dim % num_heads == 0 or head_dim is not None": "set head_dim, or change dim or num_heads",
    }

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        projection: Template = Linear,
        output: Template = Linear,
        rotary: Rotary | None = None,
        core: Core = AutoAttention(),
        query_key: Template | None = None,
        joint: bool = False,
        sinks: Initializer | None = None,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # `RELATIONS` say the same of a config; these checks are for modules that are built by hand.
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if head_dim is None:
            if dim % num_heads:
                what = f"dim {dim} does not divide into {num_heads} heads"
                raise BadInput(Problem(what, remedy="set head_dim, or change dim or num_heads"))
            head_dim = dim // num_heads
        if num_heads % self.num_kv_heads:
            what = f"{num_heads} heads cannot share {self.num_kv_heads} key and value heads evenly"
            raise BadInput(Problem(what, remedy="set num_kv_heads to a divisor of num_heads"))
        self.head_dim = head_dim
        self.dtype = dtype
        self.rotary = rotary
        self.core = core
        if sinks is not None and "sinks_H" not in inspect.signature(core.__call__).parameters:
            what = f"{type(core).__name__} takes no sinks"
            remedy = "drop the sinks, or let its __call__ take the keyword sinks_H"
            raise BadInput(Problem(what, "core", "", remedy))
        self.joint = joint
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        heads = {"outputs": (num_heads, head_dim), "output_axes": ("heads", "head_dim")}
        kv_heads = {
            "outputs": (self.num_kv_heads, head_dim),
            "output_axes": ("kv_heads", "head_dim"),
        }
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        # Three kernels and not one of D x (H + 2 G) K: under a mesh axis on heads, a fused kernel
        # would have to be split in three places at once, and query and key heads differ in number.
        # `joint` puts them side by side in the step.
        # The order in which the four are made decides the keys that they are drawn with.
        self.query = create(projection, **embed, **heads, **kinds)
        self.key = create(projection, **embed, **kv_heads, **kinds)
        self.value = create(projection, **embed, **kv_heads, **kinds)
        self.output = create(
            output,
            inputs=(num_heads, head_dim),
            input_axes=("heads", "head_dim"),
            outputs=(dim,),
            output_axes=("embed",),
            **kinds,
        )
        sizes = {"num_heads": num_heads, "num_kv_heads": self.num_kv_heads, "head_dim": head_dim}
        self.query_key = None if query_key is None else create(query_key, **sizes, **kinds)
        by_head = ((num_heads,), ("heads",), param_dtype, rngs)
        self.sinks = None if sinks is None else vector(sinks, *by_head)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Attend within the rows.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the tokens.
          dropout: Keys for the core's dropout of weights; None means no dropout.
          bias: Makes the bias that is added to the scores; None means no bias.

        Returns:
          [B, L, D].
        """
        query_BLHK, key_BLGK, value_BLGK = self._project(x_BLD, tokens)
        sinks = self._sinks(query_BLHK.dtype)
        context_BLHK = self.core(
            query_BLHK, key_BLGK, value_BLGK, tokens, tokens, dropout=dropout, bias=bias, **sinks
        )
        return self._finish(context_BLHK)

    def init_cache(self, batch_size: int, length: int) -> KeyValues:
        """Make an empty cache for `length` tokens in each row.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.

        Returns:
          Keys and values of zeros, [B, length, G, K] each.
        """
        empty = jnp.zeros((batch_size, length, self.num_kv_heads, self.head_dim), self.dtype)
        return KeyValues(empty, empty)

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        cache: KeyValues,
        cached: Tokens,
        start: jax.Array,
        bias: Bias | None = None,
    ) -> tuple[jax.Array, KeyValues]:
        """Attend from new tokens to all that came before, and remember the new ones.

        Args:
          x_BLD: The new tokens [B, L, D].
          tokens: Positions and segments of the new tokens.
          cache: Keys and values of S places.
          cached: Positions and segments of the S places, the new tokens included.
          start: The place of the first new token, an int32 scalar.
          bias: Makes the bias that is added to the scores; None means no bias.

        Returns:
          [B, L, D] and the cache with the new tokens.
        """
        # The cache has a fixed length, so one compiled program serves every step, and `start` is
        # traced. Keys are kept rotated: a rotation depends on a key's own position only. Places
        # that are not filled yet have segment 0 in `cached`, so the mask hides them; the same mask
        # makes the new tokens causal among themselves.
        query_BLHK, key_BLGK, value_BLGK = self._project(x_BLD, tokens)
        write = jax.lax.dynamic_update_slice_in_dim
        cache = KeyValues(
            write(cache.key_BSGK, key_BLGK, start, axis=1),
            write(cache.value_BSGK, value_BLGK, start, axis=1),
        )
        sinks = self._sinks(query_BLHK.dtype)
        context_BLHK = self.core(
            query_BLHK, cache.key_BSGK, cache.value_BSGK, tokens, cached, bias=bias, **sinks
        )
        return self._finish(context_BLHK), cache

    def _sinks(self, dtype: DType) -> dict[str, Any]:
        # A keyword that only layers with sinks use: cores of one's own need not have it.
        return {} if self.sinks is None else {"sinks_H": value_of(self.sinks, wide(dtype))}

    def _project(self, x_BLD: jax.Array, tokens: Tokens) -> tuple[jax.Array, ...]:
        # Constrained where they are made, so that attention runs on sharded heads whatever the
        # core. The names are for policies of remat.
        projections = (self.query, self.key, self.value)
        if self.joint:
            query_BLHK, key_BLGK, value_BLGK = jointly(projections, x_BLD)
        else:
            query_BLHK, key_BLGK, value_BLGK = (project(x_BLD) for project in projections)
        query_BLHK, key_BLGK = self._placed(query_BLHK, key_BLGK, tokens)
        return (
            checkpoint_name(constrain(query_BLHK, QUERY_AXES), "query"),
            checkpoint_name(constrain(key_BLGK, KEY_AXES), "key"),
            checkpoint_name(constrain(value_BLGK, KEY_AXES), "value"),
        )

    def _placed(
        self, query_BLHK: jax.Array, key_BLGK: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        """Norm or scale queries and keys, then rotate them."""
        return self._rotated(*self._changed(query_BLHK, key_BLGK), tokens)

    def _changed(self, query_BLHK: jax.Array, key_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.query_key is None:
            return query_BLHK, key_BLGK
        return self.query_key(query_BLHK, key_BLGK)  # type: ignore[no-any-return]

    def _rotated(
        self, query_BLHK: jax.Array, key_BLGK: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        if self.rotary is None:
            return query_BLHK, key_BLGK
        positions_BL = tokens.positions_BL
        return self.rotary(query_BLHK, positions_BL), self.rotary(key_BLGK, positions_BL)

    def _finish(self, context_BLHK: jax.Array) -> jax.Array:
        context_BLHK = checkpoint_name(constrain(context_BLHK, QUERY_AXES), "attention_context")
        return checkpoint_name(self.output(context_BLHK), "attention_output")


# Attention whose queries and keys are rotated before anything else is done to them.
#
# Shapes: B rows, L length, D embed, H heads, G key and value heads, K head_dim.


class RotatedFirstAttention(Attention):
    """Multi-head attention that norms or scales queries and keys after their rotation.

    Arguments as for `Attention`; with no `rotary`, or no `query_key`, both are one function.

    Source: Pax (Praxis 1.4.0, `attentions.DotProductAttention`).
    """

    def _placed(
        self, query_BLHK: jax.Array, key_BLGK: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        return self._changed(*self._rotated(query_BLHK, key_BLGK, tokens))


# Attention with a bias of its own, where others have one for all layers.
#
# Shapes: B rows, L length, D embed, H heads, S keys.


class OwnBias(nnx.Module):
    """Attention to whose scores this layer alone adds a bias, such as `RelativeBias`.

    A bias that the decoder has for all layers is added as well.

    Args:
      attention: Template of the attention, such as `Attention`.
      bias: Template of the bias.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Du et al. 2021, arXiv 2112.06905, section 4 (relative positions by layer).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        attention: Template,
        bias: Template,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.attention = create(attention, **inherited)
        self.bias = create(bias, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Attend within the rows; see `Attention`.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          dropout: Keys of the tokens at this site; None means no dropout.
          bias: A further bias; added to the layer's own.

        Returns:
          [B, L, D].
        """
        return self.attention(x_BLD, tokens, dropout, self._with(bias))

    def init_cache(self, batch_size: int, length: int) -> KeyValues:
        """Make an empty cache for `length` tokens in each row.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.

        Returns:
          Keys and values of zeros, [B, length, G, K] each.
        """
        return self.attention.init_cache(batch_size, length)

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        cache: KeyValues,
        cached: Tokens,
        start: jax.Array,
        bias: Bias | None = None,
    ) -> tuple[jax.Array, KeyValues]:
        """Attend from new tokens to all that came before; see `Attention.decode`.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          cache: The result of `init_cache` or of the last call.
          cached: Positions and segments of the S places of the cache, the new tokens included.
          start: The place of the first new token, an int32 scalar.
          bias: A further bias; added to the layer's own.

        Returns:
          [B, L, D] and the cache with the new tokens.
        """
        return self.attention.decode(x_BLD, tokens, cache, cached, start, self._with(bias))

    def _with(self, shared: Bias | None) -> Any:
        if shared is None:
            return self.bias  # the module itself: a ring must find its parameters in it
        return lambda query, key: self.bias(query, key) + shared(query, key)


# Attention from one text to another, as from a translation to its source.
#
# Shapes: B rows, L length, S source length, D embed, H heads, K head_dim.


class CrossAttention(nnx.Module):
    """Multi-head attention whose keys and values are made of another text's states.

    A token attends to the source tokens of the segment with its own number, so rows may pack
    several pairs.

    Args:
      num_heads: H.
      head_dim: K; None means D / H.
      projection: Template of the query, key and value projections.
      output: Template of the output projection.
      core: The attention implementation, which also holds the mask; the default is chosen by the
        device, the lengths and what is asked for.
      dim: D, of both texts' states.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Raises:
      BadInput: The heads do not divide evenly.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> attention = layers.CrossAttention(num_heads=2, dim=8, rngs=nnx.Rngs(0))
      >>> attention.remember(jnp.ones((1, 5, 8))).key_BSGK.shape
      (1, 5, 2, 4)

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3, first use.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {
        "num_heads": "1 <= x",
        "head_dim": "1 <= x",
        "dim": "1 <= x",
    }
    RELATIONS: ClassVar[dict[str, str]] = {
        "dim % num_heads == 0 or head_dim is not None": "set head_dim, or change dim or num_heads",
    }

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        projection: Template = Linear,
        output: Template = Linear,
        core: Core = AutoAttention(SameDocument()),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if head_dim is None:
            if dim % num_heads:
                what = f"dim {dim} does not divide into {num_heads} heads"
                raise BadInput(Problem(what, remedy="set head_dim, or change dim or num_heads"))
            head_dim = dim // num_heads
        self.core = core
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        embed = {"inputs": (dim,), "input_axes": ("embed",), "outputs": (num_heads, head_dim)}
        kv_axes = ("kv_heads", "head_dim")
        self.query = create(projection, **embed, output_axes=("heads", "head_dim"), **kinds)
        self.key = create(projection, **embed, output_axes=kv_axes, **kinds)
        self.value = create(projection, **embed, output_axes=kv_axes, **kinds)
        self.output = create(
            output,
            inputs=(num_heads, head_dim),
            input_axes=("heads", "head_dim"),
            outputs=(dim,),
            output_axes=("embed",),
            **kinds,
        )

    def remember(self, source_BSD: jax.Array) -> KeyValues:
        """Make keys and values of the source, once for all tokens to come.

        Args:
          source_BSD: States of the source [B, S, D].

        Returns:
          Keys and values, [B, S, G, K] each.
        """
        # Apart from `__call__`, so that decoding projects the source once and not at each token.
        return KeyValues(
            checkpoint_name(constrain(self.key(source_BSD), KEY_AXES), "key"),
            checkpoint_name(constrain(self.value(source_BSD), KEY_AXES), "value"),
        )

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        memory: KeyValues,
        source: Tokens,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Attend to the source.

        Args:
          x_BLD: States of the tokens, [B, L, D].
          tokens: Positions and segments of the tokens.
          memory: Keys and values of the source, as `remember` returns them.
          source: Positions and segments of the source's tokens.
          dropout: Keys of the tokens at this site; None means no dropout.

        Returns:
          [B, L, D]; what the output projection makes of zero where there is no source.
        """
        query_BLHK = checkpoint_name(constrain(self.query(x_BLD), QUERY_AXES), "query")
        key_BSHK, value_BSHK = memory.key_BSGK, memory.value_BSGK
        context_BLHK = self.core(query_BLHK, key_BSHK, value_BSHK, tokens, source, dropout)
        context_BLHK = checkpoint_name(constrain(context_BLHK, QUERY_AXES), "attention_context")
        return checkpoint_name(self.output(context_BLHK), "attention_output")
