"""The models that are measured, for both sides alike. Imports nothing that is not in Python."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """A language model.

    Attributes:
      kind: `gpt2` (LayerNorm, GELU, biases, learned positions) or `llama` (RMSNorm, gated MLP,
        rotary positions, grouped queries); both with tied embeddings.
      vocab_size: Tokens.
      dim: Size of the residual stream.
      num_layers: Blocks.
      num_heads: Query heads.
      num_kv_heads: Key and value heads.
      hidden_dim: Of the MLP.
      tokens: In a batch, if nothing else is asked for.
      chunks: That the loss is computed in; one where the logits of a batch fit in memory, because
        chunks are computed twice.
    """

    kind: str
    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_dim: int
    tokens: int
    chunks: int

    @property
    def parameters(self) -> int:
        """The number of parameters, but for learned positions."""
        head = self.dim // self.num_heads
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.num_kv_heads * head
        if self.kind == "llama":
            block = attention + 3 * self.dim * self.hidden_dim + 2 * self.dim
            return self.vocab_size * self.dim + self.num_layers * block + self.dim
        biases = 4 * self.dim + self.hidden_dim + self.dim
        block = attention + 2 * self.dim * self.hidden_dim + biases + 4 * self.dim
        return self.vocab_size * self.dim + self.num_layers * block + 2 * self.dim

    def palm_flops(self, length: int) -> int:
        """Return FLOPs of training by one token: `6 N + 12 L H Q T`, as PaLM and nanoGPT count.

        Args:
          length: T.

        Source: Chowdhery et al. 2022, arXiv 2204.02311, appendix B.
        """
        return 6 * self.parameters + 12 * self.num_layers * self.dim * length


SHAPES = {
    "gpt2-124m": Shape("gpt2", 50_304, 768, 12, 12, 12, 3072, 32_768, 1),
    "gpt2-350m": Shape("gpt2", 50_304, 1024, 24, 16, 16, 4096, 16_384, 1),
    "gpt2-1b": Shape("gpt2", 50_304, 2048, 24, 16, 16, 8192, 16_384, 1),
    "llama32-1b": Shape("llama", 128_256, 2048, 16, 32, 8, 8192, 16_384, 8),
    "toy-gpt2": Shape("gpt2", 512, 64, 2, 4, 4, 256, 512, 2),
    "toy-llama": Shape("llama", 512, 64, 2, 4, 2, 192, 512, 2),
}
LENGTHS = (1024, 2048, 4096, 8192)
NUM_DOCUMENTS = 8  # in a packed row
MAX_DOCUMENTS = 16  # that the kernel is told


def ends(length: int, row: int) -> list[int]:
    """Return where the documents of a packed row end: uneven, other in each row, the same always.

    Args:
      length: Of the row.
      row: Its number.
    """
    parts = [1 + (7 * row + 5 * i * i + 3 * i) % 11 for i in range(NUM_DOCUMENTS)]
    total, found, so_far = sum(parts), [], 0
    for part in parts[:-1]:
        so_far += part
        found.append(length * so_far // total)
    return [*found, length]
