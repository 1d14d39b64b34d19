"""Engines: what runs trials on slices of devices."""

from luthier.sweep.engines.local import Local

__all__ = ["Local"]
