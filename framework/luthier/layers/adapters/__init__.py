"""Layers that stand in for others and add a few trained parameters to them."""

from luthier.layers.adapters.lora import LoraLinear, merge_adapters

__all__ = ["LoraLinear", "merge_adapters"]
