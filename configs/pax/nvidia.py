"""NVIDIA's GPTs in Pax, on GPUs without a pipeline: from 1.32 to 175 billion parameters.

Paper: none; Paxml, `tasks/lm/params/nvidia.py`. The sizes are about those of Shoeybi et al. 2019,
  arXiv:1909.08053, and of Brown et al. 2020, arXiv:2005.14165.
Command: luthier train configs.pax.nvidia
Hardware: 16 GPUs of 40 GB (A100); `decoder_175b` 128 of them.
Expected: not measured yet.

They measure speed: rows are synthetic, and nobody published a loss. Pax feeds rows of ones; here
tokens are random, so that the loss ends near ln(vocabulary) and not near 0. Pax computes an initial
scale for the embedding, 0.023, and does not assign it: it stays 1 / sqrt(dim), here too. What Pax
calls `Llama33BProxy` has 25.2 billion parameters, no rotary positions and no gates: `decoder_25b`.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import checkpoint, data, durations, layers, parallel, program, records, tasks
from luthier.graph import value
from luthier.recipes import decoders, published

STEPS = 10_000_000  # as Pax has it where nobody says how long to train


def experiment() -> fdl.Config[program.Experiment]:
    """Train 1.32 billion parameters, a copy on each of 16 GPUs.

    Pax: NVIDIA1_3B
    """
    sizes = {"dim": 2048, "num_layers": 24, "num_heads": 32, "head_dim": 64}
    return decoder("pax-nvidia-1p3b", rows=64, mesh={"replica": 16}, **sizes)


def decoder_8b() -> fdl.Config[program.Experiment]:
    """Train 8.27 billion parameters, 4 copies on 4 GPUs each.

    Pax: NVIDIA8_3B
    """
    sizes = {"dim": 4096, "num_layers": 40, "num_heads": 64, "head_dim": 64}
    return decoder("pax-nvidia-8b", rows=64, mesh={"replica": 4, "tensor": 4}, **sizes)


def decoder_10b() -> fdl.Config[program.Experiment]:
    """Train 10.3 billion parameters on 4 rows a step, 2 copies on 8 GPUs each.

    Pax: NVIDIA10B
    """
    sizes = {"dim": 5120, "num_layers": 32, "num_heads": 40}
    return decoder("pax-nvidia-10b", rows=4, mesh={"replica": 2, "tensor": 8}, **sizes)


def decoder_25b() -> fdl.Config[program.Experiment]:
    """Train 25.2 billion parameters with Adafactor, split over 16 GPUs.

    Pax: Llama33BProxy
    """
    sizes = {"dim": 6656, "num_layers": 60, "num_heads": 52, "hidden_dim": 17_920}
    graph = decoder("pax-nvidia-25b", rows=16, mesh={"fsdp": 16}, vocab_size=32_000, **sizes)
    graph.optimizer = published.nvidia_adafactor()
    return graph


def decoder_175b() -> fdl.Config[program.Experiment]:
    """Train 175 billion parameters with Adafactor, split over 8 machines of 16 GPUs.

    Pax: NVIDIA175B_FSDP
    """
    sizes = {"dim": 12_288, "num_layers": 96, "num_heads": 96}
    graph = decoder("pax-nvidia-175b", rows=128, mesh={"fsdp": 16}, **sizes)
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, fsdp=8)
    graph.optimizer = published.nvidia_adafactor()
    return graph


def decoder(
    name: str, rows: int, mesh: dict[str, int], vocab_size: int = 51_200, **sizes: int
) -> fdl.Config[program.Experiment]:
    """Train a decoder of other sizes; the other experiments use it."""
    length, vocab = value(2048, name="length"), value(vocab_size, name="vocab_size")
    model = decoders.nvidia(vocab_size=vocab, max_length=length, **sizes)
    model.dtype = jnp.bfloat16
    model.stack = fdl.Config(layers.Scanned, remat=fdl.Config(layers.FullRemat))
    return fdl.Config(
        program.Experiment,
        name=name,
        seed=0,
        model=model,
        task=fdl.Config(tasks.LanguageModelling),
        data=fdl.Config(data.Synthetic, vocab_size=vocab, length=length),
        optimizer=published.nvidia_adam(),
        training=fdl.Config(program.Training, steps=STEPS, global_batch_size=rows),
        parallelism=fdl.Config(
            parallel.Parallelism, mesh=fdl.Config(parallel.Mesh, **{"data": 1, **mesh})
        ),
        checkpoints=fdl.Config(
            checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 100_000), keep_latest=10
        ),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console)),
    )
