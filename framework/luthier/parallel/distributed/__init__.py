"""Several processes, on one or many hosts, that train together."""

from luthier.parallel.distributed.agreement import agree, decided, differences, together
from luthier.parallel.distributed.clock import Skew, clock_skew
from luthier.parallel.distributed.failure import explain
from luthier.parallel.distributed.handshake import JOIN_SECONDS, Attendance, call_roll
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
from luthier.parallel.distributed.pulses import Pulses, Standing

__all__ = [
    "JOIN_SECONDS",
    "Attendance",
    "GaveUp",
    "Membership",
    "Notes",
    "ProcessLost",
    "Pulses",
    "Rounds",
    "Skew",
    "Standing",
    "agree",
    "call_roll",
    "clock_skew",
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
