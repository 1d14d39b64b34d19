"""Batch size and learning rate together, for the same number of tokens.

Paper: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv:1812.06162).
Command: luthier sweep sweeps.batch_and_learning_rate
Hardware: 2 CPU cores, under 10 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import study as studies
from . import lm_learning_rate


def study() -> fdl.Config[studies.Study]:
    """Search 24 evenly spread settings; doubling the batch size halves the steps."""
    graph = lm_learning_rate.study()
    graph.name = "batch_and_learning_rate"
    # 960 sequences in every trial, so that what differs is not the number of tokens.
    rows = [
        {"training.global_batch_size": size, "training.steps": 960 // size} for size in (4, 8, 16)
    ]
    graph.space = fdl.Config(
        studies.Space,
        {
            "batch": studies.Zipped(rows),
            "optimizer.learning_rate.peak": studies.Log(5e-4, 5e-2),
        },
    )
    graph.sampler = fdl.Config(optuna.samplers.QMCSampler)
    graph.budget = fdl.Config(studies.Budget, trials=24)
    return graph
