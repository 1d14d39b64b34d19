"""Engines, which run trials on device groups, and what their workers are made of.

The names are imported at their first use: an engine in the driver needs no JAX, its workers do.
"""

from __future__ import annotations

from luthier.facade import lazy_exports

_PLACES = {
    "Answer": "messages",
    "Close": "messages",
    "Combined": "combined",
    "Devices": "local",
    "EXIT_ORPHANED": "execution",
    "Execution": "execution",
    "Inbox": "execution",
    "LaneRunner": "packed_trials",
    "LaneVector": "packed_trials",
    "Local": "local",
    "LocalSlice": "local",
    "MessageWriter": "messages",
    "Pack": "packed_trials",
    "PackingChoice": "packed_trials",
    "Planned": "planned",
    "Plans": "execution",
    "Refill": "messages",
    "StepCost": "packed_trials",
    "Stop": "messages",
    "TrialTask": "execution",
    "TrialWatcher": "execution",
    "compile_lanes": "packed_trials",
    "cut": "local",
    "decode": "messages",
    "encode": "messages",
    "environment": "local",
    "failed": "execution",
    "read_messages": "messages",
    "summary": "execution",
    "why_infeasible": "execution",
}

__all__ = [
    "EXIT_ORPHANED",
    "Answer",
    "Close",
    "Combined",
    "Devices",
    "Execution",
    "Inbox",
    "LaneRunner",
    "LaneVector",
    "Local",
    "LocalSlice",
    "MessageWriter",
    "Pack",
    "PackingChoice",
    "Planned",
    "Plans",
    "Refill",
    "StepCost",
    "Stop",
    "TrialTask",
    "TrialWatcher",
    "compile_lanes",
    "cut",
    "decode",
    "encode",
    "environment",
    "failed",
    "read_messages",
    "summary",
    "why_infeasible",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
