"""Completion from a static index, so that a Tab never imports JAX, Flax or Fiddle."""

from __future__ import annotations

from luthier.facade import lazy_exports

# The place of each public name. Names are resolved on first use: a Tab imports `candidates` alone,
# and `building` imports the experiment.
_PLACES = {
    "NODE": "index",
    "SCRIPTS": "scripts",
    "Candidate": "index",
    "Entry": "index",
    "Index": "index",
    "build": "building",
    "claim": "index",
    "commands": "candidates",
    "complete": "candidates",
    "experiments": "candidates",
    "fingerprints": "index",
    "folder": "index",
    "keys": "candidates",
    "load": "index",
    "macros": "candidates",
    "name_of": "index",
    "offered": "candidates",
    "pages": "candidates",
    "read": "index",
    "release": "index",
    "runs": "candidates",
    "save": "index",
    "sources": "candidates",
    "start": "candidates",
    "write": "index",
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

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
