"""Paths of a graph: `model.layers[0].dim`, `evaluations['held out'].every`.

A path is a tuple of parts: a string is an argument of a node, a field of a dataclass or a key of a
dict; an integer is a place in a list or tuple. Written out, string parts that are identifiers of
ASCII take a dot (also for keys of dicts: `evaluations.held_out.every`), all others brackets.

Paths reach set values and defaults: arguments left at their default, and the parts of a default
(its list elements, dict keys, dataclass fields). Setting a part of a default copies the default
into the graph first.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from luthier.errors import Problem, UnknownReference, listed
from luthier.graph import signatures, values
from luthier.graph.public_names import display_name
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

Part = str | int
Path = tuple[Part, ...]

# A name, or brackets with an index, a quoted key or a bare word.
_PART = re.compile(
    r"""\.?(?P<name>[A-Za-z_]\w*)|\[\s*(?P<key>-?\d+|'[^']*'|"[^"]*"|\w+)\s*\]""", re.ASCII
)


def parse_path(text: str) -> Path:
    """Parse a written path into its parts.

    Args:
      text: `model.layers[0].dim`, `evaluations['held out'].every`; empty for the root.

    Returns:
      The parts: a string for an attribute or a key, an int for an index or an integer key.

    Raises:
      UnknownReference: It cannot be read.

    Example:
      >>> from luthier import graph
      >>> graph.parse_path("evaluations['held out'].every")
      ('evaluations', 'held out', 'every')
      >>> graph.parse_path("model.layers[0].dim")
      ('model', 'layers', 0, 'dim')
    """
    parts: list[Part] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        # A name needs a dot before it, except at the beginning, where it must have none.
        if match is None or ((match[0].startswith(".") == (position == 0)) and match["name"]):
            raise UnknownReference(Problem(f"{text!r} is not a path; write it like a.b[0]['c']"))
        if match["name"]:
            parts.append(match["name"])
        else:
            key = match["key"]
            parts.append(_read_key(key, text) if key[0] in "-'\"0123456789" else key)
        position = match.end()
    return tuple(parts)


