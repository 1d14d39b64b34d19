"""nanoGPT's training step in PyTorch, over batches and initial weights from files.

`python nanogpt.py DIR HEADS STEPS COMPILE` takes steps over DIR/batches.npy from DIR/weights and
prints what it measured as JSON. bfloat16 by autocast, parameters in float32, the fused kernels of
`scaled_dot_product_attention`, fused AdamW, gradients clipped. Knows nothing of luthier.

Source: Karpathy, nanoGPT, github.com/karpathy/nanoGPT, model.py and train.py.
Deviation: the learning rate is that of the other side (zero at step 0), to compare losses.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

PEAK, WARMUP, SKIPPED = 6e-4, 30, 10  # the first steps compile, and are not timed


class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside the stream."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(dim, 3 * dim), "c_proj": nn.Linear(dim, dim)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(dim, 4 * dim), "c_proj": nn.Linear(4 * dim, dim)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, T, D]."""
        rows, length, dim = x.shape
        q, k, v = (
            part.view(rows, length, self.num_heads, -1).transpose(1, 2)
            for part in self.attn["c_attn"](self.ln_1(x)).split(dim, 2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(rows, length, dim))
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class Model(nn.Module):
    """GPT-2 with tied embeddings; returns the mean loss."""

    def __init__(self, weights: dict[str, torch.Tensor], num_heads: int):
        super().__init__()
        own = {name.removeprefix("transformer."): array for name, array in weights.items()}
        self.wte = nn.Embedding(*own["wte.weight"].shape)
        self.wpe = nn.Embedding(*own["wpe.weight"].shape)
        dim = self.wte.embedding_dim
        num_layers = 1 + max(int(name.split(".")[1]) for name in own if name.startswith("h."))
        self.h = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(dim)
        # The files have kernels as (in, out), and PyTorch as (out, in).
        is_kernel = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        self.load_state_dict({n: a.T if n.endswith(is_kernel) else a for n, a in own.items()})

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens [B, T]."""
        x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def learning_rate(step: int, total: int) -> float:
    """Return a linear rise, then a cosine down to a tenth."""
    if step < WARMUP:
        return PEAK * step / WARMUP
    left = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))
    return PEAK / 10 + (PEAK - PEAK / 10) * left


def main(folder: Path, num_heads: int, steps: int, is_compiled: bool) -> dict[str, object]:
    """Train, and return losses and seconds of a step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    batches = np.load(folder / "batches.npy", mmap_mode="r")
    model = Model(load_file(folder / "weights" / "model.safetensors"), num_heads).to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(groups, PEAK, (0.9, 0.95), weight_decay=0.1, fused=fused)
    run = torch.compile(model) if is_compiled else model
    losses, start, begin = [], 0.0, time.perf_counter()
    for step in range(steps):
        if step == min(SKIPPED, steps - 1):
            start = _now(device)
        tokens = (
            torch.from_numpy(batches[step].astype(np.int64)).pin_memory()
            if fused
            else (torch.from_numpy(batches[step].astype(np.int64)))
        )
        tokens = tokens.to(device, non_blocking=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(batches))
        with torch.autocast(device.type, torch.bfloat16):
            loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    end = _now(device)
    return {
        "step_seconds": (end - start) / (steps - min(SKIPPED, steps - 1)),
        "train_seconds": end - begin,
        "losses": [float(loss) for loss in losses],
        "peak_bytes": torch.cuda.max_memory_allocated() if fused else None,
        "device": torch.cuda.get_device_name() if fused else "cpu",
        "torch": torch.__version__,
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    result = main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "yes")
    print(json.dumps(result))
