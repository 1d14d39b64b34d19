"""Training: one call runs an experiment from its first step, or from where it was left.

`luthier.train` is `run`, and `luthier.evaluate` is `evaluate_run`.
"""

from __future__ import annotations

from luthier.trainer.results import Result
from luthier.trainer.run import run
from luthier.trainer.trained import Trained, evaluate_run, export_run, load_run, sample_run

__all__ = [
    "Result",
    "Trained",
    "evaluate_run",
    "export_run",
    "load_run",
    "run",
    "sample_run",
]
