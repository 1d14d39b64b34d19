"""A small state space model on the series of the UCR archive: is it a gun that is drawn?

Paper: Smith et al. 2022, "Simplified State Space Layers for Sequence Modeling", arXiv:2208.04933;
  the data: Dau et al. 2018, arXiv:1810.07758.
Command: luthier train configs.series.ucr
Parameters: 15,234.
Hardware: 2 CPU cores, under 1 minute; the data is read from `pip install --no-deps aeon`.
Expected: accuracy >= 0.95 on held_out (0.987 on 2026-11-21).
"""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import checkpoint, data, durations, layers, optim, parallel, program, records, tasks
from luthier.contrib import series, state_space
from luthier.graph import floor_divide, value


def experiment() -> fdl.Config[program.Experiment]:
    """Classify the series of GunPoint, 50 of 150 points in 2 classes; 150 are held out."""
    steps = value(400, name="steps")
    return fdl.Config(
        program.Experiment,
        name="gun-point",
        seed=0,
        model=fdl.Partial(
            series.SeriesClassifier,
            num_classes=2,
            dim=32,
            num_layers=2,
            block=fdl.Partial(
                layers.PreNormBlock,
                attention=fdl.Partial(state_space.S5, num_states=16),
                mlp=fdl.Partial(layers.Mlp, hidden_dim=64, activation=jax.nn.gelu),
                norm=fdl.Partial(layers.LayerNorm),
                dropout=fdl.Partial(layers.Dropout, rate=0.1),
            ),
            norm=fdl.Partial(layers.LayerNorm),
            embedding=fdl.Partial(layers.Convolution, kernel_size=(9,), strides=(2,)),
            num_channels=1,
        ),
        task=fdl.Config(tasks.Classification, label_smoothing=0.1, input_axes=("length", None)),
        data=_series(
            "GunPoint",
            "train",
            [
                fdl.Config(data.Shift, at_most=5),
                fdl.Config(data.Scale, low=0.8, high=1.2),
                fdl.Config(data.Noise, std=0.05),
            ],
        ),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=_series("GunPoint", "test", []),
                every=fdl.Config(durations.Steps, 100),
                global_batch_size=152,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine,
                peak=3e-3,
                warmup_steps=floor_divide(steps, 10),
                total_steps=steps,
                end=3e-5,
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        training=fdl.Config(
            program.Training, steps=steps, global_batch_size=25, guard=fdl.Config(optim.Guard)
        ),
        parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh)),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 200)),
        records=fdl.Config(
            records.Records,
            console=fdl.Config(records.Console),
            wandb=fdl.Config(records.Wandb, project="luthier"),
        ),
    )


def italy_power_demand() -> fdl.Config[program.Experiment]:
    """Classify days of Italian power demand into 2 seasons: 67 days for training, 1,029 held out.

    Command: luthier train configs.series.ucr:italy_power_demand
    Parameters: 15,042.
    Hardware: 2 CPU cores, under 1 minute; the data is read from `pip install --no-deps aeon`.
    Expected: accuracy >= 0.93 on held_out (0.953 on 2026-11-21).
    """
    graph = experiment()
    graph.name = "italy-power-demand"
    graph.model.embedding = fdl.Partial(layers.Convolution, kernel_size=(3,))
    graph.data.source.name = "ItalyPowerDemand"
    graph.data.augmentations = [fdl.Config(data.Noise, std=0.1)]
    graph.evaluations["held_out"].data.source.name = "ItalyPowerDemand"
    graph.evaluations["held_out"].global_batch_size = 344
    return graph


def _series(name: str, split: str, augmentations: list[object]) -> fdl.Config[data.Classification]:
    return fdl.Config(
        data.Classification,
        source=fdl.Config(data.Ucr, name=name, split=split),
        augmentations=augmentations,
    )
