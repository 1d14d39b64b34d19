"""Pax's GPT-3 in pipelines: of 175 billion parameters, also by rules of MLPerf, and a small one.

Paper: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165; Paxml 1.4.0,
  `tasks/lm/params/c4.py`.
Command: luthier train configs.pax.gpt3_pipelines
Hardware: 768 chips of TPU v4.
Expected: not measured yet.

Pax published the loss of `decoder_2p9b`, near 3.08 nats per token after 19,000 steps, on 64 chips.

Corrected: `experiment` cuts batches into microbatches of 8 rows. Pax has 2, because its setting is
misspelt (`MICROBATCH_SIAZE`) and nothing reads it. `decoder_2p9b` has the 2.93 billion parameters
that its sizes give; Pax calls it 1.3B.
"""

from __future__ import annotations

import math

import fiddle as fdl
import jax.numpy as jnp

from luthier import layers, program, recipes
from luthier.graph import evaluate
from luthier.recipes import published
from . import gpt3


def experiment() -> fdl.Config[program.Experiment]:
    """Train GPT-3 in 8 stages on 768 chips.

    Pax: C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas
    """
    graph = gpt3.decoder("pax-gpt3-pipeline-175b", rows=1536, fsdp=8, tensor=12)
    graph = _pipeline(graph, stages=8, rows=8)
    return gpt3.at(graph, evaluation=25, saving=50, kept=100)


def base_175b() -> fdl.Config[program.Experiment]:
    """Train GPT-3 with its own vocabulary in two stages.

    Pax: C4SpmdPipelineGpt3AdamOrgHP
    """
    sizes = {"vocab_size": 50_257}
    graph = gpt3.decoder("pax-gpt3-pipeline-base-175b", rows=8, fsdp=2, tensor=2, **sizes)
    return _pipeline(graph, stages=2, rows=2)


def decoder_2p9b() -> fdl.Config[program.Experiment]:
    """Train 2.93 billion parameters in bfloat16, in two stages on 8 chips.

    Pax: C4SpmdPipelineGpt3SmallAdam8Replicas
    """
    sizes = {"num_layers": 24, "dim": 3072, "num_heads": 24}
    graph = gpt3.decoder("pax-gpt3-pipeline-2p9b", rows=512, fsdp=2, tensor=2, **sizes)
    graph.model.dtype, graph.optimizer = jnp.bfloat16, published.pax_gpt3_adam(peak=2e-4)
    graph = _pipeline(graph, stages=2, rows=8)
    return gpt3.at(graph, evaluation=10, saving=200, kept=1000)


def mlperf(
    rows: int = 1536, stages: int = 8, tensor: int = 12, every: int = 16
) -> fdl.Config[program.Experiment]:
    """Train GPT-3 by the rules of MLPerf: the rate and its schedule follow from the batch.

    Pax: C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas
    Pax: C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas(rows=2048, tensor=8, every=12)
    Pax: C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas(rows=3072, stages=4, every=8)
    Pax: C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas(rows=4096, tensor=16, every=6)
    Pax: C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas(rows=8192, stages=4, tensor=16, every=3)
    """
    graph = gpt3.decoder(f"pax-gpt3-mlperf-{rows}", rows, 64 // stages, tensor)
    warmup, end = math.ceil(265 * 1536 / rows), math.ceil(108_600 * 1536 / rows)
    graph.optimizer = published.pax_gpt3_adam(2e-5 if rows <= 3584 else 3e-5, warmup, end)
    graph = _pipeline(graph, stages, rows=64 // stages)
    return gpt3.at(graph, every, saving=2 * every, kept=100)


def _pipeline(graph: fdl.Config, stages: int, rows: int) -> fdl.Config:
    graph.model.stack = fdl.Config(layers.Scanned)  # stages are computed again, not layers
    parts = evaluate(graph.training.global_batch_size) // rows
    return recipes.pipeline(graph, stages, microbatches=parts)
