"""Pax's pipelines for clouds: 9.8 and 175 billion parameters, and 2 billion across slices.

Paper: none; Paxml 1.4.0, `tasks/lm/params/lm_cloud.py`.
Command: luthier train configs.pax.cloud_pipelines
Hardware: 64 chips of TPU v4.
Expected: not measured yet.

Tokens are random, as those of `cloud` are, and for the same reason.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import layers, parallel, program, recipes
from luthier.graph import evaluate, set_value
from luthier.recipes import published
from . import c4, cloud


def experiment() -> fdl.Config[program.Experiment]:
    """Train 9.8 billion parameters in float32, in 16 stages with 4 copies.

    Pax: LmCloudSpmdPipeline9B
    """
    graph = cloud.decoder("pax-cloud-pipeline-9b", num_layers=48, dim=4096, rows=512)
    graph.model.dtype = jnp.float32
    graph.parallelism.mesh.replica = 4
    return _pipeline(graph, stages=16, rows=4)


def decoder_175b() -> fdl.Config[program.Experiment]:
    """Train 174 billion parameters in 8 stages, each a machine of 16 GPUs.

    Pax: LmCloudSpmdPipeline175B
    """
    graph = cloud.decoder("pax-cloud-pipeline-175b", num_layers=96, dim=12_288, rows=96)
    set_value(graph, "data.length", 2048)
    graph.parallelism.mesh.tensor = 16
    return _across(_pipeline(graph, stages=8, rows=2))


def slices_2b() -> fdl.Config[program.Experiment]:
    """Train 2.14 billion parameters, with a copy on each of two slices of 4 chips.

    Pax: LmCloudSpmdMultislice2B
    """
    graph = cloud.decoder("pax-cloud-slices-2b", num_layers=18, dim=3072, rows=128, fsdp=4)
    across = fdl.Config(parallel.AcrossSlices, replica=2)
    graph.parallelism.mesh.across_slices = across
    return graph


def stages_2b(repeats: int = 1, rows: int = 4) -> fdl.Config[program.Experiment]:
    """Train 2.14 billion parameters, with a stage on each of two slices of 4 chips.

    Pax: LmCloudSpmdPipelineMultislice2B
    Pax: LmCloudSpmdPipelineMultislice2BCircular(repeats=3, rows=8)
    """
    graph = cloud.decoder("pax-cloud-stages-2b", num_layers=18, dim=3072, rows=128)
    graph.parallelism.mesh.replica = 4
    graph = _across(_pipeline(graph, stages=2, rows=rows))
    graph.model.stack.schedule = fdl.Config(layers.Circular, repeats=repeats)
    return graph


def smallest() -> fdl.Config[program.Experiment]:
    """Train two layers of width 64 on one device: a test.

    Pax: LmCloudSpmdTest
    """
    graph = cloud.decoder("pax-cloud-smallest", num_layers=2, dim=64, rows=4)
    graph.model.block.attention.num_heads.value = 8
    graph.model.block.attention.head_dim.value = 8
    return graph


def layers_166m(steps: int = c4.STEPS) -> fdl.Config[program.Experiment]:
    """Train two layers of width 2,048, 166 million parameters, in float32 on 8 chips.

    Pax: LmCloudSpmdAdam
    Pax: LmCloudSpmdAdamLimitSteps(steps=4000)
    """
    sizes = {"num_layers": 2, "dim": 2048}
    graph = cloud.decoder("pax-cloud-layers-166m", rows=128, fsdp=4, tensor=2, **sizes)
    graph.model.dtype = jnp.float32
    graph.optimizer = published.pax_c4_adam()
    graph.training.steps = steps
    return graph


def _pipeline(graph: fdl.Config, stages: int, rows: int) -> fdl.Config:
    graph.model.stack = fdl.Config(layers.Scanned)  # stages are computed again, not layers
    parts = evaluate(graph.training.global_batch_size) // rows
    return recipes.pipeline(graph, stages, microbatches=parts)


def _across(graph: fdl.Config) -> fdl.Config:
    mesh = graph.parallelism.mesh
    mesh.across_slices = fdl.Config(parallel.AcrossSlices, stage=mesh.stage)
    mesh.stage = 1
    return graph
