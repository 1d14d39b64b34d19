"""Pax's Llama 2 on GPUs: 6.69, 12.95 and 68.9 billion parameters, for 100 steps.

Paper: Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models",
  arXiv:2307.09288; Paxml, `tasks/lm/params/nvidia.py`.
Command: luthier train configs.pax.llama
Hardware: 16 GPUs of 80 GB; `llama_70b` 64 of them.
Expected: not measured yet.

Data as for `nvidia`. Layers are those of Llama 2, and the rest is Pax's: a vocabulary of 51,200
in place of 32,000, an embedding that is tied and scaled by sqrt(dim), logits capped at 30, and
biases in attention and feed-forward layers. `recipes.decoders.llama2_7b` is Llama 2 itself.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import parallel, program
from luthier.recipes import decoders
from . import nvidia


def experiment(steps: int = 100) -> fdl.Config[program.Experiment]:
    """Train 6.69 billion parameters, split over 16 GPUs.

    Pax: Llama2_7B
    """
    sizes = {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 11_008}
    return _train("pax-llama-7b", steps, rows=16, num_kv_heads=32, **sizes)


def llama_13b(steps: int = 100) -> fdl.Config[program.Experiment]:
    """Train 12.95 billion parameters, split over 16 GPUs.

    Pax: Llama2_13B
    """
    sizes = {"dim": 5120, "num_layers": 40, "num_heads": 40, "hidden_dim": 13_824}
    return _train("pax-llama-13b", steps, rows=16, num_kv_heads=40, **sizes)


def llama_70b(steps: int = 100) -> fdl.Config[program.Experiment]:
    """Train 68.9 billion parameters, split over 4 machines of 16 GPUs.

    Pax: Llama2_70B
    """
    sizes = {"dim": 8192, "num_layers": 80, "num_heads": 64, "hidden_dim": 28_672}
    graph = _train("pax-llama-70b", steps, rows=64, num_kv_heads=8, **sizes)
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, fsdp=4)
    return graph


def _train(name: str, steps: int, rows: int, **sizes: int) -> fdl.Config[program.Experiment]:
    graph = nvidia.experiment()
    stack = graph.model.stack
    graph.name, graph.model = name, decoders.nvidia_llama(**sizes)
    graph.model.vocab_size = graph.data.vocab_size
    graph.model.dtype, graph.model.stack = jnp.bfloat16, stack
    graph.data.length.value = 4096
    graph.training.steps, graph.training.global_batch_size = steps, rows
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, data=1, fsdp=16)
    return graph
