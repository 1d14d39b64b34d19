"""A small language model of Shakespeare's bytes.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; with rotary
  positions (arXiv:2104.09864), RMSNorm (arXiv:1910.07467) and a gated MLP (arXiv:2002.05202).
Command: luthier train configs.lm.quickstart
Hardware: 2 CPU cores, under 3 minutes.
Expected: nats_per_byte <= 1.66 on held_out (1.649 on 2026-11-21): four whole plays.
"""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import (
    checkpoint,
    data,
    durations,
    layers,
    models,
    optim,
    parallel,
    program,
    records,
    tasks,
)
from luthier.graph import floor_divide, value


def experiment() -> fdl.Config[program.Experiment]:
    """Train a transformer on 34 plays; 4 whole plays are held out."""
    steps = value(900, name="steps")
    length = value(128, name="length")
    return fdl.Config(
        program.Experiment,
        name="quickstart",
        seed=0,
        model=_model(),
        task=fdl.Config(tasks.LanguageModelling, z_loss=1e-4),
        data=_text("train", length),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=_text("held_out", length),
                every=fdl.Config(durations.Steps, 300),
                global_batch_size=64,
                num_batches=8,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine,
                peak=4e-3,
                warmup_steps=floor_divide(steps, 12),
                total_steps=steps,
                end=4e-5,
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        training=fdl.Config(
            program.Training,
            steps=steps,
            global_batch_size=8,
            guard=fdl.Config(optim.Guard),
        ),
        parallelism=fdl.Config(
            parallel.Parallelism,
            mesh=fdl.Config(parallel.Mesh),
            rules=fdl.Config(
                parallel.Rules,
                parameters=parallel.parameter_rules(),
                activations=parallel.activation_rules_table(),
            ),
        ),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 200)),
        records=fdl.Config(
            records.Records,
            console=fdl.Config(records.Console),
            wandb=fdl.Config(records.Wandb, project="luthier"),
        ),
    )


def _model() -> fdl.Partial[models.Decoder]:
    norm = fdl.Partial(layers.RMSNorm)
    return fdl.Partial(
        models.Decoder,
        vocab_size=258,
        dim=128,
        num_layers=4,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention, num_heads=4, num_kv_heads=2, rotary=fdl.Config(layers.Rotary)
            ),
            mlp=fdl.Partial(layers.GatedMlp, hidden_dim=384, activation=jax.nn.silu),
            norm=norm,
        ),
        norm=norm,
        embedding=fdl.Partial(layers.Embedding, pad_to_multiple=8),
    )


def _text(split: str, length: object) -> fdl.Config[data.Packed]:
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.Shakespeare, split=split),
        tokenizer=fdl.Config(data.Bytes),
        length=length,
        packing=fdl.Config(data.Concatenate),
    )
