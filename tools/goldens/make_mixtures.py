"""Make the golden file of tests/layers/experts/test_mixture.py from `transformers`.

The mixture of experts of a tiny Mixtral with random weights is run in float64 by PyTorch, forward
and backward. The file holds its weights under luthier's parameter names, the input, the output and
the gradients of a weighted sum of the output, and the load-balance loss of its router.

Needs torch and transformers, which luthier does not: run it in an environment of its own,

    pip install torch transformers && python tools/goldens/make_mixtures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import MixtralConfig
from transformers.models.mixtral import modeling_mixtral

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "layers" / "experts" / "goldens"
EXPERTS, CHOICES, DIM, HIDDEN, ROWS, LENGTH = 4, 2, 6, 8, 2, 10


def named(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Rename and transpose: the kernels of gate and up are one tensor there, and (out, in)."""
    gate_up = tensors["experts.gate_up_proj"].transpose(1, 2)
    found = {
        "router.logits.projection.kernel": tensors["gate.weight"].T,
        "experts.gate.kernel": gate_up[..., :HIDDEN],
        "experts.up.kernel": gate_up[..., HIDDEN:],
        "experts.down.kernel": tensors["experts.down_proj"].transpose(1, 2),
    }
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    config = MixtralConfig(
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOICES,
        router_jitter_noise=0.0,
        experts_implementation="eager",
    )
    block = modeling_mixtral.MixtralSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(ROWS, LENGTH, DIM, requires_grad=True)
    y = block(x)
    y = y[0] if isinstance(y, tuple) else y
    weights = torch.randn(ROWS, LENGTH, DIM)
    (y * weights).sum().backward()
    logits = x.detach().reshape(-1, DIM) @ block.gate.weight.T
    balance = modeling_mixtral.load_balancing_loss_func((logits,), EXPERTS, CHOICES)
    gradients = {name: parameter.grad for name, parameter in block.named_parameters()}
    arrays = {
        "x": x.detach().numpy(),
        "weights": weights.numpy(),
        "y": y.detach().numpy(),
        "gradient/x": x.grad.numpy(),
        "load_balance": balance.detach().numpy(),
        **{f"parameter/{n}": a for n, a in named(dict(block.named_parameters())).items()},
        **{f"gradient/{n}": a for n, a in named(gradients).items()},
    }
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "mixtral.npz", **arrays)
    print(f"{FOLDER / 'mixtral.npz'}: {(FOLDER / 'mixtral.npz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
