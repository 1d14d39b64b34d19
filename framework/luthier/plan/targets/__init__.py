"""Slices that are planned for, here or absent, and what is known of their devices."""

from luthier.plan.targets.chips import CHIPS, Chip, GpuChip, TpuChip
from luthier.plan.targets.slices import CpuSlice, GpuSlice, Slice, TpuSlice, read
from luthier.plan.targets.topologies import devices, environment, missing_compiler, stand_ins

__all__ = [
    "CHIPS",
    "Chip",
    "CpuSlice",
    "GpuChip",
    "GpuSlice",
    "Slice",
    "TpuChip",
    "TpuSlice",
    "devices",
    "environment",
    "missing_compiler",
    "read",
    "stand_ins",
]
