"""NVIDIA's GPTs in Pax, on GPUs with a pipeline: from 3.44 to 175 billion parameters.

Paper: Huang et al. 2018, arXiv:1811.06965, for pipelines; Paxml, `tasks/lm/params/nvidia.py`.
Command: luthier train configs.pax.nvidia_pipelines
Hardware: 16 GPUs of 40 GB (A100); `decoder_175b` 96 of them, `circular_7b` 8.
Expected: not measured yet.

Data as for `nvidia`. Pax names four of these after what they are slices of: NVIDIA40BProxy has
10.1, NVIDIA70BProxy 16.5, NVIDIA116BProxy 29.7 and NVIDIA175BProxy 44.1 billion parameters. Nothing
reads the cosine, the 2,000 steps and the initial scales of NVIDIA_CIRCULAR_REPEAT: `circular_7b` is
what is read. There Pax keeps all products, here those of attention weights are computed again.
"""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import layers, parallel, program, recipes
from luthier.graph import evaluate, get
from luthier.recipes import decoders, published
from . import nvidia


def experiment() -> fdl.Config[program.Experiment]:
    """Train 5.05 billion parameters in 4 stages, 2 copies of 2 GPUs each.

    Pax: NVIDIA5B
    """
    sizes = {"dim": 4096, "num_layers": 24, "num_heads": 32}
    graph = nvidia.decoder("pax-nvidia-5b", 16, {"replica": 2, "tensor": 2}, **sizes)
    return pipeline(graph, stages=4, rows=2)


def decoder_3b() -> fdl.Config[program.Experiment]:
    """Train 3.44 billion parameters in 2 stages, 2 copies of 4 GPUs each.

    Pax: TestSmallConfig
    """
    return _two_stages("pax-nvidia-3b", 32, 2, dim=4096, num_layers=16, num_heads=32)


def decoder_10b() -> fdl.Config[program.Experiment]:
    """Train 10.1 billion parameters, a slice of 40 billion, in 2 stages.

    Pax: NVIDIA40BProxy
    """
    return _two_stages("pax-nvidia-10b-wide", 256, 4, dim=8192, num_layers=12, num_heads=64)


def decoder_16b() -> fdl.Config[program.Experiment]:
    """Train 16.5 billion parameters, a slice of 70 billion, in 2 stages.

    Pax: NVIDIA70BProxy
    """
    return _two_stages("pax-nvidia-16b", 128, 4, dim=8192, num_layers=20, num_heads=64)


def decoder_30b() -> fdl.Config[program.Experiment]:
    """Train 29.7 billion parameters, a slice of 116 billion, in 4 stages of 4 GPUs.

    Pax: NVIDIA116BProxy
    """
    return pipeline(_gpt3("pax-nvidia-30b", 96, num_layers=16, tensor=4), stages=4, rows=2)


def decoder_44b() -> fdl.Config[program.Experiment]:
    """Train 44.1 billion parameters, a slice of 175 billion, in 4 stages of 4 GPUs.

    Pax: NVIDIA175BProxy
    """
    return pipeline(_gpt3("pax-nvidia-44b", 96, num_layers=24, tensor=4), stages=4, rows=1)


def decoder_175b() -> fdl.Config[program.Experiment]:
    """Train 175 billion parameters with Adafactor in 6 stages, each a machine of 16 GPUs.

    Pax: NVIDIA175B
    """
    graph = pipeline(_gpt3("pax-nvidia-175b-stages", 6, num_layers=96, tensor=16), 6, rows=1)
    graph.optimizer = published.nvidia_adafactor()
    graph.parallelism.mesh.stage = 1
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, stage=6)
    return graph


def circular_7b() -> fdl.Config[program.Experiment]:
    """Train 6.57 billion parameters in float32, 4 times around 8 stages.

    Pax: NVIDIA_CIRCULAR_REPEAT
    """
    graph = nvidia.experiment()
    vocab, length = graph.data.vocab_size, graph.data.length
    graph.name, sizes = "pax-nvidia-circular-7b", {"dim": 4096, "num_heads": 32, "head_dim": 128}
    graph.model = decoders.pax(vocab_size=vocab, num_layers=32, **sizes)
    graph.model.block.mlp.activation = jax.nn.relu
    vocab.value, length.value, graph.training.global_batch_size = 32_000, 1024, 8
    graph.parallelism.mesh.replica = 1
    graph.optimizer = published.pax_c4_adam(peak=1.6e-4)
    graph = pipeline(graph, stages=8, rows=1)
    graph.model.stack.schedule = fdl.Config(layers.Circular, repeats=4)
    graph.model.stack.stage_remat = fdl.Config(layers.SaveProjections)
    return graph


def pipeline(graph: fdl.Config, stages: int, rows: int) -> fdl.Config:
    """Train in stages, on microbatches of so many rows."""
    graph.model.stack = fdl.Config(layers.Scanned)  # stages are computed again, not layers
    parts = evaluate(get(graph, "training.global_batch_size")) // rows
    return recipes.pipeline(graph, stages, microbatches=parts)


def _two_stages(name: str, rows: int, part: int, **sizes: int) -> fdl.Config[program.Experiment]:
    graph = nvidia.decoder(name, rows, {"replica": 2, "tensor": 4}, **sizes)
    return pipeline(graph, stages=2, rows=part)


def _gpt3(name: str, rows: int, num_layers: int, tensor: int) -> fdl.Config[program.Experiment]:
    sizes = {"dim": 12_288, "num_layers": num_layers, "num_heads": 96}
    return nvidia.decoder(name, rows, {"tensor": tensor}, **sizes)
