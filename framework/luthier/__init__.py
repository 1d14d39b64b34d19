"""luthier: a JAX research framework in which a whole experiment is one lazy Fiddle graph.

    graph = luthier.experiment("quickstart", ["training.steps=200", "fiddler:debug"])
    luthier.plan(graph, slice="v5e-16")
    result = luthier.train(graph)

Each command of the command line is a function here; the components of a graph are in the packages.
Both are imported on first use, so `import luthier` is fast. Type checkers and editors find the
signatures in `__init__.pyi`.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

__version__ = "0.1.0"

# `module:function` of every function at the root. They are resolved in `__getattr__` and not
# imported above, because nearly all of them import JAX, which takes seconds: `luthier --help` and
# Tab import this module, too (`tests/repo/test_imports.py` holds that).
_FUNCTIONS = {
    "diff": "luthier.cli.experiments:diff",
    "evaluate": "luthier.trainer.trained:evaluate_run",
    "experiment": "luthier.cli.experiments:experiment",
    "install": "luthier.installation:install",
    "plan": "luthier.planner.planning:plan",
    "plot": "luthier.view.plot:plot",
    "runs": "luthier.records.catalogue:list_runs",
    "sweep": "luthier.study.sweep:sweep",
    "train": "luthier.trainer.run:run",
}
# Only these packages are lazy. Each of them imports all of its modules when it is named: bare names
# in overrides are looked up among the loaded subclasses of an annotation, and what is found must
# not depend on what was imported before. Lazy packages would load 391 of 534 modules for a plan by
# shapes and save 4 to 7 % of its time, which is not worth that.
_PACKAGES = (
    "checkpoint",
    "data",
    "durations",
    "errors",
    "graph",
    "launch",
    "layers",
    "lazy",
    "losses",
    "metrics",
    "models",
    "optim",
    "parallel",
    "planner",
    "program",
    "recipes",
    "records",
    "study",
    "tasks",
    "trainer",
)

__all__ = [
    "__version__",
    "checkpoint",
    "data",
    "diff",
    "durations",
    "errors",
    "evaluate",
    "experiment",
    "graph",
    "install",
    "launch",
    "layers",
    "lazy",
    "losses",
    "metrics",
    "models",
    "optim",
    "parallel",
    "plan",
    "planner",
    "plot",
    "program",
    "recipes",
    "records",
    "runs",
    "study",
    "sweep",
    "tasks",
    "train",
    "trainer",
]


def __getattr__(name: str) -> Any:
    # Python calls this only where the module has no such attribute. Packages become attributes when
    # they are imported; functions are looked up again at every use, which costs a dictionary
    # access.
    if name in _FUNCTIONS:
        module, _, function = _FUNCTIONS[name].partition(":")
        return getattr(importlib.import_module(module), function)
    if name in _PACKAGES:
        return importlib.import_module(f"luthier.{name}")
    # `from luthier import folders` asks for the attribute before it imports the module: no hint
    # then, whose making imports more than a Tab may.
    place = f"{__path__[0]}/{name}"
    is_module = os.path.isdir(place) or os.path.isfile(f"{place}.py")
    hint = "" if name.startswith("_") or is_module else _hint(name)
    raise AttributeError(f"module 'luthier' has no attribute {name!r}{hint}")


# What users of other libraries look for here, and its name.
_ELSEWHERE = {
    "compare": "luthier.diff",
    "fit": "luthier.train",
    "load": "luthier.models.load",
    "resume": "luthier.train",
    "show": "luthier.graph.render",
    "tune": "luthier.sweep",
}


def _hint(name: str) -> str:
    """Return the end of a message: where something that the root does not have may be found."""
    if name in _ELSEWHERE:
        return f"; use {_ELSEWHERE[name]}"
    import difflib

    places = [f"luthier.{package}.{name}" for package, names in _exports().items() if name in names]
    near = places or [f"luthier.{one}" for one in difflib.get_close_matches(name, __all__)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


@functools.cache
def _exports() -> dict[str, tuple]:
    """Return what each package exports."""
    import pathlib

    from luthier.facade import exported_names

    # The facades are parsed, and not imported: `hasattr(luthier, ...)` must stay cheap. They are
    # parsed once: the search for the public names of a graph's classes asks for twenty or more.
    root = pathlib.Path(__file__).parent
    found = {}
    for package in _PACKAGES:
        file = root / package / "__init__.py"
        file = file if file.exists() else root / f"{package}.py"
        source = file.read_text(encoding="utf-8")
        found[package] = exported_names(source, file.name == "__init__.py")
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
