"""Optimizers that are rarely used: LAMB, Shampoo and SOAP."""

from luthier.contrib.optimizers.lamb import lamb
from luthier.contrib.optimizers.shampoo import shampoo
from luthier.contrib.optimizers.soap import soap

__all__ = ["lamb", "shampoo", "soap"]
