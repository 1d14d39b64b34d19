"""Extensions that installed distributions register by entry points in their pyproject.toml.

    [project.entry-points."luthier.components"]
    adan = "my_package.optimizers:adan"

Each names one public object, so that it can be listed, suggested and allowed in records without an
import; code is imported when somebody names it. `luthier.contrib` is found in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import sys
from collections.abc import Mapping

COMPONENTS = "luthier.components"
"""Layers, models, data, tasks, losses, optimizers, metrics: what a node of a graph may be."""

IMPORTERS = "luthier.importers"
"""Subclasses of `luthier.checkpoint.Importer`; `restore=NAME:DIR` makes one."""

ENGINES = "luthier.engines"
"""Classes like `luthier.launch.Engine`; `--on NAME` chooses one."""

SINKS = "luthier.sinks"
"""Classes whose `open` returns a `luthier.records.Sink`; elements of `records.sinks`."""

FIDDLERS = "luthier.fiddlers"
"""Functions from graph to graph; `fiddler:NAME` calls one."""

# The role of a group's objects in records. Fiddlers change a graph and are not part of it.
ROLES: Mapping[str, str] = {
    COMPONENTS: "component",
    IMPORTERS: "component",
    SINKS: "component",
    ENGINES: "engine",
}


@dataclasses.dataclass(frozen=True)
class Extension:
    """An entry point of an installed distribution.

    Args:
      name: The name for overrides and options (`adan`).
      target: The dotted name of the object: `my_package.optimizers.adan`.
      group: One of the groups above.
      distribution: The name of the distribution.
    """

    name: str
    target: str
    group: str
    distribution: str


@functools.cache
def extensions() -> tuple[Extension, ...]:
    """Return the entry points of all groups, sorted by group, name and target.

    Objects that may not be named are left out: private ones, those of Python's own modules, and
    parts of luthier outside `luthier.contrib`, whose roles are in `allowed_names.txt`.
    """
    found = set()
    # One scan of the installed distributions (some 40 ms with 130 of them), once per process, and
    # only for a name that is not one of luthier's own.
    everything = importlib.metadata.entry_points()
    for group in (*ROLES, FIDDLERS):
        for entry in everything.select(group=group):
            target = f"{entry.module}.{entry.attr}" if entry.attr else entry.module
            distribution = entry.dist.name if entry.dist is not None else ""
            if entry.attr and _may_be_named(target):
                found.add(Extension(entry.name, target, group, distribution))
    return tuple(sorted(found, key=lambda one: (one.group, one.name, one.target)))


def _may_be_named(target: str) -> bool:
    # An entry point allows its target in records, so a careless or hostile distribution must not
    # be able to allow `os.system` or to override the role that `allowed_names.txt` gives a part of
    # the core. Decided by the name alone: importing the target to look at it would run its code.
    parts = target.split(".")
    is_public = all(part.isidentifier() and part[0] != "_" for part in parts)
    is_core = parts[0] == "luthier" and parts[1] != "contrib"
    return is_public and not is_core and parts[0] not in sys.stdlib_module_names


@functools.cache
def targets() -> Mapping[str, str]:
    """Return the role in records of each object that a graph may hold, by its dotted name."""
    return {one.target: ROLES[one.group] for one in extensions() if one.group in ROLES}


@functools.cache
def packages() -> frozenset[str]:
    """Return the top-level packages that the objects are in."""
    return frozenset(one.target.partition(".")[0] for one in extensions())


def named(name: str, *groups: str) -> list[Extension]:
    """Return the entry points of a name: several where distributions chose the same one.

    Args:
      name: The name of the entry point.
      groups: The groups to search.
    """
    return [one for one in extensions() if one.name == name and one.group in groups]


def names(*groups: str) -> list[str]:
    """Return the names in some groups, each once."""
    return list(dict.fromkeys(one.name for one in extensions() if one.group in groups))
