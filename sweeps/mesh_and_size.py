"""Mesh, width, depth, rematerialization and learning rate, on device groups of three sizes.

Command: luthier sweep sweeps.mesh_and_size
Hardware: 2 CPU cores as 8 virtual devices, in groups of 1, 1, 2 and 4; under 8 minutes.
Shows: each trial runs on a group that its mesh and its memory fit, one that fits none is infeasible
  and never runs, and trials that differ in the learning rate only share a compiled program.
Expected: 12 trials, 1 of them infeasible, 9 programs in 11 trials, the best below 3.4 nats per byte
  on held_out (3.327 on 2026-11-26), in 210 s on a machine with other work.
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import graph as graphs
from luthier import launch
from luthier import study as studies
from . import lm_learning_rate

# Of one device. The wide model with two layers fits one device with rematerialization only; with
# four layers it has to be sharded, and by `tensor=2` fits two devices with rematerialization only.
MEMORY_BYTES = 13 * 2**20


def study() -> fdl.Config[studies.Study]:
    """Search sizes and the way to train them; each trial runs on a group that it fits."""
    graph = lm_learning_rate.study()
    graph.name = "mesh_and_size"
    words = ["training.steps=20", "checkpoints.every=Steps(20)", "data.length=32"]
    # Here most of the time goes to compiling the many programs, not to their steps.
    words += [*_width(32).overrides, "fiddler:quick_compile"]
    graph.base = graphs.apply(graph.base, words)
    meshes, remats = ("data=-1", "tensor=2", "fsdp=4"), ("NoRemat", "FullRemat")
    graph.space = fdl.Config(
        studies.Space,
        {
            "mesh": studies.Choice(
                [studies.Option(overrides=(f"parallelism.mesh.{m}",), name=m) for m in meshes]
            ),
            "width": studies.Choice([_width(32), _width(128)]),
            "model.num_layers": studies.Choice([2, 4]),
            "remat": studies.Choice(
                [studies.Option(overrides=(f"model.stack.remat={r}()",), name=r) for r in remats]
            ),
            "optimizer.learning_rate.peak": studies.Log(1e-3, 1e-2),
        },
    )
    graph.sampler = fdl.Config(optuna.samplers.RandomSampler)
    graph.budget.trials = 12
    graph.seed = 3
    graph.gate = fdl.Config(studies.ShapeGate, level="compile")
    graph.engine = fdl.Config(
        studies.Combined,
        [
            fdl.Config(studies.Local, slices=2, devices="cpu:2", memory_bytes=MEMORY_BYTES),
            _of_two_processes("cpu:1"),
            _of_two_processes("cpu:2"),
        ],
    )
    return graph


def _width(dim: int) -> studies.Option:
    """Return the width of the model, with that of its MLP in proportion."""
    overrides = (f"model.dim={dim}", f"model.block.mlp.hidden_dim={3 * dim}")
    return studies.Option(overrides=overrides, name=str(dim))


def _of_two_processes(devices: str) -> fdl.Config[launch.Slices]:
    """Return a group of two processes with these devices each; `Slurm` in the place of `Here`."""
    here = fdl.Config(launch.Here, processes=2, devices=devices)
    return fdl.Config(launch.Slices, here, slices=1, memory_bytes=MEMORY_BYTES)
