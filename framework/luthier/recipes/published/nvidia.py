"""The optimizers of Pax's configurations for GPUs, and Pax's Adafactor.

Paxml, `tasks/lm/params/nvidia.py` and `tasks/lm/model_params.py`, with the optimizers of Praxis.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import optim
from luthier.recipes.published.pax import rampup_cosine


def nvidia_adam(peak: Any = 6e-4) -> fdl.Config[optim.Optimizer]:
    """Return Adam with a cap on updates and a cosine of 500,000 steps, without a rise.

    All parameters decay, also biases, norms and the embeddings.

    Args:
      peak: The highest learning rate.

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
