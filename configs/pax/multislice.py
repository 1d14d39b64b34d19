"""Pax's decoders across slices of TPUs: base model A, and GPT-3, with a copy on every slice.

Paper: none; Paxml 1.4.0, `tasks/lm/params/c4_multislice.py`.
Command: luthier train configs.pax.multislice
Hardware: 64 chips of TPU v4 (v4-128) on each slice.
Expected: not measured yet.

Pax runs these with `LIBTPU_INIT_ARGS` of `--xla_jf_spmd_threshold_for_windowed_einsum_mib=0
--xla_tpu_spmd_threshold_for_allgather_cse=10000 --xla_enable_async_all_gather=true
--xla_tpu_enable_latency_hiding_scheduler=true`, and `TPU_MEGACORE=MEGACORE_DENSE`.

Corrected: Pax calls three sizes 22B: they have 21.9, 24.8 and 0.87 billion parameters, as the names
here say. `gpt3_175b` keeps 20 checkpoints, as its misspelt `CHECKPOINT_SAVE_MAX_TO_KEEP` asks.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import durations, layers, parallel, program
from luthier.graph import set_value
from luthier.recipes import decoders
from . import c4, gpt3


def experiment(slices: int = 1, steps: int = c4.STEPS) -> fdl.Config[program.Experiment]:
    """Train 21.9 billion parameters on slices of 64 chips.

    Pax: C4Spmd22BAdam1xv4_128
    Pax: C4Spmd22BAdam2xv4_128(slices=2)
    Pax: C4Spmd22BAdam4xv4_128(slices=4)
    Pax: C4Spmd22BAdam1xv4_128LimitSteps(steps=300)
    Pax: C4Spmd22BAdam2xv4_128LimitSteps(slices=2, steps=300)
    Pax: C4Spmd22BAdam4xv4_128LimitSteps(slices=4, steps=300)
    """
    sizes = {"num_layers": 48, "dim": 6144, "num_heads": 24, "head_dim": 256}
    graph = _base("pax-slices-21p9b", sizes, slices, rows=1024, fsdp=64)
    graph.training.steps = steps
    return graph


def decoder_24p8b(slices: int = 1) -> fdl.Config[program.Experiment]:
    """Train 24.8 billion parameters on slices of 192 chips.

    Pax: C4Spmd22BAdam1xv4_384
    Pax: C4Spmd22BAdam2xv4_384(slices=2)
    """
    sizes = {"num_layers": 24, "dim": 9216, "num_heads": 24, "head_dim": 384}
    return _base("pax-slices-24p8b", sizes, slices, rows=1920, fsdp=192)


def decoder_870m(slices: int = 1, steps: int = c4.STEPS) -> fdl.Config[program.Experiment]:
    """Train 0.87 billion parameters on slices of 4 chips.

    Pax: C4Spmd22BAdam1xv4_8
    Pax: C4Spmd22BAdam2xv4_8(slices=2)
    Pax: C4Spmd22BAdam4xv4_8(slices=4)
    Pax: C4Spmd22BAdam1xv4_8LimitSteps(steps=300)
    Pax: C4Spmd22BAdam2xv4_8LimitSteps(slices=2, steps=300)
    Pax: C4Spmd22BAdam4xv4_8LimitSteps(slices=4, steps=300)
    """
    sizes = {"num_layers": 16, "dim": 2048, "num_heads": 8, "head_dim": 256}
    graph = _base("pax-slices-870m", sizes, slices, rows=64, fsdp=4)
    graph.training.steps = steps
    return graph


def decoder_32b(slices: int = 1) -> fdl.Config[program.Experiment]:
    """Train 32.5 billion parameters on slices of 128 chips, with rows of 2,048 tokens.

    Pax: C4Spmd32BAdam1xv5_256
    Pax: C4Spmd32BAdam2xv5_256(slices=2)
    """
    sizes = {"num_layers": 40, "dim": 8192, "num_heads": 32, "head_dim": 256}
    graph = _base("pax-slices-32b", sizes, slices, rows=256, fsdp=128)
    set_value(graph, "data.length", 2048)
    return graph


def gpt3_175b() -> fdl.Config[program.Experiment]:
    """Train GPT-3 in bfloat16 for 100 steps on two slices of 256 chips.

    Pax: C4SpmdGpt3AdamDataParallel2x16x16
    """
    graph = gpt3.base_175b()
    graph.name, graph.model.dtype = "pax-slices-gpt3-175b", jnp.bfloat16
    graph.training.steps = 100
    set_value(graph, "training.global_batch_size", 256)
    set_value(graph, "parallelism.mesh.tensor", 16)
    graph.parallelism.mesh.fsdp = 16
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, replica=2)
    graph.checkpoints.every = fdl.Config(durations.Steps, 2000)
    graph.checkpoints.keep_latest = 20
    return graph


def _base(name: str, sizes: dict[str, int], slices: int, rows: int, fsdp: int) -> fdl.Config:
    graph = c4.experiment()
    graph.name = name
    graph.model = decoders.pax(vocab_size=32_768, **sizes)
    graph.model.dtype = jnp.bfloat16
    graph.model.stack = fdl.Config(layers.Scanned, remat=fdl.Config(layers.FullRemat))
    set_value(graph, "training.global_batch_size", rows * slices)
    across = fdl.Config(parallel.AcrossSlices, replica=slices)
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, data=1, fsdp=fsdp, across_slices=across)
    return graph
