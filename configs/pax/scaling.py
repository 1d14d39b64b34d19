"""Pax's decoders of optimal scaling: 128 as wide as deep, from 4.4 to 51.8 billion parameters.

Paper: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", arXiv:2203.15556, to
  which Pax likens them; Paxml, `tasks/lm/params/optimal_scaling.py`.
Command: luthier train configs.pax.scaling
Hardware: 4 chips of TPU v4; the others from 8 to 3,072.
Expected: not measured yet.

The optimizer and the data are those of `cloud`. Pax keeps the products with parameters for the
backward pass, as is done here. Its largest splits a width of 8,192 over 768 devices, which does
not divide: here over 256, with 3 copies.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import layers, program
from . import cloud


def experiment() -> fdl.Config[program.Experiment]:
    """Train 28 layers, 4.43 billion parameters, on 4 chips.

    Pax: OptimalScaling2x2x1
    """
    return _train("pax-scaling-4b", num_layers=28, rows=64, fsdp=4)


def layers_32() -> fdl.Config[program.Experiment]:
    """Train 32 layers, 6.57 billion parameters, on 8 chips.

    Pax: OptimalScaling2x2x2
    """
    return _train("pax-scaling-7b", num_layers=32, rows=64, fsdp=8)


def layers_36() -> fdl.Config[program.Experiment]:
    """Train 36 layers, 9.32 billion parameters, on 16 chips.

    Pax: OptimalScaling2x2x4
    """
    return _train("pax-scaling-9b", num_layers=36, rows=128, fsdp=16)


def layers_40() -> fdl.Config[program.Experiment]:
    """Train 40 layers, 12.7 billion parameters, on 32 chips.

    Pax: OptimalScaling2x4x4
    """
    return _train("pax-scaling-13b", num_layers=40, rows=256, fsdp=32)


def layers_45() -> fdl.Config[program.Experiment]:
    """Train 45 layers, 18.1 billion parameters, on 64 chips.

    Pax: OptimalScaling4x4x4
    """
    return _train("pax-scaling-18b", num_layers=45, rows=512, fsdp=64)


def layers_50() -> fdl.Config[program.Experiment]:
    """Train 50 layers, 24.8 billion parameters, on 128 chips.

    Pax: OptimalScaling4x4x8
    """
    return _train("pax-scaling-25b", num_layers=50, rows=512, fsdp=128)


def layers_56() -> fdl.Config[program.Experiment]:
    """Train 56 layers, 34.8 billion parameters, on 256 chips.

    Pax: OptimalScaling4x8x8
    """
    return _train("pax-scaling-35b", num_layers=56, rows=512, fsdp=64, tensor=4)


def layers_64(
    rows: int = 1024, fsdp: int = 128, replica: int = 1
) -> fdl.Config[program.Experiment]:
    """Train 64 layers, 51.8 billion parameters, on 512 chips.

    Pax: OptimalScaling4x8x16
    Pax: OptimalScaling4x16x16(fsdp=256)
    Pax: OptimalScaling4x16x32(rows=2048, fsdp=512)
    Pax: OptimalScaling4x24x32(rows=3072, fsdp=256, replica=3)
    """
    graph = _train("pax-scaling-52b", num_layers=64, rows=rows, fsdp=fsdp, tensor=4)
    graph.parallelism.mesh.replica = replica
    return graph


def _train(
    name: str, num_layers: int, rows: int, fsdp: int, tensor: int = 1
) -> fdl.Config[program.Experiment]:
    sizes = {"num_layers": num_layers, "dim": 128 * num_layers}
    graph = cloud.decoder(name, rows=rows, fsdp=fsdp, tensor=tensor, **sizes)
    graph.model.stack.remat = fdl.Config(layers.SaveProjections)
    return graph
