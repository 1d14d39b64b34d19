"""luthier: a JAX research framework in which a whole experiment is one lazy Fiddle graph.

Rooms are imported when they are first named, so `import luthier` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "checkpoint",
    "data",
    "durations",
    "errors",
    "graph",
    "layers",
    "losses",
    "metrics",
    "models",
    "optim",
    "parallel",
    "plan",
    "program",
    "recipes",
    "records",
    "tasks",
    "train",
)

__all__ = ["__version__", *_ROOMS, "diff"]


def __getattr__(name: str) -> Any:
    if name == "diff":
        return importlib.import_module("luthier.view.diff.page").diff
    if name in _ROOMS:
        return importlib.import_module(f"luthier.{name}")
    raise AttributeError(f"module 'luthier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
