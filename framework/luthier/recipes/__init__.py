"""Experiments and parts of them, ready made: functions that return graphs, or change them."""

from luthier.recipes import decoders, encoders, forecasting, vision
from luthier.recipes.budget import scale_to
from luthier.recipes.debug import debug
from luthier.recipes.freeze import freeze, train_only
from luthier.recipes.lora import has_lora, lora, without_lora
from luthier.recipes.parallelism import all_to_all, data, expert, fsdp, hsdp, ring, sequence, tensor
from luthier.recipes.scale import scale_depth, scale_width
from luthier.recipes.seed import seed
from luthier.recipes.stacks import pipeline, remat
from luthier.recipes.swap_optimizer import swap_optimizer

__all__ = [
    "all_to_all",
    "data",
    "debug",
    "decoders",
    "encoders",
    "expert",
    "forecasting",
    "freeze",
    "fsdp",
    "has_lora",
    "hsdp",
    "lora",
    "pipeline",
    "remat",
    "ring",
    "scale_depth",
    "scale_to",
    "scale_width",
    "seed",
    "sequence",
    "swap_optimizer",
    "tensor",
    "train_only",
    "vision",
    "without_lora",
]
