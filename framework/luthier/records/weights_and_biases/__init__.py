"""The mirror of a run in Weights & Biases, and the run that sums up many."""

from luthier.records.weights_and_biases.mirror import (
    OUTCOME,
    SUMMARY_RUN,
    Lines,
    MirroredRows,
    Parent,
    keep_outcome,
    log_difference,
    parent_of,
)
from luthier.records.weights_and_biases.node import (
    Mirrored,
    Wandb,
    choose_mode,
    has_key,
    is_reachable,
    rebuild,
    resolved_mode,
    server,
    shared_mirrors,
)
from luthier.records.weights_and_biases.summary import (
    Summary,
    SummaryWriter,
    id_of_summary,
    mirror_summary,
)

__all__ = [
    "OUTCOME",
    "SUMMARY_RUN",
    "Lines",
    "Mirrored",
    "MirroredRows",
    "Parent",
    "Summary",
    "SummaryWriter",
    "Wandb",
    "choose_mode",
    "has_key",
    "id_of_summary",
    "is_reachable",
    "keep_outcome",
    "log_difference",
    "mirror_summary",
    "parent_of",
    "rebuild",
    "resolved_mode",
    "server",
    "shared_mirrors",
]
