"""Attention whose queries and keys are rotated before anything else is done to them.

Shapes: B rows, L length, D embed, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

import jax

from luthier.layers.attention.multi_head import Attention
from luthier.layers.positions import Tokens


class RotatedFirstAttention(Attention):
    """Multi-head attention that norms or scales queries and keys after their rotation.

    Arguments as for `Attention`; with no `rotary`, or no `query_key`, both are one function.

    Source: Pax (Praxis 1.4.0, `attentions.DotProductAttention`).
    """

    def _placed(
        self, query_BLHK: jax.Array, key_BLGK: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        return self._changed(*self._rotated(query_BLHK, key_BLGK, tokens))
