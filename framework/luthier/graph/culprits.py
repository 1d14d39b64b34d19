"""From an exception back to the config: the node whose code raised it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from luthier import user_code
from luthier.graph.paths import walk
from luthier.graph.values import Graph


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The node of the user's code that raised an exception.

    Args:
      path: Its path; `PATH and 2 more` where several nodes have that class, empty if it is unknown.
      component: Its class or function; None if it is unknown.
    """

    path: str = ""
    component: Any = None


def culprit_of(error: BaseException, graph: Graph) -> Culprit:
    """Return the node of the user's class or function whose code raised an exception.

    It is that of the innermost frame whose `self` is of a class, or whose code is that of a
    function, that a node of the graph names. A call that does not fit the signature has no such
    frame, and is found by the name in the message.

    Args:
      error: The exception.
      graph: The experiment graph.

    Returns:
      The path and the class or function of the node. The path is empty, or a file and line of the
      user's, where no node of the graph has the frame.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=0.1)
      >>> graph.culprit_of(ValueError("of luthier itself"), config)
      Culprit(path='', component=None)
    """
    with contextlib.suppress(Exception):  # this is an extra: nothing of it may hide the error
        # From the traceback back to the graph. A method is recognized by the class of its `self`, a
        # function by its code object: a frame does not know its function.
        paths: dict[Any, list[str]] = {}
        components: dict[Any, Any] = {}
        names: dict[str, Any] = {}
        for place in walk(graph, once=True):
            # A leaf may be one, too: `activation=my_project.layers.shrink`.
            component = getattr(place.value, "__fn_or_cls__", place.value)
            key = component if isinstance(component, type) else getattr(component, "__code__", None)
            if key is None:
                continue
            paths.setdefault(key, []).append(place.path)
            components[key] = component
            if user_code.is_users_component(component):
                names[component.__qualname__] = key
        # The innermost frame that belongs to a node: outer ones are of the nodes that contain it.
        keys: list[Any] = []
        for frame, _ in reversed(user_code.frames(error)):
            keys += [frame.f_code, type(frame.f_locals.get("self"))]
        keys.append(names.get(user_code.miscalled(error)[0]))
        for key in keys:
            if found := paths.get(key):
                # A frame does not show which of several nodes of one class or function it is of.
                path = found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more"
                return Culprit(path, components[key])
    return Culprit(user_code.located(error) if user_code.frames(error) else "")


def users_components(graph: Graph) -> dict[str, Any]:
    """Return the user's classes and functions that nodes of a graph name, by path.

    Args:
      graph: The experiment graph.

    Returns:
      Classes and functions by the path of their node; a shared node has its first path.
      Components of luthier and of installed libraries are left out.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.users_components(fdl.Config(optim.adamw, learning_rate=3e-4))
      {}
    """
    found = {}
    for place in walk(graph, once=True):
        component = getattr(place.value, "__fn_or_cls__", None)
        if component is not None and user_code.is_users_component(component):
            found[place.path] = component
    return found
