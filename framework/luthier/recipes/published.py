"""The C4 data of Pax (files, vocabulary, packing), and the optimizers of Pax's configurations.

Paxml 1.4.0, `tasks/lm/params/c4.py` (`C4UnsupervisedDataset`).
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import data, optim
from luthier.graph import add, multiply, subtract, value

FOLDER = "gs://mlperf-llm-public2"


def c4_training(
    *, length: Any, folder: Any = FOLDER, documents_per_group: Any = 4096
) -> fdl.Config[data.Packed]:
    """Return the training rows of C4 as Pax cuts them.

    The text is read and tokenized when training starts, which suits small corpora. Prepare a large
    one with `luthier data prepare DIR --experiment REF`, and use `data.Prepared` instead of
    `data.Packed`, with the same packing.

    Args:
      length: Tokens of a row.
      folder: Holds `c4/en/3.0.4`, as TFDS writes it with split `train2`, and the vocabulary.
      documents_per_group: Documents that are joined before they are cut.

    Returns:
      A node of `data.Packed`.

    Source: paxml 1.4.0, `c4_lm_v301_gpt` and `C4UnsupervisedDataset`.
    """
    records = fdl.Config(data.Tfds, folder=add(folder, "/c4/en/3.0.4"), split="train2")
    shift = fdl.Config(data.ShiftLeft, end=1)
    return fdl.Config(
        data.Packed,
        source=fdl.Config(data.Field, records=records, field="text"),
        tokenizer=c4_vocabulary(folder),
        length=length,
        packing=fdl.Config(data.SplitTokens, shift=shift, documents_per_group=documents_per_group),
    )


def c4_validation(*, length: Any, folder: Any = FOLDER) -> fdl.Config[data.Pretokenized]:
    """Return the validation rows of C4, whose records are tokens: one a row, not packed.

    Args:
      length: Tokens of a row; what is beyond is left out.
      folder: Holds `c4/en/3.0.5`, as TFDS writes it with split `validation_tokenized_5662seqs`,
        and the vocabulary.

    Returns:
      A node of `data.Pretokenized`.

    Source: paxml 1.4.0, `c4_lm_v301_gpt_eval_tokenized` and `C4UnsupervisedDataset`.
    """
    split = "validation_tokenized_5662seqs"
    return fdl.Config(
        data.Pretokenized,
        records=fdl.Config(data.Tfds, folder=add(folder, "/c4/en/3.0.5"), split=split),
        tokenizer=c4_vocabulary(folder),
        length=length,
        packing=fdl.Config(data.TrimTokens, shift=fdl.Config(data.ShiftLeft, end=1)),
        field="ids",
    )


def c4_vocabulary(folder: Any = FOLDER) -> fdl.Config[data.SentencePiece]:
    """Return the vocabulary of Pax's C4: 0 is padding, 1 the end of a text.

    Args:
      folder: Holds `vocab/c4_en_301_5Mexp2_spm.model`.

    Returns:
      A node of `data.SentencePiece`.
    """
    path = add(folder, "/vocab/c4_en_301_5Mexp2_spm.model")
    return fdl.Config(data.SentencePiece, path=path, bos_token="</s>", eos_token="</s>")


# The optimizers of Pax's configurations for GPUs, and Pax's Adafactor.
#
# Paxml, `tasks/lm/params/nvidia.py` and `tasks/lm/model_params.py`, with the optimizers of Praxis.


def nvidia_adam(peak: Any = 6e-4) -> fdl.Config[optim.Optimizer]:
    """Return Adam with a cap on updates and a cosine of 500,000 steps, without a rise.

    All parameters decay, also biases, norms and the embeddings.

    Args:
      peak: The highest learning rate.

    Returns:
      A node that builds an `optim.Optimizer`.

    Source: paxml, `tasks/lm/params/nvidia.py` (`NVIDIA1_3B`).
    """
    return fdl.Config(
        optim.capped_adamw,
        learning_rate=_cosine(peak),
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        eps_root=0.0,
        max_update_rms=1.0,
        weight_decay=1e-3,
        clip_norm=1.0,
    )


def nvidia_adafactor(peak: Any = 6e-4) -> fdl.Config[optim.Optimizer]:
    """Return Adafactor on the schedule of `nvidia_adam`.

    Args:
      peak: The highest learning rate.

    Returns:
      A node that builds an `optim.Optimizer`.

    Source: paxml, `tasks/lm/params/nvidia.py` (`USE_ADAFACTOR`).
    """
    return pax_adafactor(_cosine(peak), weight_decay=1e-3, clip_norm=1.0)


def pax_adafactor(
    learning_rate: Any, weight_decay: Any = 1e-3, clip_norm: Any = 5.0
) -> fdl.Config[optim.Optimizer]:
    """Return Pax's Adafactor: Adam's memory of squares, momentum, and absolute learning rates.

    All parameters decay, also biases, norms and the embeddings.

    Args:
      learning_rate: The learning rate, or its schedule.
      weight_decay: The decay.
      clip_norm: Limit of the norm of the whole gradient.

    Returns:
      A node that builds an `optim.Optimizer`.

    Source: paxml, `tasks/lm/model_params.py` (`set_default_adafactor`); praxis,
      `optimizers.ShardedAdafactor`.

    Deviation: Pax keeps the momentum in 8 bits, and with the learning rate in it.
    """
    return fdl.Config(
        optim.adafactor,
        learning_rate=learning_rate,
        decay=fdl.Config(optim.AdamDecay, b2=0.99),
        least_factored_dim=1,
        least_parameter_rms=None,
        momentum=0.9,
        weight_decay=weight_decay,
        decay_mask=fdl.Config(optim.Matching, pattern=""),
        clip_norm=clip_norm,
        factored_dims=fdl.Config(optim.LastDims),
    )


def _cosine(peak: Any) -> fdl.Config[optim.Join]:
    return rampup_cosine(peak, 0, 1, 500_000)


# The optimizers and the schedules of Pax's language models.
#
# Paxml 1.4.0, `tasks/lm/params/c4.py`, with the schedules and the optimizers of Praxis 1.4.0. Pax
# multiplies a rate by a schedule that ends at a ratio; here the schedule is the rate itself.


def rampup_exponential(
    peak: Any, warmup_steps: Any, decay_start: Any, decay_end: Any, ratio: Any = 0.1
) -> fdl.Config[optim.Join]:
    r"""Return a linear rise, the peak until the decay starts, and a fall by equal factors.

    $$ \eta_t = p\, r^{\min(1, (t - S) / (E - S))} \quad t \ge S $$

    Args:
      peak: The highest rate, $p$.
      warmup_steps: Steps of the rise from 0.
      decay_start: Step at which the fall begins, $S$, after the rise.
      decay_end: Step from which on the rate stays, $E$.
      ratio: The last rate over the highest, $r$.

    Returns:
      A node of `optim.Join`.

    Source: praxis 1.4.0, `schedules.LinearRampupExponentialDecay`.
    """
    peak, ratio = value(peak, name="peak"), value(ratio, name="ratio")
    start = value(decay_start, name="decay_start")
    fall = fdl.Config(
        optim.Exponential,
        initial=peak,
        rate=ratio,
        decay_steps=subtract(value(decay_end, name="decay_end"), start),
        end=multiply(peak, ratio),
    )
    return _after_rampup(peak, warmup_steps, start, fall)


def rampup_cosine(
    peak: Any, warmup_steps: Any, decay_start: Any, decay_end: Any, ratio: Any = 0.1
) -> fdl.Config[optim.Join]:
    r"""Return a linear rise, the peak until the decay starts, and half a cosine down.

    $$ \eta_t = r p + \tfrac12 (1 - r) p\, (1 + \cos(\pi \min(1, (t - S) / (E - S))))
       \quad t \ge S $$

    Args:
      peak: The highest rate, $p$.
      warmup_steps: Steps of the rise from 0.
      decay_start: Step at which the fall begins, $S$, after the rise.
      decay_end: Step from which on the rate stays, $E$.
      ratio: The last rate over the highest, $r$.

    Returns:
      A node of `optim.Join`.

    Source: praxis 1.4.0, `schedules.LinearRampupCosineDecay`.
    """
    peak, start = value(peak, name="peak"), value(decay_start, name="decay_start")
    fall = fdl.Config(
        optim.WarmupCosine,
        peak=peak,
        warmup_steps=0,
        total_steps=subtract(value(decay_end, name="decay_end"), start),
        end=multiply(peak, ratio),
    )
    return _after_rampup(peak, warmup_steps, start, fall)


def pax_c4_adam(peak: Any = 1e-3) -> fdl.Config[optim.Optimizer]:
    """Return the optimizer of base model A: Adam with a cap on updates, and an exponential fall.

    All parameters decay, also biases, norms and the embedding.

    Args:
      peak: The highest learning rate.

    Returns:
      A node that builds an `optim.Optimizer`.

    Example:
      >>> from luthier import graph
      >>> from luthier.recipes import published
      >>> graph.head_text(published.pax_c4_adam())
      'luthier.optim.capped_adamw'

    Source: paxml 1.4.0, `tasks/lm/params/c4.py` (`TransformerLmSpmdAdam`).
    """
    return fdl.Config(
        optim.capped_adamw,
        learning_rate=rampup_exponential(peak, 4000, 4001, 300_000),
        b1=0.9,
        b2=0.99,
        eps=1e-6,
        eps_root=0.0,
        max_update_rms=1.0,
        weight_decay=1e-3,
        clip_norm=5.0,
    )


def pax_gpt3_adam(
    peak: Any = 6e-5, warmup_steps: Any = 265, decay_end: Any = 108_600
) -> fdl.Config[optim.Optimizer]:
    """Return the optimizer of GPT-3: Adam, and a cosine that falls one step after the rise.

    All parameters decay, also biases, norms and the embeddings.

    Args:
      peak: The highest learning rate.
      warmup_steps: Steps of the rise from 0.
      decay_end: Step at which a tenth of the highest rate is reached.

    Returns:
      A node that builds an `optim.Optimizer`.

    Source: paxml 1.4.0, `tasks/lm/params/c4.py` (`C4SpmdGpt3AdamOrgHP`); Brown et al. 2020,
      arXiv:2005.14165, appendix B.
    """
    return fdl.Config(
        optim.capped_adamw,
        learning_rate=rampup_cosine(peak, warmup_steps, warmup_steps + 1, decay_end),
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        eps_root=0.0,
        max_update_rms=None,
        weight_decay=0.1,
        clip_norm=1.0,
    )


def _after_rampup(peak: Any, warmup_steps: Any, start: Any, fall: Any) -> fdl.Config[optim.Join]:
    # Between the end of the rise and the start of the fall the rate is the peak: the rise "decays"
    # from peak to peak.
    rise = fdl.Config(
        optim.WarmupLinear, peak=peak, warmup_steps=warmup_steps, total_steps=start, end=peak
    )
    return fdl.Config(optim.Join, schedules=[rise, fall], boundaries=[start])
