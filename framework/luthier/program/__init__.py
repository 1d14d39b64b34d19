"""The experiment as a program: the root node, its state, its step, and how they are made."""

from luthier.program.experiment import (
    Data,
    Divergence,
    EarlyStopping,
    Evaluation,
    Experiment,
    Training,
    Weights,
)
from luthier.program.export import Exported, export
from luthier.program.hoist import HOISTABLE_FIELDS, Scalar
from luthier.program.materialize import WarmStart, materialize
from luthier.program.offload import Memory
from luthier.program.precision import MatmulPrecision, Precision, Repeatability
from luthier.program.program import Program, make, not_reused
from luthier.program.step import evaluate_step, gradient_of, init_state, train_step

__all__ = [
    "HOISTABLE_FIELDS",
    "Data",
    "Divergence",
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "Exported",
    "MatmulPrecision",
    "Memory",
    "Precision",
    "Program",
    "Repeatability",
    "Scalar",
    "Training",
    "WarmStart",
    "Weights",
    "evaluate_step",
    "export",
    "gradient_of",
    "init_state",
    "make",
    "materialize",
    "not_reused",
    "train_step",
]
