"""Defaults as they were when a graph was recorded.

A recorded graph holds the arguments that were set. All others take the default that the class has
today, and a later luthier may have another one: a run that was trained without a
guard would be rebuilt with one, whose arrays its checkpoints do not hold. The values that are
recorded beside the graph (`config.values.json`) contain every default as it was then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from luthier.graph.paths import find
from luthier.graph.record.plain import to_dict
from luthier.graph.setting import set_value
from luthier.graph.values import Graph

_ORIGIN = "the default when this was recorded"


def restore_defaults(graph: Graph, values: Mapping[str, Any]) -> list[str]:
    """Set changed defaults back to their recorded values, in place; return what was set.

    Only values that JSON represents exactly are set: numbers, booleans and None. A default that was
    a node of another class stays, and is reported when runs are compared.

    Args:
      graph: The graph as it was loaded.
      values: The result of `to_dict` when it was recorded.

    Returns:
      `path=value` for each.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=0.1)
      >>> recorded = graph.to_dict(config) | {"momentum": 0.8}
      >>> graph.restore_defaults(config, recorded)
      ['momentum=0.8']
    """
    # Through JSON once, so that both sides went through the same conversions: tuples are lists,
    # keys are text, and floats are compared as they are read back.
    now = json.loads(json.dumps(to_dict(graph), default=str))
    restored = []
    for path, value in list(_plain_differences(values, now, "")):
        if find(graph, path).is_default:
            set_value(graph, path, value, _ORIGIN)
            restored.append(f"{path}={json.dumps(value)}".replace("=null", "=None"))
    return restored


def _plain_differences(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any]]:
    # Text is left alone: in `to_dict` it may be a dtype, a path, or the name of a class.
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        if before.get("class") != now.get("class"):
            return
        for name in before:
            if name in now and name != "class" and name.isidentifier():
                below = f"{path}.{name}" if path else name
                yield from _plain_differences(before[name], now[name], below)
    elif before != now and (before is None or type(before) in (bool, int, float)):
        yield path, before
