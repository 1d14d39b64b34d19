"""A small transformer over patches forecasts carbon dioxide at Mauna Loa, 26 weeks ahead.

Paper: Nie et al. 2022, "A Time Series is Worth 64 Words", arXiv:2211.14730; the scaled error:
  Hyndman and Koehler 2006, International Journal of Forecasting 22(4).
Command: luthier train configs.series.forecast
Hardware: 2 CPU cores, under 1 minute; the data is read from `pip install --no-deps statsmodels`.
Expected: mean_absolute_scaled_error <= 0.40 on held_out (0.299 on 2026-11-21). To repeat the last
  year's weeks gives 1.18, to repeat the last week 1.98.
"""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import (
    checkpoint,
    durations,
    layers,
    losses,
    optim,
    parallel,
    program,
    records,
)
from luthier.contrib import series
from luthier.graph import floor_divide, value


def experiment() -> fdl.Config[program.Experiment]:
    """Train a transformer on weeks of 1958 to 1988; those from 1992 to 2001 are held out."""
    steps = value(600, name="steps")
    length = value(104, name="length")
    horizon = value(26, name="horizon")
    return fdl.Config(
        program.Experiment,
        name="forecast",
        seed=0,
        model=fdl.Partial(
            series.PatchTransformer,
            length=length,
            horizon=horizon,
            dim=32,
            num_layers=2,
            block=fdl.Partial(
                layers.PreNormBlock,
                attention=fdl.Partial(
                    layers.Attention,
                    num_heads=4,
                    core=fdl.Config(layers.EinsumAttention, mask=fdl.Config(layers.SameDocument)),
                ),
                mlp=fdl.Partial(layers.Mlp, hidden_dim=64, activation=jax.nn.gelu),
                norm=fdl.Partial(layers.LayerNorm),
                dropout=fdl.Partial(layers.Dropout, rate=0.1),
            ),
            norm=fdl.Partial(layers.LayerNorm),
            patch_length=13,
            stride=13,
        ),
        task=fdl.Config(series.Forecasting, objective=fdl.Config(losses.SquaredError), season=52),
        data=_weeks(length, horizon, 0.0, 0.7),
        evaluations={
            "held_out": fdl.Config(
                program.Evaluation,
                data=_weeks(length, horizon, 0.8, 1.0),
                every=fdl.Config(durations.Steps, 200),
                global_batch_size=216,
            )
        },
        optimizer=fdl.Config(
            optim.adamw,
            learning_rate=fdl.Config(
                optim.WarmupCosine,
                peak=2e-3,
                warmup_steps=floor_divide(steps, 10),
                total_steps=steps,
                end=2e-5,
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        training=fdl.Config(
            program.Training, steps=steps, global_batch_size=64, guard=fdl.Config(optim.Guard)
        ),
        parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh)),
        checkpoints=fdl.Config(checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 300)),
        records=fdl.Config(
            records.Records,
            console=fdl.Config(records.Console),
            wandb=fdl.Config(records.Wandb, project="luthier"),
        ),
    )


def _weeks(
    length: object, horizon: object, start: float, stop: float
) -> fdl.Config[series.ForecastWindows]:
    return fdl.Config(
        series.ForecastWindows,
        series=fdl.Config(series.PackagedSeries, name="co2"),
        context_length=length,
        horizon=horizon,
        start=start,
        stop=stop,
        statistics=0.7,
    )
