"""Experiment files that read like the code they describe.

    from luthier import lazy

    with lazy.imports():
        from luthier import layers, models

    def model():
        return models.Decoder(block=layers.PreNormBlock(norm=layers.RMSNorm(), ...), ...)

The calls make the nodes that `fdl.Config` and `fdl.Partial` make; see `imports`.
"""

from __future__ import annotations

from luthier.graph.lazy import imports

__all__ = ["imports"]
