"""Engines, which run trials on device groups."""

from luthier.study.engines.local import Local

__all__ = ["Local"]
