"""Files or dicts of other frameworks as plain values, with the line of every key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph import signatures
from luthier.graph.export import yaml
from luthier.graph.paths import Part, Path, format_path, nearest
from luthier.graph.public_names import load_object

# Aliases of YAML are expanded, and a few lines of aliases of aliases stand for 2**n values.
_MOST = 100_000


@dataclasses.dataclass
class Tree:
    """Plain values: dicts, lists and leaves.

    Args:
      root: The outermost value.
      source: The file that it was read from.
      lines: The line of each key, where there are lines.
    """

    root: Any
    source: str
    lines: dict[Path, int] = dataclasses.field(default_factory=dict)

    def at(self, key: Path) -> Any:
        """Return the value of a key.

        Raises:
          KeyError: There is no such key.
        """
        value = self.root
        for part in key:
            if not isinstance(value, Mapping | list | tuple):
                raise KeyError(part)
            try:
                value = value[part]  # type: ignore[index]
            except (IndexError, TypeError):
                raise KeyError(part) from None
        return value

    def origin(self, key: Path) -> str:
        """Return the origin of a key, with its line where that is known, for an error."""
        line = self.lines.get(key, 0)
        at = f"{self.source}:{line}" if line else self.source
        return f"{at}: {format_path(key)}" if key else at


def read_tree(config: Any, source: str) -> Tree:
    """Return the values of a text of YAML or JSON, or of a dict.

    Args:
      config: The text, or a dict or ConfigDict.
      source: The file that it was read from.

    Raises:
      RecordError: The text cannot be read.
    """
    if not isinstance(config, str):
        return Tree(config.to_dict() if hasattr(config, "to_dict") else config, source)
    tree = Tree(None, source)
    try:
        read = yaml.read(config)
        tree.root = _Plain(tree.lines).convert(read, ()) if read is not None else None
    except yaml.YamlError as error:
        raise RecordError(Problem(f"{source}, line {error.line}: {error}")) from None
    except UnicodeError:
        raise RecordError(Problem(f"{source} is not text in UTF-8")) from None
    except ValueError as error:  # a number of too many digits
        raise RecordError(Problem(f"{source}: {error}")) from None
    return tree


class _Plain:
    """Turns the nodes of YAML into plain values, with aliases expanded."""

    def __init__(self, lines: dict[Path, int]):
        self.lines, self.count = lines, 0

    def convert(self, data: Any, key: Path) -> Any:
        """Return the plain value of a node of YAML.

        Args:
          data: The node.
          key: Its key.
        """
        self.count += 1
        if self.count > _MOST:
            raise yaml.YamlError(f"its aliases expand to more than {_MOST:,} values", data.line)
        self.lines[key] = data.line
        if isinstance(data, yaml.YamlReference):
            data = data.target
        if isinstance(data, yaml.YamlScalar):
            return data.value
        if isinstance(data, yaml.Items):
            return [self.convert(child, (*key, index)) for index, child in enumerate(data.items)]
        return {name: self.convert(child, (*key, name)) for name, child in data.items.items()}


def by_name(target: str, given: list[Any], packages: Any) -> dict[Part, Any]:
    """Return positional arguments with their names: a graph has no positional arguments.

    Args:
      target: The name of the class or function.
      given: The arguments.
      packages: The user's own packages that it may be in.

    Raises:
      RecordError: It may not be imported, or takes fewer arguments.
    """
    if not given:
        return {}
    known = signatures.arguments(load_object(target, packages))
    if len(given) > len(known.names) or known.positional_only:
        what = f"{target} takes {len(known.names)} arguments, not {len(given)}, without a name"
        if known.positional_only or known.has_args:
            what = f"{target} takes arguments without names, which a graph cannot record"
        raise RecordError(Problem(what, remedy="wrap it in a function that names them"))
    return dict(zip(known.names, given, strict=False))


def unknown_key(key: str, known: tuple[str, ...]) -> Problem:
    """Return the problem of an unknown key.

    Args:
      key: The key.
      known: The keys that are known.
    """
    return Problem(f"{key} is not a known key", nearest=nearest(key, known))
