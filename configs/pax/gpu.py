"""Pax's GPT decoders for GPUs, of 126 million, 5 and 175 billion parameters, on the Pile.

Paper: Gao et al. 2020, "The Pile: An 800GB Dataset of Diverse Text for Language Modeling",
  arXiv:2101.00027; Paxml 1.4.0, `contrib/gpu/scripts_gpu/configs.py`.
Command: luthier train configs.pax.gpu
Hardware: 8 machines of 8 A100.
Expected: not measured yet.

Pax runs these with `XLA_FLAGS` of `--xla_gpu_enable_latency_hiding_scheduler=true
--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_highest_priority_async_stream=true
--xla_gpu_all_reduce_combine_threshold_bytes=51200`.

Corrected: `decoder_5b` drops a tenth of what enters the first layer; Pax does so in front of every
layer, because the setting belongs to the block that it repeats.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import data, layers, parallel, program
from luthier.recipes import published
from . import gpt3


def experiment() -> fdl.Config[program.Experiment]:
    """Train 126 million parameters on 64 GPUs, each with a copy.

    Pax: GPT126M
    Pax: Pile126M
    """
    sizes = {"num_layers": 12, "dim": 768, "num_heads": 12, "head_dim": 64, "vocab_size": 50_304}
    graph = _gpt("pax-gpu-126m", 256, stddev=0.023, **sizes)
    graph.optimizer = published.pax_gpt3_adam(6e-4, warmup_steps=636, decay_end=500_000)
    graph.training.steps = 600_000
    graph.model.stack = fdl.Config(layers.Scanned)
    across = fdl.Config(parallel.AcrossSlices, replica=8)
    graph.parallelism.mesh = fdl.Config(parallel.Mesh, data=1, replica=8, across_slices=across)
    return gpt3.at(graph, evaluation=100, saving=5000, kept=10)


def decoder_5b() -> fdl.Config[program.Experiment]:
    """Train 5 billion parameters on 256 GPUs, with dropout.

    Pax: GPT5B
    Pax: Pile5B
    """
    sizes = {"num_layers": 24, "dim": 4096, "num_heads": 32, "vocab_size": 50_304}
    graph = _gpt("pax-gpu-5b", 2048, stddev=0.01, **sizes)
    graph.model.embedding.dropout = fdl.Partial(layers.Dropout, rate=0.1)
    graph.optimizer = published.pax_gpt3_adam(1.6e-4, warmup_steps=115, decay_end=62_500)
    graph.model.stack.remat = fdl.Config(layers.SaveProjections)
    return gpt3.at(graph, evaluation=100, saving=250, kept=10)


def decoder_175b() -> fdl.Config[program.Experiment]:
    """Train GPT-3 on 256 GPUs.

    Pax: GPT175B
    Pax: Pile175B
    """
    graph = _gpt("pax-gpu-175b", 1536, stddev=0.023, vocab_size=50_257)
    graph.optimizer = published.pax_gpt3_adam(peak=2e-5)
    return graph


def _gpt(name: str, rows: int, stddev: float, **sizes: int) -> fdl.Config:
    graph = gpt3.decoder(name, rows, fsdp=8, tensor=1, max_length=2048, stddev=stddev, **sizes)
    graph.model.dtype, graph.training.steps = jnp.bfloat16, 75_000
    graph.data = _pile("train", graph.data.length, fdl.Config(data.Concatenate))
    validation = _pile("validation", graph.data.length, fdl.Config(data.Unpacked))
    graph.evaluations["validation"].data = validation
    across = fdl.Config(parallel.AcrossSlices, fsdp=32)
    graph.parallelism.mesh.across_slices = across
    return graph


def _pile(split: str, length: object, packing: object) -> fdl.Config[data.Packed]:
    path = "data/the_pile/vocabulary.model"
    records = fdl.Config(data.Tfds, folder="data/the_pile/1.0.0", split=split)
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.Field, records=records, field="text"),
        tokenizer=fdl.Config(data.SentencePiece, path=path, bos_token="</s>", eos_token="</s>"),
        length=length,
        packing=packing,
    )
