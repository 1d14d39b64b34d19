"""A transformer that learns to add two numbers below 100.

Paper: the feed-forward layer is that of So et al. 2021, arXiv 2109.08668.
Command: luthier train configs.addition
Hardware: 2 CPU cores, 1 to 2 minutes.
Expected: held_out/answer_accuracy above 0.99 (measured 1.00 on 2026-11-21).
"""

from luthier import lazy
from luthier.graph import value

with lazy.imports():
    from my_project.data import Sums
    from my_project.layers import SquaredReluMlp
    from my_project.tasks import Addition

    from luthier import checkpoint, data, layers, metrics, models, optim, program, records
    from luthier.durations import Steps


def experiment() -> program.Experiment:
    """Train on nine sums in ten, and test on the others."""
    steps = value(800, name="steps")
    limit = value(100, name="limit")
    return program.Experiment(
        name="addition",
        model=_model(),
        task=Addition(),
        data=_sums("train", limit),
        evaluations={
            "held_out": program.Evaluation(
                data=_sums("held_out", limit),
                every=Steps(200),
                global_batch_size=32,
            )
        },
        optimizer=optim.adamw(
            learning_rate=optim.WarmupCosine(
                peak=3e-3, warmup_steps=50, total_steps=steps, end=1e-4
            ),
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        training=program.Training(steps=steps, global_batch_size=32),
        checkpoints=checkpoint.Checkpoints(
            every=Steps(100),
            keep_best=metrics.Selector("held_out", "answer_accuracy", direction="higher"),
        ),
        records=records.Records(wandb=records.Wandb(project="my_project")),
    )


def wide() -> program.Experiment:
    """Train the same model with twice as wide a feed-forward layer."""
    graph = experiment()
    graph.name = "addition_wide"
    graph.model.block.mlp.hidden_dim = 512
    return graph


def _model() -> models.Decoder:
    return models.Decoder(
        vocab_size=258,
        dim=64,
        num_layers=2,
        block=layers.PreNormBlock(
            attention=layers.Attention(num_heads=4, num_kv_heads=4, rotary=layers.Rotary()),
            mlp=SquaredReluMlp(hidden_dim=256),
            norm=layers.RMSNorm(),
        ),
        norm=layers.RMSNorm(),
    )


def _sums(split: str, limit: int) -> data.Packed:
    return data.Packed(
        source=Sums(limit=limit, split=split),
        tokenizer=data.Bytes(),
        length=64,
        packing=data.FirstFit(),
    )
