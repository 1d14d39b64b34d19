"""The experiment of a Hugging Face folder, which `hf:DIR` names on a command line.

Command: luthier train hf:DIR 'fiddler:lora(rank=8)' data.source:=luthier.data.TextFiles("my/*.txt")

The model is the one that config.json describes, the weights and the tokenizer are those of the
folder. Task and data are what a model of its kind is usually trained with; all of it can be
overridden. The paths of weights and tokenizer are recorded; a run that was started resumes without
the weights.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import fiddle as fdl

from luthier import (
    checkpoint,
    data,
    durations,
    models,
    optim,
    program,
    records,
    tasks,
)
from luthier.checkpoint.foreign import read_config
from luthier.errors import BadInput, Problem
from luthier.graph import copy_graph, evaluate, floor_divide, value
from luthier.layers import Experts, MaskedHead
from luthier.recipes import foreign

_LONGEST_ROW = 512
_BYTES = data.Bytes().vocab_size


def experiment(directory: str) -> fdl.Config[program.Experiment]:
    """Fine-tune the model of a folder.

    Args:
      directory: A folder with config.json and safetensors, and mostly a tokenizer.
    """
    folder = pathlib.Path(directory).expanduser().absolute()
    if not folder.is_dir():
        raise BadInput(Problem(f"{directory} is not a folder", remedy="give that of config.json"))
    model = foreign.model_of(folder)
    steps = value(1000, name="steps")
    task, train, held_out = _task(folder, model)
    return fdl.Config(
        program.Experiment,
        name=re.sub(r"[^\w.-]+", "-", folder.name).strip("-.") or "pretrained",
        seed=0,
        model=model,
        task=task,
        data=train,
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=held_out,
                every=fdl.Config(durations.Steps, 200),
                global_batch_size=8,
                num_batches=16,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine,
                peak=2e-5,
                warmup_steps=floor_divide(steps, 20),
                total_steps=steps,
                end=2e-6,
            ),
            b1=0.9,
            b2=0.999,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        training=fdl.Config(program.Training, steps=steps, global_batch_size=8),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 200)),
        records=fdl.Config(records.Records, wandb=fdl.Config(records.Wandb)),
        restore=_restore(folder, model),
    )


def _restore(folder: pathlib.Path, model: fdl.Partial[Any]) -> fdl.Config[checkpoint.Safetensors]:
    """Return the source of the weights; a bare encoder gets a new head."""
    restore = fdl.Config(checkpoint.Safetensors, directory=str(folder))
    if model.__fn_or_cls__ is models.Encoder and model.head is None:
        new = fdl.Config(checkpoint.Init, pattern=r"^head\.")
        restore.rules = [new, *restore.rules]
        mlp = model.block.mlp
        model.head = fdl.Partial(
            MaskedHead, norm=model.block.norm, activation=mlp.activation, transform=mlp.up
        )
    return restore


def _task(folder: pathlib.Path, model: fdl.Partial[Any]) -> tuple[Any, Any, Any]:
    """Return the task of a model, with its data for training and for evaluation."""
    kind = model.__fn_or_cls__
    tokenizer = foreign.tokenizer_of(folder)
    if kind is models.EncoderDecoder:
        lengths = (value(128, name="input_length"), value(128, name="target_length"))
        size = evaluate(model.vocab_size)
        if tokenizer is None and size < _BYTES:
            what = f"{folder} has no tokenizer, and bytes do not fit a vocabulary of {size} tokens"
            raise BadInput(Problem(what, remedy="add its tokenizer.json and tokenizer_config.json"))
        pairs = [_sentences(tokenizer, split, lengths) for split in ("train", "test")]
        return fdl.Config(tasks.SequenceToSequence), *pairs
    if kind is models.VisionTransformer:
        what = f"{folder} has a model of images, for which `hf:` has no data"
        remedy = f"in an experiment of your own, model=luthier.recipes.foreign.model_of({folder})"
        raise BadInput(Problem(what, remedy=f"{remedy} and restore=safetensors:{folder}"))
    length = value(_row_length(folder), name="length")
    texts = [_text(tokenizer, model, split, length) for split in ("train", "held_out")]
    return _text_task(folder, model), *texts


def _text_task(folder: pathlib.Path, model: fdl.Partial[Any]) -> Any:
    if model.__fn_or_cls__ is models.Encoder:
        # Without a known token for hidden ones, the last of the vocabulary is used.
        mask = foreign.mask_token_of(folder)
        size = value(model.vocab_size, name="vocab_size")
        model.vocab_size = size
        mask = evaluate(size) - 1 if mask is None else mask
        return fdl.Config(tasks.MaskedModelling, mask_token=mask, vocab_size=size)
    task = fdl.Config(tasks.LanguageModelling)
    mlp = getattr(getattr(model.block, "mlp", None), "__fn_or_cls__", None)
    return fdl.Config(tasks.Routed, task=task) if mlp is Experts else task


def _row_length(folder: pathlib.Path) -> int:
    """Return the length of rows: what the model was made for, within what fits a small machine."""
    config = foreign.text_settings(read_config(folder) or {})
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    return min(longest or _LONGEST_ROW, _LONGEST_ROW)


def _text(tokenizer: Any, model: fdl.Partial[Any], split: str, length: Any) -> Any:
    if tokenizer is None:
        # Weights alone: tokens of no text, on which everything but the loss can be tried.
        seed = ("train", "held_out").index(split)
        size = evaluate(model.vocab_size)
        return fdl.Config(
            data.Synthetic, vocab_size=size, length=length, num_rows=(4096, 128)[seed], seed=seed
        )
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.Shakespeare, split=split),
        tokenizer=copy_graph(tokenizer),
        length=length,
        packing=fdl.Config(data.Concatenate),
    )


def _sentences(tokenizer: Any, split: str, lengths: Any) -> Any:
    return fdl.Config(
        data.SequencePairs,
        source=fdl.Config(
            data.Translation, count=10_000 if split == "train" else 1000, split=split
        ),
        tokenizer=fdl.Config(data.Bytes) if tokenizer is None else copy_graph(tokenizer),
        input_length=lengths[0],
        target_length=lengths[1],
        packing=fdl.Config(data.PackPairs),
    )
