"""Configs in Fiddle's own JSON, as `fiddle.experimental.serialization.dump_json` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from luthier.errors import Problem, RecordError
from luthier.graph import copies, origins, public_names, signatures

# Names of which Fiddle's format itself is made; all others are those of the config.
_OF_FIDDLE = ("Config", "Partial", "ArgFactory", "BuildableTraverserMetadata", "NoValue")
_BUILTINS = ("dict", "frozenset", "list", "set", "tuple")


def is_fiddle_json(text: str) -> bool:
    """Return whether a text is a config in Fiddle's JSON, and not a record of luthier.

    Args:
      text: The text of a file.

    Returns:
      True for a JSON object with the keys of Fiddle's serialization, `root` and `objects`; False
      also for text that is not JSON.

    Example:
      >>> from luthier import graph
      >>> graph.is_fiddle_json('{"root": {}, "objects": {}}'), graph.is_fiddle_json("")
      (True, False)
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"root", "objects"} <= data.keys()


def from_fiddle_json(text: str, packages: Sequence[str] = (), source: str = "config.json") -> Any:
    """Return the graph of a config in Fiddle's JSON.

    Args:
      text: The output of `fiddle.experimental.serialization.dump_json`.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file that the text was read from.

    Returns:
      The config, with the sharing that the file holds.

    Raises:
      RecordError: It cannot be read, or names objects that may not be imported.

    Example:
      >>> import fiddle as fdl
      >>> from fiddle.experimental import serialization
      >>> from luthier import graph, optim
      >>> text = serialization.dump_json(fdl.Config(optim.adamw, learning_rate=3e-4))
      >>> graph.from_fiddle_json(text).learning_rate
      0.0003
    """
    policy = _ListedNames(packages)
    # The nodes get arguments of today's signatures, as those of a record do.
    signatures.install()
    origins.install()
    try:
        graph = serialization.load_json(text, policy)
    except serialization.PyrefPolicyError as error:
        raise RecordError(policy.problem or Problem(f"{source}: {error}")) from None
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    except Exception as error:  # of Fiddle, or of a constructor that the file names
        line = str(error).strip().partition("\n")[0]
        what = f"{source} cannot be read as JSON of Fiddle: {type(error).__name__}: {line}"
        raise RecordError(Problem(what, remedy="write it again with dump_json")) from error
    if not isinstance(graph, fdl.Buildable):
        raise RecordError(Problem(f"{source} holds a {type(graph).__name__}, not a config"))
    copies.renew(graph)
    return graph


class _ListedNames(serialization.PyrefPolicy):
    """Allows the imports that a record of luthier may cause, and no others.

    Args:
      packages: The user's own packages.
    """

    def __init__(self, packages: Sequence[str]):
        self._packages = packages
        self.problem: Problem | None = None

    def allows_import(self, module: str, symbol: str) -> bool:
        """Return whether a name may be imported; asked before anything is."""
        head = module.partition(".")[0]
        if symbol in {"fiddle": _OF_FIDDLE, "builtins": _BUILTINS}.get(head, ()):
            return True
        # Fiddle writes where an object is defined, which may be private: `optax._src.alias.adamw`.
        if public_names.is_listed_object(module, symbol):
            return True
        try:
            public_names.load_object(f"{module}.{symbol}", self._packages)
        except RecordError as error:
            self.problem = error.problems[0]
            return False
        return True

    def allows_value(self, value: Any) -> bool:
        """Return whether an imported object may be used: its name was checked before."""
        del value
        return True
