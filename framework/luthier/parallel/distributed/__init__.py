"""Several processes, on one or many hosts, that train together."""

from luthier.parallel.distributed.agreement import agree, decided, differences, together
from luthier.parallel.distributed.failure import explain
from luthier.parallel.distributed.joining import Membership, join
from luthier.parallel.distributed.messages import (
    GaveUp,
    ProcessLost,
    Rounds,
    ended,
    farewell,
    from_primary,
    gather,
    is_several,
    process_count,
    process_index,
)
from luthier.parallel.distributed.notes import Notes, tell_parent

__all__ = [
    "GaveUp",
    "Membership",
    "Notes",
    "ProcessLost",
    "Rounds",
    "agree",
    "decided",
    "differences",
    "ended",
    "explain",
    "farewell",
    "from_primary",
    "gather",
    "is_several",
    "join",
    "process_count",
    "process_index",
    "tell_parent",
    "together",
]
