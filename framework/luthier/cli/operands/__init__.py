"""Operands of `luthier diff`: experiments, runs, trials, records and git revisions."""

from __future__ import annotations

from luthier.facade import lazy_exports

# The place of each public name. Names are resolved on first use: an operand imports only what its
# kind needs.
_PLACES = {
    "Operand": "operand",
    "Record": "operand",
    "ResultOperand": "operand",
    "answer": "evaluated",
    "describe_trial": "recorded:describe",
    "effects_of": "building",
    "every_trial": "recorded:every",
    "find_record": "recorded:find",
    "find_records": "recorded:find_all",
    "find_revision": "revisions:find",
    "find_trial": "recorded",
    "is_range": "ranges",
    "is_trial": "recorded",
    "of_graph": "operand",
    "of_record": "operand",
    "read_all": "words",
    "read_range": "ranges:read",
    "read_record": "recorded:read",
    "read_revision": "revisions:read",
    "read_run": "recorded",
}

__all__ = [
    "Operand",
    "Record",
    "ResultOperand",
    "answer",
    "describe_trial",
    "effects_of",
    "every_trial",
    "find_record",
    "find_records",
    "find_revision",
    "find_trial",
    "is_range",
    "is_trial",
    "of_graph",
    "of_record",
    "read_all",
    "read_range",
    "read_record",
    "read_revision",
    "read_run",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
