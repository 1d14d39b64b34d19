"""Depth, width and kind of the blocks, for loss and size together.

Command: luthier sweep sweeps.architecture
Hardware: 2 CPU cores, under 15 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import sweep
from sweeps import lm_learning_rate


def study() -> fdl.Config[sweep.Study]:
    """Search for the front of loss and parameters by NSGA-II."""
    mlp = "model.block.mlp="
    gated = sweep.Option(
        words=(f"{mlp}GatedMlp(hidden_dim=192, activation=jax.nn.silu)",), name="gated"
    )
    plain = sweep.Option(
        words=(f"{mlp}Mlp(hidden_dim=256)",),
        space=sweep.Space({"model.block.mlp.hidden_dim": sweep.Int(128, 384, 64)}),
        name="plain",
    )
    graph = lm_learning_rate.study()
    graph.name = "architecture"
    graph.space = fdl.Config(
        sweep.Space,
        {
            "model.num_layers": sweep.Int(1, 4),
            "model.dim": sweep.Ordinal((32, 64, 96, 128)),
            "model.block.attention.num_kv_heads": sweep.Ordinal((1, 2, 4)),
            "mlp": sweep.Choice([gated, plain]),
        },
        constraints=["model.dim * model.num_layers <= 384"],
    )
    graph.objectives = [lm_learning_rate.held_out(), fdl.Config(sweep.Parameters)]
    graph.sampler = fdl.Config(optuna.samplers.NSGAIISampler, population_size=8)
    graph.budget = fdl.Config(sweep.Budget, trials=32)
    return graph