def _read_key(key: str, text: str) -> Part:
    """Return the index or text in brackets."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes: the text is the user's, not code of ours
            return ast.literal_eval(key)
    except (SyntaxError, ValueError):
        what = f"{text!r} is not a path: [{key}] is neither an index nor text"
        raise UnknownReference(Problem(what)) from None


def format_path(path: Path) -> str:
    """Return `path` written out, as `parse_path` reads it.

    Args:
      path: The parts: names, keys and indices.

    Returns:
      The path as people write it; empty for the root.

    Example:
      >>> from luthier import graph
      >>> graph.format_path(("model", "layers", 0, "dim"))
      'model.layers[0].dim'
    """
    text = ""
    for part in path:
        text = join(text, part)
    return text


def join(prefix: str, part: Part) -> str:
    """Return the written path `prefix` with one more `part`.

    Args:
      prefix: A written path; empty for the root.
      part: A name, a key of a dict, or an index.

    Returns:
      The longer path; parts that are not identifiers are in brackets.

    Example:
      >>> from luthier import graph
      >>> graph.join("model", "dim"), graph.join("layers", 0), graph.join("", "held out")
      ('model.dim', 'layers[0]', "['held out']")
    """
    if isinstance(part, str) and part.isidentifier() and part.isascii():
        return f"{prefix}.{part}" if prefix else part
    return f"{prefix}[{part!r}]"


class Place(NamedTuple):
    """One place of a graph.

    Args:
      path: Its path, written out.
      value: The value; `UNSET` if it is not set and has no default.
      owner: The node, list, tuple, dict or dataclass that holds it.
      part: The part of the owner.
      is_default: Whether it is a default, or lies below one.
    """

    path: str
    value: Any
    owner: Any
    part: Part
    is_default: bool


def _find_kind(cls: Any) -> str:
    """Return which kind of container the values of a class are for a path; empty for leaves."""
    # Cached below: it is called for every value of every walk, and `issubclass` of a Buildable asks
    # an abstract base class. A named tuple comes before the sequences, which it is too: its parts
    # have names.
    if issubclass(cls, fdl.Buildable):
        return "node"
    if issubclass(cls, dict):
        return "dict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "named"
    if issubclass(cls, list | tuple):
        return "sequence"
    return "dataclass" if dataclasses.is_dataclass(cls) else ""


_kind: Callable[[Any], str] = functools.lru_cache(maxsize=4096)(_find_kind)


def is_node(value: object) -> bool:
    """Return whether `value` is a node of the graph (value nodes are too).

    Args:
      value: Any value.

    Returns:
      True for an `fdl.Config`, an `fdl.Partial` and other Buildables of Fiddle.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.is_node(fdl.Config(optim.adamw)), graph.is_node(optim.adamw)
      (True, False)
    """
    return _kind(type(value)) == "node"


def is_container(value: object) -> bool:
    """Return whether `value` has parts that paths can reach (value nodes are leaves).

    Args:
      value: Any value.

    Returns:
      True for nodes that are not value nodes, dicts, lists, tuples and instances of dataclasses.

    Example:
      >>> from luthier import graph
      >>> graph.is_container([1, 2]), graph.is_container("text"), graph.is_container(graph.value(1))
      (True, False, False)
    """
    kind = _kind(type(value))
    return kind != "" and not (kind == "node" and values.is_value_node(value))


def is_dataclass_instance(value: object) -> bool:
    """Return whether `value` is an instance of a dataclass."""
    return _kind(type(value)) == "dataclass"


def children(value: Any, *, unset: bool = False) -> list[tuple[Part, Any, bool]]:
    """Return the parts of one node or container.

    Args:
      value: A node, list, tuple, dict or dataclass instance.
      unset: Whether to include arguments that are not set and have no default.

    Returns:
      (part, child, whether it is a default) in the order of the signature; nothing for leaves.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> graph.children(config)[:2]
      [('learning_rate', 0.0003, False), ('momentum', 0.9, True)]
    """
    kind = _kind(type(value))
    if kind == "node":
        return _arguments_of(value, unset)
    if kind == "dict":
        return [(key, child, False) for key, child in value.items() if isinstance(key, str | int)]
    if kind == "sequence":
        return [(index, child, False) for index, child in enumerate(value)]
    if kind == "named":
        return [(name, getattr(value, name), False) for name in value._fields]
    if kind == "dataclass":
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return [(name, getattr(value, name, UNSET), False) for name in fields]
    return []


def _arguments_of(node: fdl.Buildable, unset: bool) -> list[tuple[Part, Any, bool]]:
    # In the order of the signature, not of setting: the order of a record, of `show` and of the
    # places that a pattern matches must not depend on which override came first.
    set_arguments = node.__arguments__
    known = signatures.arguments(node.__fn_or_cls__)
    arguments: list[tuple[Part, Any, bool]] = []
    for index, name in enumerate(known.positional_only):
        if index in set_arguments:
            arguments.append((index, set_arguments[index], False))
        elif name in known.defaults:
            arguments.append((index, known.defaults[name], True))
        elif unset:
            arguments.append((index, UNSET, False))
    for name in known.names:
        if name in set_arguments:
            arguments.append((name, set_arguments[name], False))
        elif name in known.defaults:
            arguments.append((name, known.defaults[name], True))
        elif unset:
            arguments.append((name, UNSET, False))
    # Free keywords, and wrong arguments of a node from before the signature shim.
    # The count is a quick test, which misses wrong arguments where as many others are at their
    # default; `validate` looks at `__arguments__` itself.
    if len(arguments) < len(set_arguments) or known.has_args or known.has_kwargs:
        there = {part for part, _, _ in arguments}
        arguments += [
            (part, child, False) for part, child in set_arguments.items() if part not in there
        ]
    return arguments


def walk(
    graph: Graph, *, defaults: bool = True, unset: bool = False, once: bool = False
) -> Iterator[Place]:
    """Yield every place of a graph below its root, parents first.

    Args:
      graph: A node.
      defaults: Whether to include arguments left at their default, and the places below them.
      unset: Whether to include arguments that are not set and have no default.
      once: Whether shared nodes, dicts and lists are entered at their first path only (their other
        paths are still yielded). Without it, every path is yielded.

    Yields:
      The places, with their paths and values. The graph must not change in between.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> [place.path for place in graph.walk(config, defaults=False)]
      ['learning_rate']
    """
    # An explicit stack of iterators, because recursive generators pass each place up through every
    # level. `above` holds the containers on the way from the root, so that a cycle is yielded once
    # and not entered; `entered` those that were ever entered. Defaults are not recorded there: they
    # belong to the class, so two nodes hold the same object without sharing it in this graph.
    entered: set[int] = {id(graph)}
    above: set[int] = {id(graph)}
    # Entries of the stack: (value, its path, whether it is below a default, its remaining parts).
    stack = [(graph, "", False, iter(children(graph, unset=unset)))]
    while stack:
        owner, prefix, below_default, rest = stack[-1]
        for part, child, is_default in rest:
            is_default = is_default or below_default
            if is_default and not defaults:
                continue
            path = join(prefix, part)
            yield Place(path, child, owner, part, is_default)
            if not is_container(child) or id(child) in above:
                continue
            # Instances and tuples are entered at each path: a set below one replaces it at that
            # path alone, where a node, dict or list changes in place for all of its paths. And
            # Python makes one object of equal constant tuples, so their identity says nothing.
            replaced_whole = isinstance(child, tuple) or is_dataclass_instance(child)
            if once and not is_default and not replaced_whole:
                if id(child) in entered:
                    continue
                entered.add(id(child))
            above.add(id(child))
            stack.append((child, path, is_default, iter(children(child, unset=unset))))
            break
        else:
            stack.pop()
            above.discard(id(owner))


def paths(graph: Graph) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every node and leaf of a graph, defaults included.

    Args:
      graph: A node.

    Yields:
      (path, value), parents first.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> dict(graph.paths(config))["momentum"]
      0.9
    """
    for place in walk(graph):
        yield place.path, place.value


