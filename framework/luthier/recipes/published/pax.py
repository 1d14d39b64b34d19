"""The optimizers and the schedules of Pax's language models.

Paxml 1.4.0, `tasks/lm/params/c4.py`, with the schedules and the optimizers of Praxis 1.4.0. Pax
multiplies a rate by a schedule that ends at a ratio; here the schedule is the rate itself.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import optim
from luthier.graph import multiply, subtract, value


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
    rise = fdl.Config(
        optim.WarmupLinear, peak=peak, warmup_steps=warmup_steps, total_steps=start, end=peak
    )
    return fdl.Config(optim.Join, schedules=[rise, fall], boundaries=[start])
