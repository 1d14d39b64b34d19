"""Operands of `luthier diff`: experiments, runs, trials, records and git revisions."""

from __future__ import annotations

# The place of each public name. Names are resolved on first use: an operand imports only what its
# kind needs.
_EXPORTS = {
    "Operand": "luthier.cli.operands.operand",
    "Record": "luthier.cli.operands.operand",
    "ResultOperand": "luthier.cli.operands.operand",
    "answer": "luthier.cli.operands.evaluated",
    "describe_trial": "luthier.cli.operands.recorded:describe",
    "effects_of": "luthier.cli.operands.building",
    "every_trial": "luthier.cli.operands.recorded:every",
    "find_record": "luthier.cli.operands.recorded:find",
    "find_records": "luthier.cli.operands.recorded:find_all",
    "find_revision": "luthier.cli.operands.revisions:find",
    "find_trial": "luthier.cli.operands.recorded",
    "is_trial": "luthier.cli.operands.recorded",
    "of_graph": "luthier.cli.operands.operand",
    "of_record": "luthier.cli.operands.operand",
    "read_all": "luthier.cli.operands.words",
    "read_record": "luthier.cli.operands.recorded:read",
    "read_revision": "luthier.cli.operands.revisions:read",
    "read_run": "luthier.cli.operands.recorded",
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
    "is_trial",
    "of_graph",
    "of_record",
    "read_all",
    "read_record",
    "read_revision",
    "read_run",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        import importlib

        module, _, attribute = _EXPORTS[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'luthier.cli.operands' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
