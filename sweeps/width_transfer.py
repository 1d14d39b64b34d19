"""Learning rate against width: the best rate as the model gets wider.

Paper: Yang et al. 2022, "Tensor Programs V" (arXiv:2203.03466), figure 1: under the standard
  parametrization it moves with the width, under theirs it does not.
Command: luthier sweep sweeps.width_transfer
Hardware: 2 CPU cores, under 20 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import study as studies
from . import lm_learning_rate


def study() -> fdl.Config[studies.Study]:
    """Search a grid of widths and learning rates, with heads of size 16 and an MLP of 3 x dim."""
    # A table and not three dimensions: the values of a row only make sense together.
    widths = [
        {
            "model.dim": dim,
            "model.block.attention.num_heads": dim // 16,
            "model.block.attention.num_kv_heads": dim // 16,
            "model.block.mlp.hidden_dim": 3 * dim,
        }
        for dim in (32, 64, 128)
    ]
    graph = lm_learning_rate.study()
    graph.name = "width_transfer"
    graph.space = fdl.Config(
        studies.Space,
        {
            "width": studies.Zipped(widths),
            "optimizer.learning_rate.peak": studies.Log(1e-3, 3.2e-2),
        },
    )
    graph.sampler = fdl.Config(studies.Grid, resolution=6)
    graph.budget = fdl.Config(studies.Budget, trials=None)
    return graph