def child_of(value: Any, part: Part) -> tuple[Any, bool]:
    """Return one part of a node or container, and whether it is a default.

    Raises:
      KeyError: There is no such part. `UNSET` is returned for an argument without a value.
    """
    # One part, without listing the others as `children` does.
    if is_node(value):
        if part in value.__arguments__:
            return value.__arguments__[part], False
        known = signatures.arguments(value.__fn_or_cls__)
        name = part
        if isinstance(part, int) and 0 <= part < len(known.positional_only):
            name = known.positional_only[part]
        elif part not in known.names:
            raise KeyError(part)
        return (known.defaults[name], True) if name in known.defaults else (UNSET, False)
    if isinstance(value, dict):
        return value[part], False
    if isinstance(value, list | tuple) and isinstance(part, int):
        try:
            return value[part], False
        except IndexError:
            raise KeyError(part) from None
    for name, child, _ in children(value):
        if name == part and isinstance(part, str):
            return child, False
    raise KeyError(part)


def find(graph: Graph, path: str | Path) -> Place:
    """Return the place at `path` of `graph`, whose value may be `UNSET`.

    Args:
      graph: A node.
      path: A written path or its parts.

    Returns:
      The place: its path and value, the node or container that holds it, and whether the value is a
      default.

    Raises:
      UnknownReference: There is no such place; the problem holds the nearest paths.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> place = graph.find(config, "momentum")
      >>> place.value, place.is_default
      (0.9, True)
    """
    parts = parse_path(path) if isinstance(path, str) else path
    place, depth = locate(graph, parts)
    if depth < len(parts):
        raise UnknownReference(unknown_path(graph, parts, depth, place.value))
    return place


