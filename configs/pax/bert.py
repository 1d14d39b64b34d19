"""Pax's BERTs: 4.9 million parameters, and 100 and 199 billion.

Paper: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers",
  arXiv:1810.04805; Paxml, `tasks/lm/params/bert.py`.
Command: luthier train configs.pax.bert
Hardware: 8 chips of TPU (v2 or v3, 2 x 2); `bert_100b` 512 of them.
Expected: not measured yet.

Pax published that the smallest has 4,919,360 parameters, which it has here, and 47.58 GFLOPs.
Layers are those of its decoders: see `recipes.encoders.pax_bert`. The text is that of MLPerf, which
is not public; rows here are synthetic. It has 30,522 tokens, of which 103 hides others, in
vocabularies of 32,000. The large ones ask to keep the products with parameters for the backward
pass, but Pax does so only where layers are scanned, and there they are not; here they are.
"""

from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp

from luthier import checkpoint, data, durations, layers, models, parallel, program, records, tasks
from luthier.graph import value
from luthier.recipes import encoders, published

STEPS = 10_000_000  # as Pax has it where nobody says how long to train


def experiment() -> fdl.Config[program.Experiment]:
    """Train 4.92 million parameters, a copy on each of 8 chips.

    Pax: BertAdamL4H128
    """
    sizes = {"dim": 128, "num_layers": 4, "num_heads": 8, "head_dim": 16}
    graph = _train("pax-bert-5m", encoders.pax_bert(**sizes), rows=64, mesh={"data": 8})
    # There are three kernels for queries, keys and values, and not one.
    graph.model.block.attention.projection = graph.model.block.attention.output
    graph.optimizer = published.pax_c4_adam()
    return graph


def bert_5m_adafactor() -> fdl.Config[program.Experiment]:
    """Train 4.92 million parameters with Adafactor, split over 8 chips.

    Pax: BertSpmdL4H128
    """
    sizes = {"dim": 128, "num_layers": 4, "num_heads": 8, "head_dim": 16}
    mesh = {"data": 1, "fsdp": 4, "tensor": 2}
    graph = _train("pax-bert-5m-adafactor", encoders.pax_bert(**sizes), rows=32, mesh=mesh)
    graph.optimizer.weight_decay = 1e-3
    return graph


def bert_100b(rows: int = 2048, tensor: int = 8) -> fdl.Config[program.Experiment]:
    """Train 100 billion parameters on 512 chips.

    Pax: BertSpmdL33H12kBiggerBatch
    Pax: BertSpmdL33H12kBiggerBatch8x8x16(rows=4096, tensor=16)
    """
    return _large("pax-bert-100b", num_layers=33, rows=rows, tensor=tensor)


def bert_200b(rows: int = 4096, tensor: int = 16) -> fdl.Config[program.Experiment]:
    """Train 200 billion parameters on 1,024 chips.

    Pax: BertSpmdL66H12kBiggerBatch8x8x16
    Pax: BertSpmdL66H12kBiggerBatch8x8x8(rows=512, tensor=8)
    """
    return _large("pax-bert-200b", num_layers=66, rows=rows, tensor=tensor)


def _large(name: str, num_layers: int, rows: int, tensor: int) -> fdl.Config[program.Experiment]:
    sizes = {"dim": 12_288, "num_heads": 128, "head_dim": 96, "hidden_dim": 98_304}
    mesh = {"data": 1, "fsdp": 64, "tensor": tensor}
    graph = _train(name, encoders.pax_bert(num_layers=num_layers, **sizes), rows, mesh)
    graph.model.stack.remat = fdl.Config(layers.SaveProjections)
    graph.task.label_smoothing = 0.1
    return graph


def _train(
    name: str, model: fdl.Partial[models.Decoder], rows: int, mesh: dict[str, int]
) -> fdl.Config[program.Experiment]:
    vocab = value(30_522, name="vocab_size")
    model.dtype, model.stack = jnp.bfloat16, fdl.Config(layers.Scanned)
    fall = published.rampup_exponential(2.5e-4, 4000, 4001, 100_000)
    return fdl.Config(
        program.Experiment,
        name=name,
        seed=0,
        model=model,
        task=fdl.Config(tasks.MaskedModelling, mask_token=103, vocab_size=vocab),
        data=fdl.Config(data.Synthetic, vocab_size=vocab, length=512),
        optimizer=published.pax_adafactor(fall, weight_decay=1e-2),
        training=fdl.Config(program.Training, steps=STEPS, global_batch_size=rows),
        parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh, **mesh)),
        checkpoints=fdl.Config(
            checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 1000), keep_latest=10
        ),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console)),
    )
