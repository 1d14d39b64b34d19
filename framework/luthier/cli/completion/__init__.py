"""Completion from a static index, so that a Tab never imports JAX, Flax or Fiddle."""

from __future__ import annotations

# The place of each public name. Names are resolved on first use: a Tab imports `candidates` alone,
# and `building` imports the experiment.
_EXPORTS = {
    "NODE": "luthier.cli.completion.index",
    "SCRIPTS": "luthier.cli.completion.scripts",
    "Candidate": "luthier.cli.completion.index",
    "Entry": "luthier.cli.completion.index",
    "Index": "luthier.cli.completion.index",
    "build": "luthier.cli.completion.building",
    "claim": "luthier.cli.completion.index",
    "commands": "luthier.cli.completion.candidates",
    "complete": "luthier.cli.completion.candidates",
    "experiments": "luthier.cli.completion.candidates",
    "fingerprints": "luthier.cli.completion.index",
    "folder": "luthier.cli.completion.index",
    "keys": "luthier.cli.completion.candidates",
    "load": "luthier.cli.completion.index",
    "macros": "luthier.cli.completion.candidates",
    "name_of": "luthier.cli.completion.index",
    "offered": "luthier.cli.completion.candidates",
    "pages": "luthier.cli.completion.candidates",
    "read": "luthier.cli.completion.index",
    "release": "luthier.cli.completion.index",
    "runs": "luthier.cli.completion.candidates",
    "save": "luthier.cli.completion.index",
    "sources": "luthier.cli.completion.candidates",
    "start": "luthier.cli.completion.candidates",
    "write": "luthier.cli.completion.index",
}

__all__ = [
    "NODE",
    "SCRIPTS",
    "Candidate",
    "Entry",
    "Index",
    "build",
    "claim",
    "commands",
    "complete",
    "experiments",
    "fingerprints",
    "folder",
    "keys",
    "load",
    "macros",
    "name_of",
    "offered",
    "pages",
    "read",
    "release",
    "runs",
    "save",
    "sources",
    "start",
    "write",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        import importlib

        module, _, attribute = _EXPORTS[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'luthier.cli.completion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
