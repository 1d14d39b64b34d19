"""Devices, the mesh, sharding rules, and the sharding of every array."""

from luthier.parallel import hosts, random_bits
from luthier.parallel.activations import (
    RESIDUAL_AXES,
    ActivationLayout,
    activation_rules,
    constrain,
    current_layout,
    current_platform,
    cut_padding,
    gather_length,
    is_explicit,
    result_sharding,
    stand_ins_for,
    uncut,
    varying,
)
from luthier.parallel.bytes import array_bytes, bytes_per_device
from luthier.parallel.hosts import Share, configure, devices
from luthier.parallel.mesh import AxisType, Mesh, make_mesh
from luthier.parallel.rules import (
    Parallelism,
    Rules,
    activation_rules_table,
    axis_product,
    parameter_rules,
)
from luthier.parallel.slices import AXES, AcrossSlices
from luthier.parallel.specs import (
    ArrayInfo,
    Placement,
    format_spec,
    place,
    place_derived,
    sharding_table,
    shardings,
)
from luthier.parallel.xla import XlaOptions, quick_cpu_options
from luthier.terminal import format_bytes

__all__ = [
    "AXES",
    "RESIDUAL_AXES",
    "AcrossSlices",
    "ActivationLayout",
    "ArrayInfo",
    "AxisType",
    "Mesh",
    "Parallelism",
    "Placement",
    "Rules",
    "Share",
    "XlaOptions",
    "activation_rules",
    "activation_rules_table",
    "array_bytes",
    "axis_product",
    "bytes_per_device",
    "configure",
    "constrain",
    "current_layout",
    "current_platform",
    "cut_padding",
    "devices",
    "format_bytes",
    "format_spec",
    "gather_length",
    "hosts",
    "is_explicit",
    "make_mesh",
    "parameter_rules",
    "place",
    "place_derived",
    "quick_cpu_options",
    "random_bits",
    "result_sharding",
    "sharding_table",
    "shardings",
    "stand_ins_for",
    "uncut",
    "varying",
]
