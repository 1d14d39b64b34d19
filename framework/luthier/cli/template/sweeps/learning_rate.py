"""The learning rate of a model, in a few short trials.

Command: luthier sweep sweeps.learning_rate
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import graph, metrics
from luthier import study as studies

BASE = "configs.addition"
SHORTER = ["training.steps=200"]
LEARNING_RATE = "optimizer.learning_rate.peak"
LOWEST, HIGHEST = 3e-4, 3e-2
OBJECTIVE = ("held_out", "answer_accuracy", "higher")


def study() -> fdl.Config[studies.Study]:
    """Search the learning rate by TPE, in 8 trials."""
    return fdl.Config(
        studies.Study,
        name="learning_rate",
        base=graph.apply(graph.resolve(BASE), SHORTER),
        space=fdl.Config(studies.Space, {LEARNING_RATE: studies.Log(LOWEST, HIGHEST)}),
        objectives=[fdl.Config(studies.Measured, fdl.Config(metrics.Selector, *OBJECTIVE))],
        sampler=fdl.Config(optuna.samplers.TPESampler, n_startup_trials=4),
        budget=fdl.Config(studies.Budget, trials=8),
        engine=fdl.Config(studies.Local),
        gate=fdl.Config(studies.ShapeGate),
    )
