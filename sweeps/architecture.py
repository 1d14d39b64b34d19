"""Depth, width and kind of the blocks, for loss and size together.

Command: luthier sweep sweeps.architecture
Hardware: 2 CPU cores, under 15 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import study as studies
from . import lm_learning_rate


def study() -> fdl.Config[studies.Study]:
    """Search for the Pareto front of loss and parameter count by NSGA-II."""
    mlp = "model.block.mlp="
    gated = studies.Option(
        overrides=(f"{mlp}GatedMlp(hidden_dim=192, activation=jax.nn.silu)",), name="gated"
    )
    plain = studies.Option(
        overrides=(f"{mlp}Mlp(hidden_dim=256)",),
        space=studies.Space({"model.block.mlp.hidden_dim": studies.Int(128, 384, 64)}),
        name="plain",
    )
    graph = lm_learning_rate.study()
    graph.name = "architecture"
    graph.space = fdl.Config(
        studies.Space,
        {
            "model.num_layers": studies.Int(1, 4),
            "model.dim": studies.Ordinal((32, 64, 96, 128)),
            "model.block.attention.num_kv_heads": studies.Ordinal((1, 2, 4)),
            "mlp": studies.Choice([gated, plain]),
        },
        constraints=["model.dim * model.num_layers <= 384"],
    )
    graph.objectives = [lm_learning_rate.held_out(), fdl.Config(studies.Parameters)]
    graph.sampler = fdl.Config(optuna.samplers.NSGAIISampler, population_size=8)
    graph.budget = fdl.Config(studies.Budget, trials=32)
    return graph
