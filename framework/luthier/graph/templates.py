"""Templates (`fdl.Partial`) where a place wants one, and its author wrote a plain call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier.graph import copies, signatures
from luthier.graph.grammar import types
from luthier.graph.paths import children, join


def make_template(node: fdl.Config) -> None:
    """Turn a config into the template of its class or function, in place.

    Args:
      node: The config.
    """
    # Past Fiddle, which would set an argument of this name. A cast would make another node, and
    # lose the changes that are made to the first one later.
    object.__setattr__(node, "__class__", fdl.Partial)


def misplaced(path: str, value: Any, annotation: Any) -> Iterator[tuple[str, fdl.Config]]:
    """Yield the configs of NNX modules at places that want templates, with their paths.

    Args:
      path: The path of the value.
      value: A node, or a container of nodes.
      annotation: The resolved annotation of the place.
    """
    if type(value) in (list, tuple, dict):
        for part, child, _ in children(value):
            inside = types.element(annotation, type(value), part)
            yield from misplaced(join(path, part), child, inside)
    elif (
        type(value) is fdl.Config
        and types.wants_template(annotation)
        and signatures.is_module_class(value.__fn_or_cls__)
    ):
        yield path, value


def correct(graph: Any) -> None:
    """Turn the configs of NNX modules at places that want templates into templates, in place.

    Args:
      graph: A node that was read from a form of config that leaves the kind of a node open.
    """
    for node in list(copies.nodes_of(graph)):
        hints = signatures.type_hints(node.__fn_or_cls__)
        for part, value in node.__arguments__.items():
            for _, config in list(misplaced("", value, hints.get(part, Any))):
                make_template(config)
