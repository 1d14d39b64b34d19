"""Parts of somebody who uses gin: functions and a class that are registered with it."""

from __future__ import annotations

from typing import Any

import gin


@gin.configurable
def inverse_root(base: float = 1.0, warmup_steps: int = 100) -> Any:
    return base, warmup_steps


@gin.configurable("renamed_layer", module="toys")
class Registered:
    def __init__(self, dim: int = 8, activation: Any = None):
        self.dim, self.activation = dim, activation


@gin.configurable
class Trainer:
    def __init__(
        self, steps: int = gin.REQUIRED, schedule: Any = None, layers: tuple[Any, ...] = ()
    ):
        self.steps, self.schedule, self.layers = steps, schedule, layers


gin.constant("toys.GOLDEN", 1.618)
