"""Optimizers that are rarely used: LAMB, Shampoo and SOAP."""

from luthier.contrib.optimizers.lamb import lamb
from luthier.contrib.optimizers.shampoo import scale_by_shampoo, shampoo
from luthier.contrib.optimizers.soap import scale_by_soap, soap

__all__ = ["lamb", "scale_by_shampoo", "scale_by_soap", "shampoo", "soap"]
