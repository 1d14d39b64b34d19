"""Attention from one text to another, as from a translation to its source.

Shapes: B rows, L length, S source length, D embed, H heads, K head_dim.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from luthier.errors import BadInput, Problem
from luthier.layers.attention.cores import Core, EinsumAttention
from luthier.layers.attention.masks import SameDocument
from luthier.layers.attention.multi_head import KEY_AXES, QUERY_AXES, KeyValues
from luthier.layers.dropout import DropoutKeys
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens
from luthier.parallel import constrain


class CrossAttention(nnx.Module):
    """Multi-head attention whose keys and values are made of another text's states.

    A token attends to the source tokens of the segment with its own number, so rows may pack
    several pairs.

    Args:
      num_heads: H.
      head_dim: K; None means D / H.
      projection: Template of the query, key and value projections.
      output: Template of the output projection.
      core: What attends; it also holds the mask.
      dim: D, of both texts' states.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Raises:
      BadInput: The heads do not divide evenly.

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
        core: Core = EinsumAttention(SameDocument()),
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
        """Make keys and values of the source's states [B, S, D], once for all tokens to come."""
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
          memory: What `remember` made of the source.
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
