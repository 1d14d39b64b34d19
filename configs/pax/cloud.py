"""Pax's decoders for weak scaling on clouds, from 2 to 1,024 billion parameters.

Paper: none; Paxml 1.4.0, `tasks/lm/params/lm_cloud.py`, and the last two of `c4.py`.
Command: luthier train configs.pax.cloud
Hardware: 4 chips of TPU v4; the others from 64 to 2,048.
Expected: not measured yet.

Pax published the use of the peak of TPU v4, by chips: 16B on 32 (a model of `c4`) 42.5%, 32B
on 64 42.3%, 128B on 256 48.4%, 256B on 512 53.1%, 512B on 1,024 48.9%, 1024B on 2,048 53.6%.

They measure speed: Pax feeds them with rows of ones. Here tokens are random, so that the loss ends
near ln(vocabulary) and not near 0, and there is nothing to evaluate. Heads have 128 elements.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import data, durations, layers, parallel, program
from luthier.graph import set_value, value
from luthier.recipes import decoders, published
from . import c4


def experiment(steps: int = c4.STEPS) -> fdl.Config[program.Experiment]:
    """Train 2.14 billion parameters on 4 chips.

    Pax: LmCloudSpmd2B
    Pax: LmCloudSpmd2BLimitSteps(steps=300)
    """
    graph = decoder("pax-cloud-2b", num_layers=18, dim=3072, rows=32, fsdp=4)
    graph.training.steps = steps
    return graph


def decoder_32b() -> fdl.Config[program.Experiment]:
    """Train 32.5 billion parameters on 64 chips.

    Pax: LmCloudSpmd32B
    """
    graph = decoder("pax-cloud-32b", num_layers=40, dim=8192, rows=512, fsdp=16, tensor=4)
    graph.model.stack.remat = fdl.Config(layers.SaveNamed, names=KEPT)
    return graph


def decoder_64b() -> fdl.Config[program.Experiment]:
    """Train 64.5 billion parameters on 128 chips.

    Pax: LmCloudSpmd64B
    """
    graph = decoder("pax-cloud-64b", num_layers=51, dim=10_240, rows=512, fsdp=16, tensor=8)
    graph.model.stack.remat = fdl.Config(layers.SaveNamed, names=KEPT)
    return graph


def decoder_128b() -> fdl.Config[program.Experiment]:
    """Train 129 billion parameters on 256 chips.

    Pax: LmCloudSpmd128B
    """
    return decoder("pax-cloud-128b", num_layers=71, dim=12_288, rows=1024, fsdp=64, tensor=4)


def decoder_256b() -> fdl.Config[program.Experiment]:
    """Train 258 billion parameters on 512 chips.

    Pax: LmCloudSpmd256B
    """
    return decoder("pax-cloud-256b", num_layers=80, dim=16_384, rows=2048, fsdp=64, tensor=8)


def decoder_512b() -> fdl.Config[program.Experiment]:
    """Train 514 billion parameters on 1,024 chips.

    Pax: LmCloudSpmd512B
    """
    return decoder("pax-cloud-512b", num_layers=102, dim=20_480, rows=4096, fsdp=64, tensor=16)


def decoder_1024b() -> fdl.Config[program.Experiment]:
    """Train 1,030 billion parameters on 2,048 chips.

    Pax: LmCloudSpmd1024B
    """
    return decoder("pax-cloud-1024b", num_layers=142, dim=24_576, rows=4096, fsdp=256, tensor=8)


KEPT = ["attention_context", "attention_output"]


def decoder(
    name: str, num_layers: int, dim: int, rows: int, fsdp: int = 1, tensor: int = 1
) -> fdl.Config[program.Experiment]:
    """Train a decoder of other sizes; the other experiments use it."""
    graph = c4.experiment()
    length, vocab = value(1024, name="length"), value(32_000, name="vocab_size")
    sizes = {"num_layers": num_layers, "dim": dim, "num_heads": dim // 128, "head_dim": 128}
    graph.name, graph.model = name, decoders.pax(vocab_size=vocab, **sizes)
    graph.model.dtype = jnp.bfloat16
    graph.data = fdl.Config(data.Synthetic, vocab_size=vocab, length=length)
    graph.evaluations = {}
    graph.model.stack = fdl.Config(layers.Scanned, remat=fdl.Config(layers.FullRemat))
    graph.optimizer = published.pax_c4_adam(peak=2.5e-4)
    set_value(graph, "training.global_batch_size", rows)
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, data=1, fsdp=fsdp, tensor=tensor)
    graph.checkpoints.every = fdl.Config(durations.Steps, 5000)
    return graph
