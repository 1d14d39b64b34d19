"""What published recipes have beside their models: schedules, optimizers and data."""

from luthier.recipes.published.c4 import c4_training, c4_validation, c4_vocabulary
from luthier.recipes.published.nvidia import nvidia_adafactor, nvidia_adam, pax_adafactor
from luthier.recipes.published.pax import (
    pax_c4_adam,
    pax_gpt3_adam,
    rampup_cosine,
    rampup_exponential,
)

__all__ = [
    "c4_training",
    "c4_validation",
    "c4_vocabulary",
    "nvidia_adafactor",
    "nvidia_adam",
    "pax_adafactor",
    "pax_c4_adam",
    "pax_gpt3_adam",
    "rampup_cosine",
    "rampup_exponential",
]
