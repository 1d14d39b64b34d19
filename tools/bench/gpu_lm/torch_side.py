"""The side of PyTorch: a plain training step as its users write it, compiled by `torch.compile`.

bfloat16 by autocast, parameters in float32, attention by `scaled_dot_product_attention` (its flash
kernels), AdamW in one kernel, gradients clipped. Rows are one document each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import serving
import shapes
import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention with groups of heads that share keys and values."""

    def __init__(self, shape: shapes.Shape, bias: bool):
        super().__init__()
        self.heads, self.kv_heads = shape.num_heads, shape.num_kv_heads
        self.size = shape.dim // shape.num_heads
        width = (self.heads + 2 * self.kv_heads) * self.size
        self.inward = nn.Linear(shape.dim, width, bias=bias)
        self.outward = nn.Linear(shape.dim, shape.dim, bias=bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        """Attend within rows [B, T, D]."""
        rows, length, dim = x.shape
        sizes = [n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)]
        query, key, value = (
            part.view(rows, length, -1, self.size).transpose(1, 2)
            for part in self.inward(x).split(sizes, 2)
        )
        if angles is not None:
            query, key = _rotated(query, angles), _rotated(key, angles)
        is_shared = self.heads != self.kv_heads
        found = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=is_shared
        )
        return self.outward(found.transpose(1, 2).reshape(rows, length, dim))


class Mlp(nn.Module):
    """GELU between two maps, or a gate."""

    def __init__(self, shape: shapes.Shape, is_gated: bool):
        super().__init__()
        self.is_gated = is_gated
        width = (1 + is_gated) * shape.hidden_dim
        self.inward = nn.Linear(shape.dim, width, bias=not is_gated)
        self.outward = nn.Linear(shape.hidden_dim, shape.dim, bias=not is_gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, T, D]."""
        if self.is_gated:
            gate, up = self.inward(x).chunk(2, -1)
            return self.outward(functional.silu(gate) * up)
        return self.outward(functional.gelu(self.inward(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside the stream."""

    def __init__(self, shape: shapes.Shape):
        super().__init__()
        is_llama = shape.kind == "llama"
        norm = nn.RMSNorm if is_llama else nn.LayerNorm
        self.first, self.second = norm(shape.dim, eps=1e-5), norm(shape.dim, eps=1e-5)
        self.attention, self.mlp = Attention(shape, not is_llama), Mlp(shape, is_llama)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        """Map [B, T, D]."""
        x = x + self.attention(self.first(x), angles)
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    """A language model with tied embeddings; returns the mean loss."""

    def __init__(self, shape: shapes.Shape, length: int):
        super().__init__()
        is_llama = shape.kind == "llama"
        self.table = nn.Embedding(shape.vocab_size, shape.dim)
        self.places = None if is_llama else nn.Embedding(length, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        norm = nn.RMSNorm if is_llama else nn.LayerNorm
        self.norm = norm(shape.dim, eps=1e-5)
        size = shape.dim // shape.num_heads
        rates = 500_000.0 ** (-torch.arange(0, size, 2) / size)
        turned = torch.outer(torch.arange(length), rates)
        self.register_buffer("angles", turned if is_llama else None, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = 1 / math.sqrt(2 * shape.num_layers) if "outward" in name else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens [B, T]."""
        x = self.table(inputs)
        if self.places is not None:
            x = x + self.places.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x, self.angles)
        logits = functional.linear(self.norm(x), self.table.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    one, other = x.float().chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    turned = torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1)
    return turned.type_as(x)


class Side:
    """A model with its optimizer and a batch.

    Args:
      settings: `shape`, `length`, `rows`, `compile`.
    """

    def __init__(self, settings: Mapping[str, Any]):
        shape, length = shapes.SHAPES[settings["shape"]], settings["length"]
        self.is_cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.is_cuda else "cpu")
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        with torch.device(self.device):
            self.model = Model(shape, length)
            tokens = torch.randint(0, shape.vocab_size, (settings["rows"], length + 1))
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.run = torch.compile(self.model) if settings["compile"] else self.model
        start = time.perf_counter()
        self.steps(2)
        self.compile_seconds = time.perf_counter() - start

    def ready(self, _: int) -> dict[str, Any]:
        """Return what is known before the first step; compiling ends with the second."""
        name = torch.cuda.get_device_name() if self.is_cuda else "cpu"
        learned = sum(p.numel() for p in self.model.parameters())
        return {
            "device": name,
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
            "compile_seconds": self.compile_seconds,
            "parameters": learned,
        }

    def steps(self, number: int) -> dict[str, Any]:
        """Take steps; return the seconds of each, on average, and the last loss."""
        start, loss = time.perf_counter(), None
        for _ in range(number):
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.run(self.inputs, self.targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        seconds = (time.perf_counter() - start) / number
        peak = torch.cuda.max_memory_allocated() if self.is_cuda else None
        return {"seconds": seconds, "peak_bytes": peak, "loss": value}


def make(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what answers."""
    side = Side(settings)
    return {"ready": side.ready, "steps": side.steps}


if __name__ == "__main__":
    serving.serve(make)
