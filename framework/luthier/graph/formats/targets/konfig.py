"""ConfigDicts of konfig (Kauldron), read as a graph.

{"__qualname__": "optax:adam", "learning_rate": {"__qualname__": "optax:constant_schedule", "0": 1}}

Positional arguments have numbers for keys, or are listed in `__args__`; `{"__const__": NAME}` is
the object of that name. Lists become tuples, as konfig makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, Problem, RecordError
from luthier.graph.formats.targets.trees import by_name, read_tree
from luthier.graph.load import decode
from luthier.graph.paths import Path, format_path, is_node
from luthier.graph.record.leaves import encode_leaf

QUALNAME, CONST, ARGS = "__qualname__", "__const__", "__args__"


def from_konfig(config: Any, packages: Sequence[str] = (), source: str = "config.json") -> Any:
    """Return the graph that a ConfigDict of konfig describes.

    Args:
      config: Its text in JSON, or the ConfigDict or dict itself.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file that it was read from; with the line, it is the origin of every value.

    Returns:
      The node that the `__qualname__` at the root describes; nothing is instantiated.

    Raises:
      RecordError: It cannot be read, names objects that may not be imported, or has arguments that
        these do not take; all problems are listed.

    Example:
      >>> from luthier import graph
      >>> config = graph.from_konfig({"__qualname__": "luthier.optim:adamw", "learning_rate": 3e-4})
      >>> config.learning_rate
      0.0003
    """
    tree = read_tree(config, source)
    if not (isinstance(tree.root, Mapping) and QUALNAME in tree.root):
        raise RecordError(Problem(f"{source} has no {QUALNAME} at its root"))
    problems: list[Problem] = []

    def wrong(problem: Problem, key: Path) -> None:
        located = Problem(problem.what, origin=tree.origin(key), remedy=problem.remedy)
        problems.append(located)

    try:
        data = _record(tree.root, (), packages, wrong)
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    if problems:
        raise RecordError(problems)
    lines = {format_path(key): line for key, line in tree.lines.items() if _is_written(key)}
    graph = decode(data, packages, source, lines)
    if not is_node(graph):  # `builtins:tuple`, say
        raise RecordError(Problem(f"{source} describes a plain value, not a node"))
    return graph


def _is_written(key: Path) -> bool:
    return all(isinstance(part, str | int) for part in key)


def _record(
    data: Any, key: Path, packages: Sequence[str], wrong: Callable[[Problem, Path], None]
) -> Any:
    """Return the record of the value of a key.

    As for Hydra, konfig is not needed and nothing is instantiated: the config is translated to the
    JSON of a record, which `decode` checks against the allow-list.
    """

    def below(child: Any, name: Any) -> Any:
        return _record(child, (*key, name), packages, wrong)

    if isinstance(data, list | tuple):
        return {"tuple": [below(child, index) for index, child in enumerate(data)]}
    if not isinstance(data, Mapping):
        try:
            return encode_leaf(data)
        except RecordError as error:
            return wrong(error.problems[0], key)
    if CONST in data:
        if len(data) > 1:
            return wrong(Problem(f"{CONST} cannot be combined with other keys"), key)
        return {"name": _dotted(data[CONST])}
    if QUALNAME not in data:
        # As pairs, because keys need not be text.
        return {"dict": [[name, below(child, name)] for name, child in data.items()]}
    target = _dotted(data[QUALNAME])
    positional = [(name, data[name]) for name in _positions(data)]
    listed = data.get(ARGS, ())
    if not isinstance(listed, list | tuple):
        return wrong(Problem(f"{ARGS} is not a list"), key)
    positional += [(ARGS, child) for child in listed]
    taken = {QUALNAME, ARGS, *_positions(data)}
    kind = "config"
    # Two callables are structure and not nodes: konfig writes a tuple as a call of `tuple`, and a
    # partial as a call of `functools.partial`, whose first argument is the wrapped function.
    if target == "builtins.tuple":
        unknown = [name for name in data if name not in taken]
        if len(positional) > 1 or unknown:
            given = f"{len(positional)} arguments" if len(positional) > 1 else f"{unknown[0]!r}"
            remedy = "put its elements into one list"
            return wrong(Problem(f"a tuple takes one argument, not {given}", remedy=remedy), key)
        return below(positional[0][1] if positional else (), "0")
    if target == "functools.partial" and positional:
        kind, (_, wrapped), positional = "partial", positional[0], positional[1:]
        target = _dotted(wrapped.get(CONST)) if isinstance(wrapped, Mapping) else None
    if not isinstance(target, str):
        return wrong(Problem(f"{QUALNAME} is not a name"), key)
    try:
        named = by_name(target, positional, packages)
    except BadInput as error:
        return wrong(error.problems[0], key)
    arguments = {name: below(child, at) for name, (at, child) in named.items()}
    arguments |= {str(n): below(child, n) for n, child in data.items() if n not in taken}
    return {kind: target, "arguments": arguments}


def _dotted(name: Any) -> Any:
    return name.replace(":", ".") if isinstance(name, str) else name


def _positions(data: Mapping[Any, Any]) -> list[str]:
    """Return the keys of positional arguments: 0, 1 and so on, without a gap."""
    count = 0
    while str(count) in data:
        count += 1
    return [str(index) for index in range(count)]