def locate(graph: Graph, parts: Path) -> tuple[Place, int]:
    """Return the deepest place of `graph` on the way to `parts`, and how many parts lead to it.

    Args:
      graph: A node.
      parts: The parts of a path, which need not exist.

    Returns:
      The place, and the number of parts that lead to it: fewer than `parts` has if the path does
      not exist.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> place, depth = graph.locate(config, ("momentum", "decay"))
      >>> place.path, depth
      ('momentum', 1)
    """
    owner, value, is_default = None, graph, False
    for depth, part in enumerate(parts):
        try:
            child, child_is_default = child_of(value, part)
        except KeyError:
            before = parts[depth - 1] if depth else ""
            return Place(format_path(parts[:depth]), value, owner, before, is_default), depth
        owner, value, is_default = value, child, is_default or child_is_default
    return Place(format_path(parts), value, owner, parts[-1] if parts else "", is_default), len(
        parts
    )


def unknown_path(
    graph: Graph,
    parts: Path,
    depth: int,
    owner: Any,
    leaves: bool = False,
    places: Iterable[Place] | None = None,
) -> Problem:
    """Return the problem that `parts` does not exist, because `owner` has no `parts[depth]`.

    Args:
      graph: A node.
      parts: The unknown path.
      depth: How many of its parts exist.
      owner: The value at these parts.
      leaves: Whether to suggest the fields of a node instead of the node.
      places: Every place of the graph, where the caller has them at hand.
    """
    # Four messages: the path leads through a bare class, or another leaf; there is a similar path;
    # or the fields that exist are listed, as nothing is similar.
    text, at = format_path(parts), format_path(parts[:depth])
    if callable(owner) and owner is not UNSET and not is_container(owner):
        # `norm=RMSNorm` is a template with the defaults of its class, and no node of the graph.
        name = display_name(owner)
        takes = signatures.arguments(owner).names
        remedy = f"write {at}={name}(), whose arguments are settings"
        if parts[depth] not in takes:
            remedy = f"it takes {listed(list(takes), 8)}"
        what = f"does not exist: {at} is {name} without its arguments"
        return Problem(what, path=text, remedy=remedy)
    if not is_container(owner):
        description = values.expression(owner) if values.is_value_node(owner) else repr(owner)
        description = "not set" if owner is UNSET else f"{description[:60]}, which has no fields"
        return Problem(f"does not exist: {at} is {description}", path=text)
    near = nearest_paths(graph, parts, leaves=leaves, places=places)
    remedy = ""
    if not near:
        names = [join("", part) for part, _, _ in children(owner, unset=True)]
        there = at or "the root"
        remedy = f"{there} has {listed(names, 16)}" if names else f"{there} is empty"
    return Problem("does not exist", path=text, nearest=near, remedy=remedy)


def get(graph: Graph, path: str) -> Any:
    """Return the value or node at `path` of `graph`, or the default if it is not set.

    Args:
      graph: A node.
      path: A written path; empty for the graph itself.

    Returns:
      The value or node itself, not a copy.

    Raises:
      UnknownReference: There is no such path, or nothing is set there and there is no default.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> graph.get(config, "learning_rate"), graph.get(config, "momentum")
      (0.0003, 0.9)
    """
    if not path:
        return graph
    place = find(graph, path)
    if place.value is UNSET:
        raise UnknownReference(Problem("is not set", path=place.path))
    return place.value


def nearest(
    name: str, candidates: Iterable[str], count: int = 3, loosest: float = 0.6
) -> list[str]:
    """Return the candidates that are most like `name`, best first.

    Args:
      name: The unknown name.
      candidates: The valid names.
      count: The most names to return.
      loosest: The least similarity, from 0 to 1; below 0.7 only the best name is returned.

    Returns:
      At most `count` candidates; none if all are too different.

    Example:
      >>> from luthier import graph
      >>> graph.nearest("adamW", ["adamw", "lion", "muon"])
      ['adamw']
      >>> graph.nearest("model", ["data", "task"])
      []
    """
    # Without regard to case, which difflib counts as a difference: `adamW` is `AdamW`.
    known: dict[str, list[str]] = {}
    for candidate in dict.fromkeys(candidates):
        known.setdefault(candidate.lower(), []).append(candidate)
    close = difflib.get_close_matches(name.lower(), known, count, cutoff=max(0.7, loosest))
    if not close:
        close = difflib.get_close_matches(name.lower(), known, 1, cutoff=loosest)
    return [candidate for lowered in close for candidate in known[lowered]][:count]


