"""Rename tables: from the keys of a ConfigDict to paths of a graph.

"optimizer.lr" = "optimizer.learning_rate"     # a key, and all that is below it
image_size = ["data.size", "model.image_size"] # several places, which stay one value
wandb = false                                  # left out
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, OverrideError, Problem, listed
from luthier.graph import values
from luthier.graph.formats.config_dict.loading import SOURCE
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.origins import location_text
from luthier.graph.paths import Path, Place, format_path, is_node, nearest, parse_path
from luthier.graph.record.history_log import sets_of
from luthier.graph.values import Graph

Key = Path


class Renames:
    """The paths of the keys of a ConfigDict; a key that is not renamed is its own path.

    Args:
      tables: Tables, each with its source; later ones win. They map keys to a path, to several
        paths, or to None or False for what is left out.

    Raises:
      OverrideError: Keys or paths cannot be read; all of them are listed.
    """

    def __init__(self, tables: Sequence[tuple[Mapping[str, Any], str]]):
        self._table: dict[Key, tuple[Path, ...]] = {}
        self._sources: dict[Key, str] = {}
        problems: list[Problem] = []
        for table, source in tables:
            for key, meant in _flat(table, ()):
                self._sources[key] = source
                try:
                    self._table[key] = _paths(meant)
                except BadInput as error:
                    problems += [Problem(p.what, origin=self._origin(key)) for p in error.problems]
        if problems:
            raise OverrideError(problems)

    def targets(self, key: Key) -> list[Path]:
        """Return the paths of a key; none where it is left out.

        Args:
          key: A key of the ConfigDict.
        """
        # The longest renamed part counts: "model" may go elsewhere as a whole, and "model.dim" not
        # along with it.
        for end in range(len(key), 0, -1):
            if key[:end] in self._table:
                return [(*path, *key[end:]) for path in self._table[key[:end]]]
        return [key]

    def has_below(self, key: Key) -> bool:
        """Return whether something below a key is renamed.

        Args:
          key: A key of the ConfigDict.
        """
        return any(len(other) > len(key) and other[: len(key)] == key for other in self._table)

    def unused(self, keys: Iterable[Key]) -> Iterator[Problem]:
        """Yield a problem for each renamed key that a ConfigDict does not have.

        Args:
          keys: The keys that it has.
        """
        known = set(keys)
        for key in self._table:
            if key not in known:
                near = nearest(format_path(key), [format_path(other) for other in known])
                what = f"{format_path(key)} is renamed, but the ConfigDict has no such key"
                yield Problem(what, origin=self._origin(key), nearest=near)

    def _origin(self, key: Key) -> str:
        return f"{self._sources[key]}: {format_path(key)}"


def read_renames(file: str) -> dict[str, Any]:
    """Return the table in a TOML file.

    Args:
      file: The file; nested tables stand for nested keys.

    Raises:
      OverrideError: It cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except tomllib.TOMLDecodeError as error:
        what = f"cannot read the renames in {file!r}: {error}"
        remedy = 'write lines like "optimizer.lr" = "optimizer.learning_rate"'
        raise OverrideError(Problem(what, remedy=remedy)) from None
    except UnicodeDecodeError:
        raise OverrideError(Problem(f"the renames in {file!r} are not text in UTF-8")) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise OverrideError(Problem(f"cannot read the file {file!r}: {reason}")) from None


def _flat(table: Mapping[Any, Any], above: Key) -> Iterator[tuple[Key, Any]]:
    for name, meant in table.items():
        try:
            key = (*above, *parse_path(str(name)))
        except BadInput:
            key = (*above, str(name))
        if isinstance(meant, Mapping):
            yield from _flat(meant, key)
        else:
            yield key, meant


def _paths(meant: Any) -> tuple[Path, ...]:
    if meant is None or meant is False:
        return ()
    listed = meant if isinstance(meant, list | tuple) else [meant]
    if not listed or not all(isinstance(path, str) and path for path in listed):
        what = f"{meant!r} is not a path of the graph, a list of paths, or false"
        raise OverrideError(Problem(what))
    return tuple(parse_path(path) for path in listed)


# The places that a key has set, from the origins in the history of the graph.

_ORIGIN = re.compile(rf"(?:.*\.py(?::\d+)?|{SOURCE}): (?P<key>[^=\s]+)(?:=.*| \(computed once\))?")


def places_of(graph: Graph, key: str, places: Sequence[Place]) -> list[Place]:
    """Return the places that a key of a ConfigDict has set.

    Args:
      graph: A node.
      key: The key, as `optimizer.lr`.
      places: Every place of the graph, and the operands of its arithmetic.

    Raises:
      Unreadable: No such key has set anything; the problem lists the nearest ones.
    """
    found: dict[str, list[Place]] = {}
    for place in places:
        for name in dict.fromkeys(_keys(place)):
            found.setdefault(name, []).append(place)
    if key in found:
        return found[key]
    near = [f"config_dict:{name}" for name in nearest(key, found)]
    remedy = "" if near else f"there are {listed(sorted(found))}"
    remedy = remedy if found else "the graph has no values of a ConfigDict"
    raise Unreadable(Problem(f"no key {key!r} set anything", nearest=near, remedy=remedy))


def _keys(place: Place) -> Iterator[str]:
    """Yield the keys that set a place, or the constant there."""
    if is_node(place.owner) and not values.is_value_node(place.owner):
        yield from _keys_of(place.owner, place.part)
    if values.is_constant(place.value):
        yield from _keys_of(place.value, "value")


def _keys_of(node: Any, part: Any) -> Iterator[str]:
    for entry in sets_of(node, part):
        match = _ORIGIN.fullmatch(location_text(entry.location))
        if match is not None:
            yield match["key"]
