"""A small byte-level language model of Shakespeare's plays.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; with rotary
  position embeddings (arXiv:2104.09864), RMSNorm (arXiv:1910.07467) and a gated MLP
  (arXiv:2002.05202).
Command: luthier train configs.lm.quickstart
Parameters: 821,376.
Hardware: 2 CPU cores, under 3 minutes.
Expected: nats_per_byte <= 1.66 on held_out (1.649 on 2026-11-21). It consists of four whole
  plays.
"""

from luthier import lazy
from luthier.graph import floor_divide, value

with lazy.imports():
    import jax

    from luthier import checkpoint, data, layers, models, optim, program, records, tasks
    from luthier.durations import Steps


def experiment() -> program.Experiment:
    """Train a transformer on 34 plays; 4 whole plays are held out."""
    steps = value(900, name="steps")
    length = value(128, name="length")
    norm = layers.RMSNorm()
    block = layers.PreNormBlock(
        attention=layers.Attention(num_heads=4, num_kv_heads=2, rotary=layers.Rotary()),
        mlp=layers.GatedMlp(hidden_dim=384, activation=jax.nn.silu),
        norm=norm,
    )
    embedding = layers.Embedding(pad_to_multiple=8)
    held_out = program.Evaluation(
        data=_plays("held_out", length), every=Steps(300), global_batch_size=64, num_batches=8
    )
    rate = optim.WarmupCosine(
        peak=4e-3, warmup_steps=floor_divide(steps, 12), total_steps=steps, end=4e-5
    )
    return program.Experiment(
        name="quickstart",
        seed=0,
        model=models.Decoder(
            vocab_size=258, dim=128, num_layers=4, block=block, norm=norm, embedding=embedding
        ),
        task=tasks.LanguageModelling(z_loss=1e-4),
        data=_plays("train", length),
        evaluations={"held_out": held_out},
        optimizer=optim.adamw(learning_rate=rate, b1=0.9, b2=0.98, weight_decay=0.1, clip_norm=1.0),
        training=program.Training(steps=steps, global_batch_size=8),
        checkpoints=checkpoint.Checkpoints(every=Steps(200)),
        records=records.Records(wandb=records.Wandb()),
    )


def _plays(split: str, length: int) -> data.Packed:
    return data.Packed(
        source=data.Shakespeare(split=split),
        tokenizer=data.Bytes(),
        length=length,
        packing=data.Concatenate(),
    )
