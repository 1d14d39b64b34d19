"""Pax's GPT-3 of 175 billion parameters; its pipelines are in `gpt3_pipelines`.

Paper: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165; Paxml 1.4.0,
  `tasks/lm/params/c4.py`.
Command: luthier train configs.pax.gpt3
Hardware: 1,536 chips of TPU v4.
Expected: not measured yet.

Pax stops at 2.69 nats per token on the validation set; here a run ends by its steps. Where Pax's
vocabulary cannot be split over its chips, the table has a few rows more, which stay unused.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax.numpy as jnp

from luthier import durations, layers, parallel, program
from luthier.graph import set_value, value
from luthier.recipes import decoders, published
from . import c4


def experiment() -> fdl.Config[program.Experiment]:
    """Train GPT-3 in float32 on 1,536 chips.

    Pax: C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas
    """
    graph = decoder("pax-gpt3-175b", rows=1536, fsdp=64, tensor=24)
    return at(graph, evaluation=25, saving=100, kept=100)


def base_175b() -> fdl.Config[program.Experiment]:
    """Train GPT-3 with its own vocabulary, which the others fill up to 51,200.

    Pax: C4SpmdGpt3AdamOrgHP
    """
    return decoder("pax-gpt3-base-175b", rows=8, fsdp=4, tensor=2, vocab_size=50_257)


def layers_30b() -> fdl.Config[program.Experiment]:
    """Train 16 layers of GPT-3, 29.8 billion parameters, in bfloat16 on 64 chips.

    Pax: C4SpmdGpt3L16AdamOrgHP
    """
    sizes = {"num_layers": 16, "vocab_size": 50_257}
    graph = decoder("pax-gpt3-layers-30b", rows=192, fsdp=16, tensor=4, **sizes)
    graph.model.dtype = jnp.bfloat16
    return at(graph, evaluation=25_000, saving=100, kept=10)


def decoder(
    name: str, rows: int, fsdp: int, tensor: int, **sizes: Any
) -> fdl.Config[program.Experiment]:
    """Train a GPT-3 of other sizes; the other experiments use it."""
    graph = c4.experiment()
    split = value(tensor, name="tensor")
    sizes = {"vocab_size": 51_200, **sizes}
    graph.name, graph.model = name, decoders.pax_gpt3(**sizes, pad_to_multiple=split)
    graph.model.stack = fdl.Config(layers.Scanned, remat=fdl.Config(layers.FullRemat))
    graph.optimizer = published.pax_gpt3_adam()
    set_value(graph, "data.length", 2048)
    set_value(graph, "training.global_batch_size", rows)
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, data=1, fsdp=fsdp, tensor=split)
    return at(graph, evaluation=100, saving=100, kept=10)


def at(graph: fdl.Config, evaluation: int, saving: int, kept: int) -> fdl.Config:
    """Evaluate and save at these steps, and keep so many."""
    graph.evaluations["validation"].every = fdl.Config(durations.Steps, evaluation)
    graph.checkpoints.every = fdl.Config(durations.Steps, saving)
    graph.checkpoints.keep_latest = kept
    return graph
