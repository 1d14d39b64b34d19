"""A small transformer over patches forecasts carbon dioxide at Mauna Loa, 26 weeks ahead.

Paper: Nie et al. 2022, "A Time Series is Worth 64 Words", arXiv:2211.14730; the scaled error:
  Hyndman and Koehler 2006, International Journal of Forecasting 22(4).
Command: luthier train configs.series.forecast
Parameters: 24,954.
Hardware: 2 CPU cores, under 1 minute; the data is read from `pip install --no-deps statsmodels`.
Expected: mean_absolute_scaled_error <= 0.40 on held_out (0.299 on 2026-11-21). To repeat the last
  year's weeks gives 1.18, to repeat the last week 1.98.
"""

from luthier import lazy
from luthier.graph import floor_divide, value

with lazy.imports():
    import jax

    from luthier import checkpoint, durations, layers, losses, optim, program, records
    from luthier.contrib import series


def experiment() -> program.Experiment:
    """Train a transformer on weeks of 1958 to 1988; those from 1992 to 2001 are held out."""
    steps = value(600, name="steps")
    length = value(104, name="length")
    horizon = value(26, name="horizon")
    return program.Experiment(
        name="forecast",
        seed=0,
        model=series.PatchTransformer(
            length=length,
            horizon=horizon,
            dim=32,
            num_layers=2,
            block=layers.PreNormBlock(
                attention=layers.Attention(
                    num_heads=4,
                    core=layers.AutoAttention(mask=layers.SameDocument()),
                ),
                mlp=layers.Mlp(hidden_dim=64, activation=jax.nn.gelu),
                norm=layers.LayerNorm(),
                dropout=layers.Dropout(rate=0.1),
            ),
            norm=layers.LayerNorm(),
            patch_length=13,
            stride=13,
        ),
        task=series.Forecasting(objective=losses.SquaredError(), season=52),
        data=_weeks(length, horizon, 0.0, 0.7),
        evaluations={
            "held_out": program.Evaluation(
                data=_weeks(length, horizon, 0.8, 1.0),
                every=durations.Steps(200),
                global_batch_size=216,
            )
        },
        optimizer=optim.adamw(
            learning_rate=optim.WarmupCosine(
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
        training=program.Training(steps=steps, global_batch_size=64),
        checkpoints=checkpoint.Checkpoints(every=durations.Steps(300)),
        records=records.Records(wandb=records.Wandb()),
    )


def _weeks(length: int, horizon: int, start: float, stop: float) -> series.ForecastWindows:
    return series.ForecastWindows(
        series=series.PackagedSeries(name="co2"),
        context_length=length,
        horizon=horizon,
        start=start,
        stop=stop,
        statistics=0.7,
    )
