"""Names that people of other frameworks type first, and what they are called here."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from luthier.graph.grammar.statements import Statement
from luthier.graph.paths import Place, parse_path


@functools.cache
def table() -> Mapping[str, tuple[str, ...]]:
    """Return the targets of every alias by its name in lower case; see `aliases.toml`."""
    text = resources.files("luthier.graph").joinpath("aliases.toml").read_text(encoding="utf-8")
    found: dict[str, tuple[str, ...]] = {}
    for entry in tomllib.loads(text)["alias"]:
        for name in entry["names"]:
            found[name.lower()] = tuple(entry["targets"])
    return found


def _expression(end: str) -> str:
    start = "^" if end.startswith("^") else r"(^|\.)"
    return start + re.escape(end.removeprefix("^")).replace(r"\*", r"[^.]+") + "$"


def is_alias(name: str) -> bool:
    """Return whether people of another framework have a name for a setting.

    Args:
      name: The last part of a path, as people wrote it.

    Returns:
      True if the name is recorded as the one that another framework has for a setting of luthier;
      errors then name the setting instead of the nearest spelling.

    Example:
      >>> from luthier import graph
      >>> graph.is_alias("lr"), graph.is_alias("learning_rate")
      (True, True)
    """
    return bool(_targets(name))


def _targets(name: str) -> tuple[str, ...]:
    return table().get(name.lower().replace("-", "_"), ())


def values(path: str, text: str) -> Iterator[str]:
    """Yield values that may be meant by one that its place does not take.

    Args:
      path: The place, as `model.block.dropout`.
      text: The value, as `0.1`.
    """
    for target in _targets(path.rpartition(".")[2]):
        end, _, value = target.partition("=")
        if value and end.rpartition(".")[2] == path.rpartition(".")[2]:
            yield value.replace("{value}", text)


def statements(statement: Statement, places: Sequence[Place]) -> Iterator[str]:
    """Yield statements that may be meant by one whose path does not exist, best first.

    Args:
      statement: `lr=3e-4`, `optimizer.lr=3e-4`, `model.n_layers=2`.
      places: Every place of the graph.
    """
    # The last part alone counts, as `training.lr` and `optimizer.lr` mean the same. Of the places
    # that end as a target does, those below the part of the path that exists come first, and then
    # those of the shortest paths: `optimizer` before the optimizer of an adapter.
    names = [part for part in parse_path(statement.target) if isinstance(part, str)]
    if not names:
        return
    prefix = f"{names[0]}." if len(names) > 1 else ""
    for target in _targets(names[-1]):
        end, equals, value = target.partition("=")
        pattern = re.compile(_expression(end))
        fitting = [place.path for place in places if pattern.search(place.path)]
        for path in sorted(fitting, key=lambda path: (not path.startswith(prefix), len(path))):
            if equals:
                yield f"{path}={value.replace('{value}', statement.text)}"
            else:
                yield f"{path}{statement.operator}{statement.text}"
