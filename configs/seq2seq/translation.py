"""A small T5 translates a small English into a made-up language, byte by byte.

Paper: Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
  Transformer", arXiv:1910.10683; by bytes as in Xue et al. 2021, arXiv:2105.13626.
Command: luthier train configs.seq2seq.translation
Parameters: 230,656.
Hardware: 2 CPU cores, under 2 minutes.
Expected: accuracy >= 0.99 on held_out (0.998 on 2026-11-21), of all bytes of translations of
  sentences that were never trained on, each given those before it.
"""

from luthier import lazy
from luthier.graph import floor_divide, value

with lazy.imports():
    from luthier import checkpoint, data, durations, models, optim, program, records, tasks
    from luthier.recipes import encoders


def experiment() -> program.Experiment:
    """Train an encoder-decoder on 10,000 sentences; 1,000 others are held out."""
    steps = value(1000, name="steps")
    lengths = (value(128, name="input_length"), value(128, name="target_length"))
    return program.Experiment(
        name="translation",
        seed=0,
        model=_model(),
        task=tasks.SequenceToSequence(),
        data=_sentences("train", 10_000, lengths),
        evaluations={
            "held_out": program.Evaluation(
                data=_sentences("test", 1_000, lengths),
                every=durations.Steps(300),
                global_batch_size=32,
            )
        },
        optimizer=optim.adamw(
            learning_rate=optim.WarmupCosine(
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
        training=program.Training(steps=steps, global_batch_size=8),
        checkpoints=checkpoint.Checkpoints(every=durations.Steps(600)),
        records=records.Records(wandb=records.Wandb()),
    )


def _model() -> models.EncoderDecoder:
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


def _sentences(split: str, count: int, lengths: tuple[int, int]) -> data.SequencePairs:
    return data.SequencePairs(
        source=data.Translation(count=count, split=split),
        tokenizer=data.Bytes(),
        input_length=lengths[0],
        target_length=lengths[1],
        packing=data.PackPairs(),
    )
