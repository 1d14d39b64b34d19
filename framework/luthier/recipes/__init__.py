"""Experiments and parts of them, ready made: functions that return graphs, or change them."""

from luthier.recipes import decoders, encoders, forecasting, vision
from luthier.recipes.freeze import freeze, train_only
from luthier.recipes.lora import has_lora, lora, without_lora

__all__ = [
    "decoders",
    "encoders",
    "forecasting",
    "freeze",
    "has_lora",
    "lora",
    "train_only",
    "vision",
    "without_lora",
]
