"""A transformer that learns to add two numbers below 100.

Paper: the feed-forward layer is that of So et al. 2021, arXiv 2109.08668.
Command: luthier train configs.addition
Hardware: 2 CPU cores, 1 to 2 minutes.
Expected: held_out/answer_accuracy above 0.99 (measured 1.00 on 2026-11-21).
"""

from __future__ import annotations

import fiddle as fdl
from my_project.data import Sums
from my_project.layers import SquaredReluMlp
from my_project.tasks import Addition

from luthier import checkpoint, data, durations, layers, metrics, models, optim, program, records
from luthier.graph import value


def experiment() -> fdl.Config[program.Experiment]:
    """Train on nine sums in ten, and test on the others."""
    steps = value(800, name="steps")
    limit = value(100, name="limit")
    return fdl.Config(
        program.Experiment,
        name="addition",
        model=_model(),
        task=fdl.Config(Addition),
        data=_sums("train", limit),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=_sums("held_out", limit),
                every=fdl.Config(durations.Steps, 200),
                global_batch_size=32,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine, peak=3e-3, warmup_steps=50, total_steps=steps, end=1e-4
            ),
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        training=fdl.Config(program.Training, steps=steps, global_batch_size=32),
        checkpoints=fdl.Config(
            checkpoint.Checkpoints,
            every=fdl.Config(durations.Steps, 100),
            keep_best=fdl.Config(
                metrics.Selector, "held_out", "answer_accuracy", direction="higher"
            ),
        ),
        records=fdl.Config(
            records.Records,
            console=fdl.Config(records.Console),
            wandb=fdl.Config(records.Wandb, project="my_project"),
        ),
    )


def wide() -> fdl.Config[program.Experiment]:
    """Train the same model with twice as wide a feed-forward layer."""
    graph = experiment()
    graph.name = "addition_wide"
    graph.model.block.mlp.hidden_dim = 512
    return graph


def _model() -> fdl.Partial[models.Decoder]:
    return fdl.Partial(
        models.Decoder,
        vocab_size=258,
        dim=64,
        num_layers=2,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention, num_heads=4, num_kv_heads=4, rotary=fdl.Config(layers.Rotary)
            ),
            mlp=fdl.Partial(SquaredReluMlp, hidden_dim=256),
            norm=fdl.Partial(layers.RMSNorm),
        ),
        norm=fdl.Partial(layers.RMSNorm),
    )


def _sums(split: str, limit: object) -> fdl.Config[data.Packed]:
    return fdl.Config(
        data.Packed,
        source=fdl.Config(Sums, limit=limit, split=split),
        tokenizer=fdl.Config(data.Bytes),
        length=64,
        packing=fdl.Config(data.FirstFit),
    )
