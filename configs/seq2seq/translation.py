"""A small T5 translates a small English into a made-up language, byte by byte.

Paper: Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
  Transformer", arXiv:1910.10683; by bytes as in Xue et al. 2021, arXiv:2105.13626.
Command: luthier train configs.seq2seq.translation
Hardware: 2 CPU cores, under 2 minutes.
Expected: accuracy >= 0.99 on held_out (0.998 on 2026-11-21), of all bytes of translations of
  sentences that were never trained on, each given those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier import (
    checkpoint,
    data,
    durations,
    models,
    optim,
    parallel,
    program,
    records,
    tasks,
)
from luthier.graph import floor_divide, value
from luthier.recipes import encoders


def experiment() -> fdl.Config[program.Experiment]:
    """Train an encoder-decoder on 10,000 sentences; 1,000 others are held out."""
    steps = value(1000, name="steps")
    lengths = (value(128, name="input_length"), value(128, name="target_length"))
    return fdl.Config(
        program.Experiment,
        name="translation",
        seed=0,
        model=_model(),
        task=fdl.Config(tasks.SequenceToSequence),
        data=_sentences("train", 10_000, lengths),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=_sentences("test", 1_000, lengths),
                every=fdl.Config(durations.Steps, 300),
                global_batch_size=32,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine,
                peak=3e-3,
                warmup_steps=floor_divide(steps, 10),
                total_steps=steps,
                end=3e-5,
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        training=fdl.Config(
            program.Training, steps=steps, global_batch_size=8, guard=fdl.Config(optim.Guard)
        ),
        parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh)),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 600)),
        records=fdl.Config(
            records.Records,
            console=fdl.Config(records.Console),
            wandb=fdl.Config(records.Wandb, project="luthier"),
        ),
    )


def _model() -> fdl.Partial[models.EncoderDecoder]:
    model = encoders.t5_gated(
        vocab_size=258, dim=64, num_layers=2, num_heads=4, head_dim=16, hidden_dim=128
    )
    # Sentences come about once, so that there is no need of dropout.
    model.embedding.dropout = None
    for part in (model.encoder, model.decoder):
        part.dropout = part.block.dropout = None
        part.block.attention.core.dropout = None
    model.decoder.block.cross_attention.core.dropout = None
    return model


def _sentences(split: str, count: int, lengths: Sequence[Any]) -> fdl.Config[data.SequencePairs]:
    return fdl.Config(
        data.SequencePairs,
        source=fdl.Config(data.Translation, count=count, split=split),
        tokenizer=fdl.Config(data.Bytes),
        input_length=lengths[0],
        target_length=lengths[1],
        packing=fdl.Config(data.PackPairs),
    )
