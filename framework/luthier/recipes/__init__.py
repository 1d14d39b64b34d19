"""Experiments and parts of them, ready made: functions that return graphs, or change them."""

from luthier.recipes import decoders, encoders, published, vision
from luthier.recipes.accelerators import gpu, tpu
from luthier.recipes.budget import scale_to
from luthier.recipes.debug import debug
from luthier.recipes.fine_tuning import freeze, has_lora, lora, train_only, without_lora
from luthier.recipes.parallelism import all_to_all, data, expert, fsdp, hsdp, ring, sequence, tensor
from luthier.recipes.precision import (
    bf16,
    bf16_masters,
    compute_in,
    fp8,
    int8,
    int8_weights,
    store_optimizer,
    store_parameters,
    sum_gradients,
    without_quantization,
)
from luthier.recipes.quick_compile import quick_compile
from luthier.recipes.scale import scale_depth, scale_length, scale_width
from luthier.recipes.seed import seed
from luthier.recipes.stacks import pipeline, remat
from luthier.recipes.swap_optimizer import swap_optimizer
from luthier.recipes.text import text
from luthier.recipes.tiny import shared, tiny

__all__ = [
    "all_to_all",
    "bf16",
    "bf16_masters",
    "compute_in",
    "data",
    "debug",
    "decoders",
    "encoders",
    "expert",
    "fp8",
    "freeze",
    "fsdp",
    "gpu",
    "has_lora",
    "hsdp",
    "int8",
    "int8_weights",
    "lora",
    "pipeline",
    "published",
    "quick_compile",
    "remat",
    "ring",
    "scale_depth",
    "scale_length",
    "scale_to",
    "scale_width",
    "seed",
    "sequence",
    "shared",
    "store_optimizer",
    "store_parameters",
    "sum_gradients",
    "swap_optimizer",
    "tensor",
    "text",
    "tiny",
    "tpu",
    "train_only",
    "vision",
    "without_lora",
    "without_quantization",
]
