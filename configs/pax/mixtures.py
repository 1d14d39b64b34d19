"""Mixtures of experts in Pax, on GPUs: 26.8, 143 and 23 billion parameters.

Paper: Lepikhin et al. 2020, "GShard", arXiv:2006.16668; Du et al. 2021, "GLaM: Efficient Scaling of
  Language Models with Mixture-of-Experts", arXiv:2112.06905; Paxml, `tasks/lm/params/nvidia.py`.
Command: luthier train configs.pax.mixtures
Hardware: 32 GPUs of 80 GB (A100), on which Pax says that it fits 16; those of GLaM 128 of 40 GB.
Expected: not measured yet.

Data as for `nvidia`. Both of Pax's GLaMs say 143 billion parameters; with 8 experts it is 23.
Pax weighs the balance of the load with 1 in `MoELarge`, as nothing sets it. Its share of the load
is that of first choices, in each group of rows; here it is of all choices, in the whole batch, and
an expert's places are counted in each row. `GLaM64B64EProxy` splits 64 experts over 128
devices, which does not divide: here other dimensions are split. `GLaM64B64EProxy_EP` has a
mesh of four sizes and three names; here it has the fourth, `expert`.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import parallel, program, tasks
from luthier.recipes import decoders
from . import nvidia


def experiment() -> fdl.Config[program.Experiment]:
    """Train 26.8 billion parameters, 16 experts in every layer, on 2 machines of 16 GPUs.

    Pax: MoELarge
    """
    sizes = {"dim": 4096, "num_layers": 12, "num_heads": 32, "hidden_dim": 16_384}
    model = decoders.nvidia_experts(num_experts=16, **sizes)
    graph = train("pax-mixture-27b", model, rows=128, mesh={"fsdp": 16})
    graph.model.embedding.position.max_length = graph.data.length
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, fsdp=2)
    graph.task.load_balance = 1.0
    return graph


def glam_143b() -> fdl.Config[program.Experiment]:
    """Train 143 billion parameters, 64 experts in every second layer, on 128 GPUs.

    Pax: GLaM64B64EProxy
    """
    return _glam("pax-glam-143b", num_experts=64, mesh={"fsdp": 128})


def glam_23b() -> fdl.Config[program.Experiment]:
    """Train 23.0 billion parameters, 8 experts in every second layer, on 128 GPUs.

    Pax: GLaM64B64EProxy_EP
    """
    graph = _glam("pax-glam-23b", num_experts=8, mesh={"fsdp": 16, "expert": 8})
    return share_out_whole(graph)


def train(name: str, model: fdl.Partial, rows: int, mesh: dict[str, int]) -> fdl.Config:
    """Train a mixture, with the optimizer and the data of `nvidia`."""
    graph = nvidia.experiment()
    stack, task = graph.model.stack, graph.task
    graph.name, graph.model = name, model
    graph.model.vocab_size = graph.data.vocab_size
    graph.model.dtype, graph.model.stack = jnp.bfloat16, stack
    graph.task = fdl.Config(tasks.Routed, task=task, load_balance=0.01, router_z=None)
    graph.training.global_batch_size = rows
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, **{"data": 1, **mesh})
    return graph


def share_out_whole(graph: fdl.Config) -> fdl.Config:
    """Train with what is of no expert split over the devices of all experts, too."""
    rules = parallel.parameter_rules() | {"embed": ("fsdp", "expert")}
    graph.parallelism.rules = fdl.Config(
        parallel.Rules, parameters=rules, activations=parallel.activation_rules_table()
    )
    return graph


def _glam(name: str, num_experts: int, mesh: dict[str, int]) -> fdl.Config[program.Experiment]:
    sizes = {"dim": 8192, "num_layers": 8, "num_heads": 64, "hidden_dim": 32_768}
    model = decoders.glam(vocab_size=51_200, num_experts=num_experts, **sizes)
    graph = train(name, model, rows=512, mesh=mesh)
    graph.task.task.z_loss = 1e-4
    return graph
