"""GPT-2 of 124 million parameters on your own text, sized for one to eight GPUs of 80 GB.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (the model); Brown
  et al. 2020, arXiv:2005.14165, table 2.1 and appendix B (batch, optimizer and schedule).
Command: luthier train configs.lm.gpt2_124m
Hardware: 1 to 8 GPUs of 80 GB (H100); add fiddler:gpu there.
Expected: not measured yet.

The folder `corpus` must contain a vocabulary and two prepared corpora. These commands create them
from your text files (to read another folder, add `'fiddler:shared(folder="DIR")'`):
  luthier data train-tokenizer corpus/bpe.json --vocab-size 50257 --text 'text/train/*.txt'
  luthier data prepare corpus/train --text 'text/train/*.txt' --tokenizer corpus/bpe.json
  luthier data prepare corpus/held_out --text 'text/held_out/*.txt' --tokenizer corpus/bpe.json

The model has 124,475,904 parameters, of which 36,096 pad the vocabulary. Memory on each GPU, as
compiled without a GPU by `luthier plan configs.lm.gpt2_124m ... --slice h100:N` with JAX 0.10.2 on
2026-11-26:
  h100:1                                         30.7 GiB of 59.3 GiB   64 sequences at a time
  h100:8                                          5.5 GiB                8 sequences on each
  h100:8 fiddler:fsdp training.accumulation=1    29.2 GiB               64 sequences on each
With an earlier `fiddler:gpu`, 32 rows of a model of this size took 66.9 ms on an H200
(docs/reference/performance.md, "On a GPU"). `:cudnn` sets cuDNN's attention kernel alone, and keeps
all activations: with `fiddler:gpu` added to either, it moves 7 % fewer bytes a step than this
experiment, and needs 5 % more memory (as compiled for an H100, 32 sequences at a time).
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
    length, steps = value(1024, name="length"), value(20_000, name="steps")
    vocab_size, folder = value(50_257, name="vocab_size"), value("corpus", name="folder")
    model = decoders.gpt2(
        vocab_size=vocab_size,
        max_length=length,
        dim=768,
        num_layers=12,
        num_heads=12,
        dropout_rate=None,
        pad_to_multiple=128,
    )
    model.dtype = jnp.bfloat16  # parameters and optimizer stay in float32
    # Einsum attention keeps scores of [heads, 1024, 1024] for every row: compute them again.
    model.stack = layers.Scanned(remat=layers.SaveProjections())
    held_out = program.Evaluation(
        data=_corpus(folder, "held_out", length),
        every=Steps(1000),
        global_batch_size=64,
        num_batches=20,
    )
    rate = optim.WarmupCosine(peak=6e-4, warmup_steps=700, total_steps=steps, end=6e-5)
    return program.Experiment(
        name="gpt2-124m",
        seed=0,
        model=model,
        task=tasks.LanguageModelling(),
        data=_corpus(folder, "train", length),
        evaluations={"held_out": held_out},
        optimizer=optim.adamw(learning_rate=rate, b1=0.9, b2=0.95, weight_decay=0.1, clip_norm=1.0),
        training=program.Training(steps=steps, global_batch_size=512, accumulation=8),
        checkpoints=checkpoint.Checkpoints(every=Steps(1000)),
        records=records.Records(wandb=records.Wandb()),
    )


def cudnn() -> program.Experiment:
    """Train with cuDNN's fused attention, on NVIDIA GPUs from Hopper on.

    Command: luthier train configs.lm.gpt2_124m:cudnn
    Hardware: 1 to 8 GPUs of 80 GB (H100); never run on one.
    Expected: not measured yet.
    """
    graph = experiment()
    graph.name = "gpt2-124m-cudnn"
    graph.model.block.attention.core = layers.CudnnAttention(max_documents=16)
    graph.model.stack = layers.Scanned()  # the kernel keeps no scores
    return graph


def _corpus(folder: str, split: str, length: int) -> data.Prepared:
    return data.Prepared(
        directory=add(folder, f"/{split}"),
        length=length,
        packing=data.Concatenate(),
        tokenizer=data.Bpe(path=add(folder, "/bpe.json")),
    )