def nearest_paths(
    graph: Graph,
    path: str | Path,
    count: int = 3,
    leaves: bool = False,
    places: Iterable[Place] | None = None,
) -> list[str]:
    """Return the existing paths that are most like `path`, best first.

    Parts are corrected one after the other; if that fails, the last name is searched for in the
    whole graph.

    Args:
      graph: A node.
      path: The unknown path.
      count: The most paths to return.
      leaves: Whether to name the fields of a node instead of the node.
      places: Every place of the graph, where the caller has them at hand.

    Returns:
      At most `count` paths; none if nothing is similar.

    Example:
      >>> import luthier
      >>> from luthier import graph
      >>> config = luthier.experiment("quickstart")
      >>> graph.nearest_paths(config, "optimiser.learning_rate.peek")
      ['optimizer.learning_rate.peak']
    """
    # A beam search over the tree instead of difflib over all paths: in the likeness of whole paths
    # one wrong part drowns in the rest. Each step corrects one part, at a cost of its unlikeness,
    # and the four cheapest prefixes are kept: more than `count`, as the next part ends some.
    parts = parse_path(path) if isinstance(path, str) else path
    beam: list[tuple[float, str, Any]] = [(0.0, "", graph)]
    for part in parts:
        beam = [step for state in beam for step in _steps(*state, part)]
        beam = sorted(beam, key=lambda state: state[0])[:4]
    matches = [(at, value) for _, at, value in beam] or _by_last_name(graph, parts, places)
    if leaves:
        matches = [leaf for place in matches for leaf in _leaves_of(*place)]
    return list(dict.fromkeys(at for at, _ in matches))[:count]


def _steps(cost: float, at: str, value: Any, part: Part) -> Iterator[tuple[float, str, Any]]:
    if not is_container(value):
        return
    below = {name: child for name, child, _ in children(value, unset=True)}
    if part in below:
        yield cost, join(at, part), below[part]
    elif isinstance(part, str):
        # Arguments that the parent passes at the call are never worth a suggestion.
        hidden = signatures.inherited(value.__fn_or_cls__) if is_node(value) else ()
        for name in nearest(part, [n for n in below if isinstance(n, str) and n not in hidden]):
            unlike = 1 - difflib.SequenceMatcher(None, part, name).ratio()
            yield cost + unlike, join(at, name), below[name]


def _by_last_name(
    graph: Graph, parts: Path, places: Iterable[Place] | None
) -> list[tuple[str, Any]]:
    # The name is right and its place is wrong: `model.learning_rate` for the optimizer's. Places
    # are ranked by the likeness of the whole path, of at most 50 for each name.
    wanted = next((part for part in reversed(parts) if isinstance(part, str)), "")
    by_name: dict[str, list[Place]] = {}
    for place in walk(graph, unset=True, once=True) if places is None else places:
        if isinstance(place.part, str):
            by_name.setdefault(place.part, []).append(place)
    # Below a node that exists and lacks the field (`optimizer.eps` of Lion), a similar name of
    # another node (`training.steps`) is rarely what was meant.
    is_below = 0 < len(parts) - 1 == locate(graph, parts)[1]
    similar = nearest(wanted, by_name, loosest=0.8 if is_below else 0.75)
    names = [wanted] if wanted in by_name else similar
    text = format_path(parts)
    matches = [place for name in names for place in by_name[name][:50]]
    if is_below:
        # Who writes `data.source` of data that has none does not mean `restore.rules[0].source`.
        matches = [p for p in matches if "[" not in p.path or p.path.startswith(f"{parts[0]}.")]
    matches.sort(key=lambda place: -difflib.SequenceMatcher(None, text, place.path).ratio())
    return [(place.path, place.value) for place in matches]


def _leaves_of(path: str, value: Any) -> list[tuple[str, Any]]:
    if not is_container(value) or isinstance(value, list | tuple):
        return [(path, value)]
    below = [(join(path, part), child) for part, child, _ in children(value, unset=True)]
    return [place for place in below if not is_container(place[1])] or [(path, value)]
