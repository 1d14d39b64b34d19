"""A study on device groups whose processes share nothing but a bucket, for processes of a test."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from typing import Any

DISKS = "LUTHIER_TEST_DISKS"
"""The variable with the folder of all disks."""

STEPS = 30
WORDS = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    f"training.steps={STEPS}",
    "training.global_batch_size=4",
    "checkpoints.every.count=10",
    "evaluations.held_out.every.count=15",
    "evaluations.held_out.num_batches=1",
    "evaluations.held_out.global_batch_size=4",
    "records.console=None",
    "records.wandb=None",
    "fiddler:quick_compile",
)
NUM_TRIALS = 24


def study(*sizes: int) -> Any:
    """Return a study over mesh, width, rematerialization and learning rate.

    Args:
      *sizes: The number of processes of each device group.
    """
    import fiddle as fdl

    from luthier import graph as graphs
    from luthier import metrics
    from luthier import study as studies

    base = graphs.apply(graphs.resolve("configs.lm.quickstart"), WORDS)
    meshes, remats = ("data=-1", "fsdp=2"), ("NoRemat", "FullRemat")
    widths = {d: (f"model.dim={d}", f"model.block.mlp.hidden_dim={2 * d}") for d in (16, 32)}
    dimensions = {
        "mesh": studies.Choice(
            [studies.Option(overrides=(f"parallelism.mesh.{m}",), name=m) for m in meshes]
        ),
        "width": studies.Choice(
            [studies.Option(overrides=words, name=str(d)) for d, words in widths.items()]
        ),
        "remat": studies.Choice(
            [studies.Option(overrides=(f"model.stack.remat={r}()",), name=r) for r in remats]
        ),
        "optimizer.learning_rate.peak": studies.Log(1e-3, 1e-1),
    }
    loss = fdl.Config(metrics.Selector, "held_out", "loss", "lower")
    return fdl.Config(
        studies.Study,
        name="groups",
        base=base,
        space=fdl.Config(studies.Space, dimensions),
        objectives=[fdl.Config(studies.Measured, loss)],
        sampler=studies.sampler("random"),
        budget=fdl.Config(studies.Budget, trials=NUM_TRIALS, retries=100),
        engine=fdl.Config(studies.Combined, [_group(size) for size in sizes]),
        packing=fdl.Config(studies.SharedPrograms, lanes="single"),
        gate=fdl.Config(studies.ShapeGate, level="shapes"),
        dedupe=None,
        storage=None,
        directory="gs://lab/studies",
    )


def _group(processes: int) -> Any:
    import fiddle as fdl

    from luthier import launch

    return fdl.Config(slices, fdl.Config(launch.Here, processes=processes, devices="cpu:1"))


def four() -> Any:
    """Four groups, two of them of two processes."""
    return study(1, 1, 2, 2)


def three() -> Any:
    """One group of one process less."""
    return study(1, 2, 2)


def five() -> Any:
    """Two groups of one process more."""
    return study(1, 1, 2, 2, 1)


def slices(on: Any) -> Any:
    """Return the engine of one device group, whose processes have a disk each."""
    from luthier import launch

    class OwnDisks(launch.Slices):
        def _group(self, index: int, place: pathlib.Path) -> Any:
            group = super()._group(index, place)
            # A new one for each driver: what was on the disks of its predecessor is gone.
            disk = f"{os.urandom(4).hex()}-{index}"
            return dataclasses.replace(group, command=["-m", "own_disks", disk, *group.command])

    return OwnDisks(on)


def main(disk: str, *words: str) -> None:
    """Become a worker that has a disk of its own."""
    place = pathlib.Path(os.environ[DISKS], f"{disk}-{os.environ['LUTHIER_RANK']}")
    place.mkdir(parents=True, exist_ok=True)
    (place / "pid").write_text(str(os.getpid()))
    os.environ["XDG_CACHE_HOME"] = os.environ["HOME"] = str(place)
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
