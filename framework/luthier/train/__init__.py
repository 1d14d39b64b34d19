"""Training: one call runs an experiment from its first step, or from where it was left.

`luthier.train(graph)` is this room called as a function (`luthier.train.run`).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from luthier.train.results import Result
from luthier.train.run import run
from luthier.train.trained import Trained, evaluate_run, export_run, load_run, sample_run

__all__ = [
    "Result",
    "Trained",
    "evaluate_run",
    "export_run",
    "load_run",
    "run",
    "sample_run",
]


class _CallableRoom(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
