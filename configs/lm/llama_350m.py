"""A Llama of 368 million parameters on your own text, sized for one to eight GPUs of 80 GB.

Paper: Touvron et al. 2023, arXiv:2302.13971 (the model, its optimizer and schedule); Zhao et al.
  2024, arXiv:2403.03507 (the sizes, named 350M there); Brown et al. 2020, arXiv:2005.14165, table
  2.1 (batch size and learning rate).
Command: luthier train configs.lm.llama_350m
Hardware: 1 to 8 GPUs of 80 GB (H100); never run on a GPU.
Expected: not measured yet.

Prepare the folder `corpus` as for `configs.lm.gpt2_124m`, but with a vocabulary of 32,000 tokens:
  luthier data train-tokenizer corpus/bpe.json --vocab-size 32000 --text 'text/train/*.txt'

The model has 367,969,280 parameters. Memory on each GPU, as compiled without a GPU by
`luthier plan configs.lm.llama_350m ... --slice h100:N` with JAX 0.10.2 on 2026-11-30:
  h100:1                                         27.1 GiB of 59.3 GiB   16 sequences at a time
  h100:8                                          9.2 GiB                2 sequences on each
  h100:8 fiddler:fsdp training.accumulation=2    22.4 GiB               16 sequences on each
No step was run on a GPU; add `fiddler:gpu` there. `:cudnn` sets cuDNN's attention kernel alone.
"""

from luthier import lazy
from luthier.graph import add, value

with lazy.imports():
    import jax.numpy as jnp

    from luthier import checkpoint, data, layers, optim, program, records, tasks
    from luthier.durations import Steps
    from luthier.recipes import decoders


def experiment() -> program.Experiment:
    """Train with 0.5 million tokens per step, on a corpus from `luthier data prepare`."""
    length, steps = value(2048, name="length"), value(14_000, name="steps")
    vocab_size, folder = value(32_000, name="vocab_size"), value("corpus", name="folder")
    model = decoders.llama(
        vocab_size=vocab_size,
        dim=1024,
        num_layers=24,
        num_heads=16,
        hidden_dim=2736,
        epsilon=1e-6,
        pad_to_multiple=128,
    )
    model.dtype = jnp.bfloat16
    model.stack = layers.Scanned(remat=layers.SaveProjections())
    held_out = program.Evaluation(
        data=_corpus(folder, "held_out", length),
        every=Steps(1000),
        global_batch_size=32,
        num_batches=20,
    )
    rate = optim.WarmupCosine(peak=3e-4, warmup_steps=2000, total_steps=steps, end=3e-5)
    return program.Experiment(
        name="llama-350m",
        seed=0,
        model=model,
        task=tasks.LanguageModelling(),
        data=_corpus(folder, "train", length),
        evaluations={"held_out": held_out},
        optimizer=optim.adamw(learning_rate=rate, b1=0.9, b2=0.95, weight_decay=0.1, clip_norm=1.0),
        training=program.Training(steps=steps, global_batch_size=256, accumulation=16),
        checkpoints=checkpoint.Checkpoints(every=Steps(1000)),
        records=records.Records(wandb=records.Wandb()),
    )


def cudnn() -> program.Experiment:
    """Train with cuDNN's fused attention, on NVIDIA GPUs from Hopper on.

    Command: luthier train configs.lm.llama_350m:cudnn
    Hardware: 1 to 8 GPUs of 80 GB (H100); never run on one.
    Expected: not measured yet.
    """
    graph = experiment()
    graph.name = "llama-350m-cudnn"
    graph.model.block.attention.core = layers.CudnnAttention(max_documents=16)
    return graph


def _corpus(folder: str, split: str, length: int) -> data.Prepared:
    return data.Prepared(
        directory=add(folder, f"/{split}"),
        length=length,
        packing=data.Concatenate(),
        tokenizer=data.Bpe(path=add(folder, "/bpe.json")),
    )
