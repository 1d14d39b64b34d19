"""Optimization: recipes over Optax, schedules, masks, averages of parameters, the step guard."""

from luthier.optim.ema import Ema
from luthier.optim.guard import Guard, GuardState
from luthier.optim.masks import DECAYED, UNDECAYED, Mask, Matching, NotMatching
from luthier.optim.optimizer import Optimizer, OptimizerState, assemble
from luthier.optim.recipes import adamw, nesterov, sgd
from luthier.optim.scalars import Hyperparameter, runtime
from luthier.optim.schedules import (
    Constant,
    Exponential,
    InverseSquareRoot,
    Piecewise,
    Schedule,
    WarmupCosine,
    WarmupLinear,
    WarmupStableDecay,
)
from luthier.optim.stages import (
    accumulate_momentum,
    accumulate_nesterov_momentum,
    add_decayed_weights,
    chain,
    clip_by_global_norm,
    global_norm,
    scale_by_adam,
)

__all__ = [
    "DECAYED",
    "UNDECAYED",
    "Constant",
    "Ema",
    "Exponential",
    "Guard",
    "GuardState",
    "Hyperparameter",
    "InverseSquareRoot",
    "Mask",
    "Matching",
    "NotMatching",
    "Optimizer",
    "OptimizerState",
    "Piecewise",
    "Schedule",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupStableDecay",
    "accumulate_momentum",
    "accumulate_nesterov_momentum",
    "adamw",
    "add_decayed_weights",
    "assemble",
    "chain",
    "clip_by_global_norm",
    "global_norm",
    "nesterov",
    "runtime",
    "scale_by_adam",
    "sgd",
]
