"""Learning rate and weight decay by asynchronous successive halving, beside random search.

Paper: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (arXiv:1810.05934).
Command: luthier sweep sweeps.rungs, and luthier sweep sweeps.rungs:random_search
Hardware: 2 CPU cores, under 4 minutes each.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import graph as graphs
from luthier import study as studies
from . import lm_learning_rate

DEVICE_SECONDS = 150.0


def study() -> fdl.Config[studies.Study]:
    """Pause trials at 40 and 120 of 360 steps, and train the best third of each rung on."""
    graph = random_search()
    graph.name = "rungs"
    graph.scheduler = fdl.Config(studies.Asha, reduction=3, num_rungs=3)
    return graph


def random_search() -> fdl.Config[studies.Study]:
    """Train every trial to its end, for the same device time and from the same distribution."""
    graph = lm_learning_rate.study()
    graph.name = "rungs_random_search"
    words = ["training.steps=360", "evaluations.held_out.every=Steps(40)"]
    graph.base = graphs.apply(graph.base, [*words, "evaluations.held_out.num_batches=4"])
    graph.space = fdl.Config(
        studies.Space,
        {
            "optimizer.learning_rate.peak": studies.Log(1e-4, 1e-1),
            "optimizer.weight_decay": studies.Log(1e-3, 1.0),
        },
    )
    graph.sampler = fdl.Config(optuna.samplers.RandomSampler)
    # By device time and not by trials: trials that pause take a fraction of what others take.
    graph.budget = fdl.Config(studies.Budget, trials=None, device_hours=DEVICE_SECONDS / 3600)
    return graph
