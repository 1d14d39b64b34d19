"""The experiment as a program: the root node, the training state, and the compiled step."""

from luthier.program.accumulation import (
    additive_gradient,
    counted_gradient,
    coupled_gradient,
)
from luthier.program.epochs import with_known_steps
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
from luthier.program.hoist import (
    HOISTABLE_FIELDS,
    InexactError,
    Scalar,
    substitutions,
    values_of,
)
from luthier.program.materialize import WarmStart, materialize
from luthier.program.offload import Memory, host_bytes
from luthier.program.precision import MatmulPrecision, Precision, Repeatability
from luthier.program.program import Program, make, not_reused
from luthier.program.state import Structure, model_arrays, split
from luthier.program.step import evaluate_step, gradient_of, init_state, train_step

__all__ = [
    "HOISTABLE_FIELDS",
    "Data",
    "Divergence",
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "Exported",
    "InexactError",
    "MatmulPrecision",
    "Memory",
    "Precision",
    "Program",
    "Repeatability",
    "Scalar",
    "Structure",
    "Training",
    "WarmStart",
    "Weights",
    "additive_gradient",
    "counted_gradient",
    "coupled_gradient",
    "evaluate_step",
    "export",
    "gradient_of",
    "host_bytes",
    "init_state",
    "make",
    "materialize",
    "model_arrays",
    "not_reused",
    "split",
    "substitutions",
    "train_step",
    "values_of",
    "with_known_steps",
]
