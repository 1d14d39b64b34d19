"""Tasks: the loss and the metrics of a batch, for each domain."""

from luthier.tasks.classification import Classification, Observer, row_keys
from luthier.tasks.flops import Flops
from luthier.tasks.flops import count as count_flops
from luthier.tasks.language_modelling import LanguageModelling
from luthier.tasks.masked_modelling import MaskedModelling
from luthier.tasks.preferences import (
    HeldReference,
    PrecomputedReference,
    Preferences,
    Reference,
    response_log_probabilities,
)
from luthier.tasks.routed import Routed
from luthier.tasks.sequence_to_sequence import SequenceToSequence
from luthier.tasks.task import (
    Additive,
    BatchCoupled,
    CountCoupled,
    CoupledTask,
    LossSums,
    Reduction,
    Task,
)
from luthier.tasks.token_ratios import byte_ratios, exact_match, token_ratios, weighted_sum

__all__ = [
    "Additive",
    "BatchCoupled",
    "Classification",
    "CountCoupled",
    "CoupledTask",
    "Flops",
    "HeldReference",
    "LanguageModelling",
    "LossSums",
    "MaskedModelling",
    "Observer",
    "PrecomputedReference",
    "Preferences",
    "Reduction",
    "Reference",
    "Routed",
    "SequenceToSequence",
    "Task",
    "byte_ratios",
    "count_flops",
    "exact_match",
    "response_log_probabilities",
    "row_keys",
    "token_ratios",
    "weighted_sum",
]
