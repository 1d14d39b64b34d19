"""Engines: what runs trials on slices of devices."""

from luthier.study.engines.local import Local

__all__ = ["Local"]
