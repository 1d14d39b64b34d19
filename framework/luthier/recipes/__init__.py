"""Experiments and parts of them, ready made: functions that return graphs, or change them."""

from luthier.recipes import decoders, encoders, forecasting, vision
from luthier.recipes.budget import scale_to
from luthier.recipes.debug import debug
from luthier.recipes.freeze import freeze, train_only
from luthier.recipes.lora import has_lora, lora, without_lora
from luthier.recipes.remat import remat
from luthier.recipes.scale import scale_depth, scale_width
from luthier.recipes.seed import seed
from luthier.recipes.swap_optimizer import swap_optimizer

__all__ = [
    "debug",
    "decoders",
    "encoders",
    "forecasting",
    "freeze",
    "has_lora",
    "lora",
    "remat",
    "scale_depth",
    "scale_to",
    "scale_width",
    "seed",
    "swap_optimizer",
    "train_only",
    "vision",
    "without_lora",
]
