"""Pipelines: layers shared out over devices, through which microbatches pass."""

from luthier.layers.pipeline.pipelined import Pipelined
from luthier.layers.pipeline.schedules import (
    Circular,
    GPipe,
    Schedule,
    bubble_fraction,
    num_ticks,
)

__all__ = ["Circular", "GPipe", "Pipelined", "Schedule", "bubble_fraction", "num_ticks"]
