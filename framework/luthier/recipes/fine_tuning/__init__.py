"""Training a part of a model only: its chosen parameters, or adapters of low rank."""

from luthier.recipes.fine_tuning.freeze import freeze, train_only
from luthier.recipes.fine_tuning.lora import has_lora, lora, without_lora

__all__ = ["freeze", "has_lora", "lora", "train_only", "without_lora"]
