"""The workload of `tools/bench/peers.py` for Kauldron: its Trainer, a model in Flax Linen."""

from __future__ import annotations

import flax.struct
import jax
import numpy as np
from flax import linen as nn
from kauldron import kontext


class Block(nn.Module):
    """A pre-norm block with a GELU MLP."""

    dim: int
    num_heads: int

    @nn.compact
    def __call__(self, x, mask):
        """Return [B, L, D]."""
        attention = nn.MultiHeadDotProductAttention(num_heads=self.num_heads, deterministic=True)
        normed = nn.LayerNorm()(x)
        x = x + attention(normed, normed, mask=mask)
        hidden = nn.gelu(nn.Dense(4 * self.dim)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.dim)(hidden)


@flax.struct.dataclass
class Predictions:
    """What losses read."""

    logits: jax.Array


class LanguageModel(nn.Module):
    """Learned positions, tied embeddings."""

    tokens: kontext.Key = kontext.REQUIRED
    dim: int = 256
    length: int = 256

    @nn.compact
    def __call__(self, tokens):
        """Return logits [B, L, 256]."""
        table = nn.Embed(256, self.dim)
        positions = self.param("positions", nn.initializers.normal(0.02), (self.length, self.dim))
        x, mask = table(tokens) + positions, nn.make_causal_mask(tokens)
        for _ in range(4):
            x = Block(self.dim, 4)(x, mask)
        return Predictions(logits=table.attend(nn.LayerNorm()(x)))


class Rows:
    """Rows of 256 bytes of a file, as Grain asks for them."""

    def __init__(self, path, length=256):
        self.bytes, self.length = np.fromfile(path, np.uint8), length

    def __len__(self):
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        row = self.bytes[start : start + self.length + 1].astype(np.int32)
        return {"tokens": row[:-1], "targets": row[1:, None]}
