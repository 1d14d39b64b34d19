"""Configs with `_target_`, as Hydra and NeMo-Run write them, read as a graph.

model:
  _target_: optax.adamw
  _partial_: true
  learning_rate: ${training.rate}

A plain value that `${...}` refers to is one constant at all its places; a node that it refers to is
made again for each place, as in Hydra. `???` is a required field. `${oc.env:NAME}` is read when the
config is; other resolvers, and files that Hydra composes (`defaults`), are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, Problem, RecordError, UnknownReference, listed
from luthier.graph import templates, values
from luthier.graph.formats.targets.trees import Tree, by_name, read_tree, unknown_key
from luthier.graph.load import decode
from luthier.graph.paths import Path, format_path, nearest, parse_path
from luthier.graph.record.leaves import encode_leaf

TARGET, MISSING = "_target_", "???"
_FLAGS = ("_partial_", "_args_", "_recursive_", "_convert_")
_GETTERS = tuple(f"hydra.utils.get_{kind}" for kind in ("object", "class", "method"))
_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
_CONSTANT = f"{values.__name__}.{values.constant.__name__}"


def from_hydra(
    config: Any, packages: Sequence[str] = (), source: str = "config.yaml", key: str = ""
) -> Any:
    """Return the graph that a config of Hydra or NeMo-Run describes.

    Args:
      config: Its text in YAML, or a dict.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file that it was read from; with the line, it is the origin of every value.
      key: The key of the part to read; empty for the whole.

    Returns:
      The node that the `_target_` at the root, or at `key`, describes; nothing is instantiated.

    Raises:
      RecordError: It cannot be read, names objects that may not be imported, or has arguments that
        these do not take; all problems are listed.

    Example:
      >>> from luthier import graph
      >>> config = graph.from_hydra({"_target_": "luthier.optim.adamw", "learning_rate": 3e-4})
      >>> config.learning_rate
      0.0003
    """
    # Hydra itself is not needed, and nothing is instantiated: the config is translated to the JSON
    # of a record, which `decode` checks against the allow-list like any other record.
    tree = read_tree(config, source)
    start = _start(tree, key)
    translator = _Translator(tree, packages)
    try:
        data = translator.record(tree.at(start), start, start)
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    if translator.problems:
        raise RecordError(translator.problems)
    graph = decode(data, packages, source, translator.lines_below(start))
    templates.correct(graph)  # `_partial_` need not be written where only a template makes sense
    return graph


def _start(tree: Tree, key: str) -> Path:
    """Return the key of the node to read."""
    # Also for a part: `defaults` may put other values into it, and another optimizer in its place.
    if isinstance(tree.root, Mapping) and "defaults" in tree.root and TARGET not in tree.root:
        remedy = "write the composed config with `python APP.py --cfg job --resolve`"
        what = f"{tree.source} is to be composed by Hydra from other files"
        raise RecordError(Problem(what, remedy=remedy))
    try:
        start = parse_path(key)
        found = tree.at(start)
    except (KeyError, UnknownReference):
        what = f"{tree.source} has no key {key!r}"
        known = [str(name) for name in tree.root] if isinstance(tree.root, Mapping) else []
        raise RecordError(Problem(what, nearest=nearest(key, known))) from None
    if isinstance(found, Mapping) and TARGET in found:
        return start
    inside = found.items() if isinstance(found, Mapping) else ()
    nodes = [
        format_path((*start, name))
        for name, child in inside
        if isinstance(child, Mapping) and TARGET in child
    ]
    remedy = f"read a part that has: {listed(nodes)}" if nodes else ""
    what = f"{tree.source} has no {TARGET} at {key or 'its root'}"
    raise RecordError(Problem(what, remedy=remedy))


class _Translator:
    """Turns plain values into the objects of a record; collects problems, with their keys."""

    def __init__(self, tree: Tree, packages: Sequence[str]):
        # `_shared` is found in a first pass over all interpolations: a value that is written before
        # the first reference to it must become a constant as well. `_within` holds the keys of the
        # nodes that are being copied, to detect cycles.
        self.problems: list[Problem] = []
        self._tree, self._packages = tree, packages
        self._lines: dict[Path, int] = {}
        self._numbers: dict[Path, int] = {}
        self._within: list[Path] = []
        self._shared = {
            key for key, text in _texts(tree.root, ()) for key in self._referred(key, text)
        }

    def lines_below(self, start: Path) -> dict[str, int]:
        """Return the line of every path, relative to a key.

        Args:
          start: The key of the root of the graph.
        """
        return {format_path(path[len(start) :]): line for path, line in self._lines.items()}

    def record(self, data: Any, key: Path, path: Path) -> Any:
        """Return the record of the value of a key.

        Args:
          data: The value.
          key: Its key in the config. An interpolation reads a value of one key for another place.
          path: Its path in the graph, below the key of the root.
        """
        self._lines[path] = self._tree.lines.get(key, 0)
        if isinstance(data, Mapping):
            return self._node(data, key, path) if TARGET in data else self._dict(data, key, path)
        if isinstance(data, list | tuple):
            return [self.record(v, (*key, i), (*path, i)) for i, v in enumerate(data)]
        if isinstance(data, str) and "${" in data:
            return self._interpolated(data, key, path)
        if data == MISSING:
            return {"config": _CONSTANT, "arguments": {"name": format_path(key)}}
        return self._constant(key, data) if key in self._shared else self._leaf(data, key)

    def _leaf(self, data: Any, key: Path) -> Any:
        try:
            return encode_leaf(data)
        except RecordError as error:
            return self._wrong(error.problems[0], key)

    def _wrong(self, problem: Problem | str, key: Path) -> None:
        found = Problem(problem) if isinstance(problem, str) else problem
        origin = self._tree.origin(key)
        located = Problem(found.what, origin=origin, remedy=found.remedy, nearest=found.nearest)
        if located not in self.problems:
            self.problems.append(located)

    def _dict(self, data: Mapping[Any, Any], key: Path, path: Path) -> Any:
        if all(isinstance(name, str) for name in data):
            return {"dict": {n: self.record(v, (*key, n), (*path, n)) for n, v in data.items()}}
        pairs = [[name, self.record(v, (*key, name), path)] for name, v in data.items()]
        return {"dict": pairs}

    def _node(self, data: Mapping[Any, Any], key: Path, path: Path) -> Any:
        # `hydra.utils.get_class` and the like are calls that return the object of a name: here, the
        # name itself. Other keys between underscores are options of Hydra, not arguments.
        target = data[TARGET]
        if not isinstance(target, str):
            return self._wrong(f"{TARGET} is {target!r}, not a name", key)
        if target in _GETTERS:
            return {"name": data.get("path")}
        flags = [n for n in data if isinstance(n, str) and re.fullmatch(r"_[a-z]+_", n)]
        for name in flags:
            if name not in (TARGET, *_FLAGS):
                self._wrong(unknown_key(name, _FLAGS), (*key, name))
        given = {name: child for name, child in data.items() if name not in flags}
        if not all(isinstance(name, str) for name in given):
            return self._wrong("an argument has no name", key)
        record = self.record if data.get("_recursive_", True) is not False else self._plain
        arguments = {n: record(v, (*key, n), (*path, n)) for n, v in given.items()}
        arguments = self._positional(target, data, key, path) | arguments
        partial = data.get("_partial_", False)
        if not isinstance(partial, bool):
            self._wrong(f"_partial_ is {partial!r}, neither true nor false", (*key, "_partial_"))
        return {"partial" if partial else "config": target, "arguments": arguments}

    def _positional(self, target: str, data: Mapping[Any, Any], key: Path, path: Path) -> Any:
        at = (*key, "_args_")
        listed = data.get("_args_", [])
        if not isinstance(listed, list | tuple):
            self._wrong("_args_ is not a list", at)
            return {}
        try:
            named = by_name(target, list(enumerate(listed)), self._packages)
        except BadInput as error:
            self._wrong(error.problems[0], at)
            return {}
        return {n: self.record(v, (*at, i), (*path, n)) for n, (i, v) in named.items()}

    def _plain(self, data: Any, key: Path, path: Path) -> Any:
        """Return the record of a value below `_recursive_: false`: a dict stays a dict."""
        if isinstance(data, Mapping):
            return {"dict": [[n, self._plain(v, (*key, n), path)] for n, v in data.items()]}
        if isinstance(data, list | tuple):
            return [self._plain(v, (*key, i), path) for i, v in enumerate(data)]
        return self.record(data, key, path)

    def _interpolated(self, text: str, key: Path, path: Path) -> Any:
        # A text with an interpolation inside (`runs/${name}`) is computed once. An interpolation as
        # a whole is a constant that stays shared, or a copy of a node.
        whole = _INTERPOLATION.fullmatch(text)
        try:
            if whole is None:
                made = _INTERPOLATION.sub(lambda match: self._text(match[1], key), text)
                if "${" in made:  # a resolver around an interpolation: `${eval:"2*${dim}"}`
                    raise _resolver(text.partition("${")[2].rstrip("}"))
                return made
            if ":" in whole[1]:
                return self._leaf(_environment(whole[1]), key)
            found = self._follow(whole[1], key, ())
        except UnknownReference as error:
            return self._wrong(error.problems[0], key)
        data = self._tree.at(found)
        if found in self._shared and data != MISSING:
            return self._constant(found, data)
        if found in self._within or found == key[: len(found)]:
            return self._wrong(f"{text} is a circular reference", key)
        self._within.append(found)
        made = self.record(data, found, path)
        self._within.pop()
        return made

    def _constant(self, key: Path, data: Any) -> Any:
        """Return the constant of a key that other keys refer to."""
        if key in self._numbers:
            return {"ref": self._numbers[key]}
        number = self._numbers[key] = len(self._numbers) + 1
        arguments = {"value": self._leaf(data, key), "name": format_path(key)}
        return {"id": number, "config": _CONSTANT, "arguments": arguments}

    def _text(self, written: str, key: Path) -> str:
        if ":" in written:
            return str(_environment(written))
        found = self._tree.at(self._follow(written, key, ()))
        whole = _INTERPOLATION.fullmatch(found) if isinstance(found, str) else None
        if whole is not None:  # `_follow` ends at a variable of the environment
            return str(_environment(whole[1]))
        if isinstance(found, Mapping | list):
            raise UnknownReference(Problem(f"${{{written}}} is not text"))
        if isinstance(found, str) and "${" in found:
            raise UnknownReference(Problem(f"${{{written}}} holds references of its own"))
        return str(found)

    def _follow(self, written: str, key: Path, seen: tuple[Path, ...]) -> Path:
        """Return the key that `${written}` at a key refers to in the end."""
        # Leading dots are relative, as in OmegaConf: `${.x}` is a sibling, each further dot one
        # level up. `${a}` may hold `${b}` itself; the chain is followed to its end.
        if ":" in written:
            raise _resolver(written)
        rest = written.strip().lstrip(".")
        up = len(written.strip()) - len(rest)
        above = key[:-up] if up else ()
        try:
            found = (*above, *parse_path(rest))
            data = self._tree.at(found)
        except (KeyError, UnknownReference):
            known = [format_path(other) for other, _ in _leaves(self._tree.root, ())]
            near = [f"${{{name}}}" for name in nearest(rest, known)]
            what = f"${{{written}}} refers to nothing"
            raise UnknownReference(Problem(what, nearest=near)) from None
        whole = _INTERPOLATION.fullmatch(data) if isinstance(data, str) else None
        if whole is None or ":" in whole[1]:
            return found
        if found in seen:
            raise UnknownReference(Problem(f"${{{written}}} is a circular reference"))
        return self._follow(whole[1], found, (*seen, found))

    def _referred(self, key: Path, text: str) -> list[Path]:
        """Return the key of the plain value that a text refers to as a whole, if it does."""
        whole = _INTERPOLATION.fullmatch(text)
        if whole is None:
            return []
        try:
            found = self._follow(whole[1], key, ())
        except UnknownReference:  # reported when the text is read
            return []
        data = self._tree.at(found)
        is_plain = not isinstance(data, Mapping | list) and "${" not in str(data)
        return [found] if is_plain else []


def _environment(written: str) -> Any:
    """Return the value of `${oc.env:NAME}` or `${oc.env:NAME,default}`, as OmegaConf does: text.

    Raises:
      UnknownReference: The variable is not set and has no default, or it is another resolver.
    """
    resolver, _, rest = written.partition(":")
    if resolver.strip() != "oc.env":
        raise _resolver(written)
    name, has_default, default = (part.strip() for part in rest.partition(","))
    if name in os.environ:
        return os.environ[name]
    if not has_default:
        what = f"${{{written}}}: the environment variable {name} is not set"
        remedy = f"set it, or write a default: ${{oc.env:{name},VALUE}}"
        raise UnknownReference(Problem(what, remedy=remedy))
    if default == "null":
        return None
    is_quoted = len(default) > 1 and default[0] == default[-1] and default[0] in "'\""
    return default[1:-1] if is_quoted else default


def _resolver(written: str) -> UnknownReference:
    remedy = "write the value, or the config as `--cfg job --resolve` does"
    what = f"${{{written}}} is computed by a resolver, which is not read"
    return UnknownReference(Problem(what, remedy=remedy))


def _leaves(data: Any, key: Path) -> list[tuple[Path, Any]]:
    """Return every key with a plain value."""
    found, pending = [], [(key, data)]
    while pending:
        at, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [((*at, name), child) for name, child in value.items()]
        elif isinstance(value, list | tuple):
            pending += [((*at, index), child) for index, child in enumerate(value)]
        else:
            found.append((at, value))
    return found


def _texts(data: Any, key: Path) -> list[tuple[Path, str]]:
    return [(at, text) for at, text in _leaves(data, key) if isinstance(text, str) and "${" in text]
