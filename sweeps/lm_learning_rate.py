"""Learning rate and weight decay of a small language model.

Command: luthier sweep sweeps.lm_learning_rate
Hardware: 2 CPU cores, under 5 minutes.
Expected: 16 trials, the best below 3.1 nats per byte on held_out (3.036 on 2026-11-22), in 80 s.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import optuna

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies

# Of luthier's own experiments, also from the wheel, where they are in another package.
_PACKAGE = __name__.partition("sweeps.")[0]


def study() -> fdl.Config[studies.Study]:
    """Search learning rate and weight decay by TPE, in 16 trials of a small quickstart."""
    return fdl.Config(
        studies.Study,
        name="lm_learning_rate",
        base=shrunk(),
        space=fdl.Config(
            studies.Space,
            {
                "optimizer.learning_rate.peak": studies.Log(3e-4, 3e-2),
                "optimizer.weight_decay": studies.Log(1e-3, 1.0),
            },
        ),
        objectives=[held_out()],
        sampler=fdl.Config(optuna.samplers.TPESampler, n_startup_trials=6),
        budget=fdl.Config(studies.Budget, trials=16),
        engine=fdl.Config(studies.Local),
        gate=fdl.Config(studies.ShapeGate),
    )


def shrunk() -> Any:
    """Return the quickstart, small enough for many trials on a laptop."""
    words = [
        "model.num_layers=2",
        "model.dim=64",
        "model.block.mlp.hidden_dim=192",
        "training.steps=60",
        "data.length=64",
        "evaluations.held_out.every=None",
        "reset:evaluations.held_out.num_batches",
        "checkpoints.every=Steps(60)",
    ]
    return graphs.apply(graphs.resolve(f"{_PACKAGE}configs.lm.quickstart"), words)


def held_out() -> fdl.Config[studies.Measured]:
    """Judge by the nats per byte of the plays that were held out."""
    selector = fdl.Config(metrics.Selector, "held_out", "nats_per_byte", "lower")
    return fdl.Config(studies.Measured, selector)
