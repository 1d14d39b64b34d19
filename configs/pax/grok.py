"""Pax's Grok 1 on GPUs: 316 and 79.5 billion parameters, 8 experts in every layer, for 10 steps.

Paper: none; xAI 2024, "Open Release of Grok-1", for the sizes; Paxml, `tasks/lm/params/nvidia.py`.
Command: luthier train configs.pax.grok
Hardware: 256 GPUs of 80 GB (H100); `grok_80b` 64 and the pipelines 512 of them.
Expected: not measured yet.

Data as for `nvidia`. Sizes are those of the checkpoint that xAI published, but the layers are
Pax's: see `recipes.decoders.grok`. Pax asks to keep queries, keys, values and the attention's
output for the backward pass; the first three have other names there, so that it keeps the output
alone, as is done here. Places of experts are counted as in `mixtures`. Of 512 rows a pipeline
makes 32 parts of 16, which do not fill the 64 devices of a stage.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import layers, parallel, program, recipes
from luthier.recipes import decoders
from . import mixtures


def experiment(steps: int = 10) -> fdl.Config[program.Experiment]:
    """Train 316 billion parameters on 32 machines of 8 GPUs, which split the experts.

    Pax: Grok
    """
    return _train("pax-grok-316b", steps, num_layers=64, rows=256, machines=32)


def grok_80b(steps: int = 10) -> fdl.Config[program.Experiment]:
    """Train 79.5 billion parameters, a quarter of the layers, on 8 machines of 8 GPUs.

    Pax: Grok_Proxy
    """
    return _train("pax-grok-80b", steps, num_layers=16, rows=64, machines=8)


def stages_316b(steps: int = 10) -> fdl.Config[program.Experiment]:
    """Train 316 billion parameters in 8 stages, each of 8 machines of 8 GPUs.

    Pax: Grok_PP
    """
    return _stages(_train("pax-grok-316b-stages", steps, num_layers=64, rows=512, machines=8))


def stages_80b(steps: int = 10) -> fdl.Config[program.Experiment]:
    """Train 79.5 billion parameters in 8 stages, each of 8 machines of 8 GPUs.

    Pax: Grok_Proxy_PP
    """
    return _stages(_train("pax-grok-80b-stages", steps, num_layers=16, rows=512, machines=8))


def _train(
    name: str, steps: int, num_layers: int, rows: int, machines: int
) -> fdl.Config[program.Experiment]:
    model = decoders.grok(num_layers=num_layers)
    graph = mixtures.share_out_whole(mixtures.train(name, model, rows, {"expert": 8}))
    graph.parallelism.mesh.across_slices = fdl.Config(parallel.AcrossSlices, fsdp=machines)
    graph.data.vocab_size.value, graph.data.length.value = 131_072, 8192
    kept = fdl.Config(layers.SaveNamed, names=["attention_output"])
    graph.model.stack = fdl.Config(layers.Scanned, remat=kept)
    graph.task.task.z_loss = 1e-4
    graph.training.steps = steps
    return graph


def _stages(graph: fdl.Config) -> fdl.Config[program.Experiment]:
    kept = graph.model.stack.remat
    graph.model.stack = fdl.Config(layers.Scanned)
    graph = recipes.pipeline(graph, stages=8, microbatches=32)
    graph.model.stack.stage_remat = kept
    graph.parallelism.mesh.stage, graph.parallelism.mesh.across_slices.stage = 1, 8
    return graph
