"""Selects the places of a graph that a pattern matches: by path, class, tag or constant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import fiddle as fdl

from luthier.errors import MOST_LISTED, Problem, listed
from luthier.graph import signatures, values
from luthier.graph.grammar import front_ends
from luthier.graph.grammar.statements import Statement, Unreadable
from luthier.graph.paths import (
    Place,
    children,
    find,
    is_dataclass_instance,
    is_node,
    join,
    nearest,
    parse_path,
    walk,
)
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph


def select(
    graph: Graph, statement: Statement, places: Callable[[], Sequence[Place]]
) -> list[Place]:
    """Return the places that a pattern matches; each once, however many paths lead to it.

    Args:
      graph: A node.
      statement: The parsed statement.
      places: Returns every place of the graph, by every path.

    Raises:
      Unreadable: A pattern matches nothing.
    """
    match = {
        "any": _by_pattern,
        "glob": _by_pattern,
        "class": _by_class,
        "tag": _by_tag,
        "gin": _by_constant,
        "config_dict": _by_key,
    }
    matches = match[statement.selector](graph, statement, places())
    if not matches:
        raise Unreadable(f"{statement.target!r} matches nothing")
    return matches


def every_place(graph: Graph) -> list[Place]:
    """Return every place of a graph by every path, without arguments that parents pass."""
    # A pattern such as `any:rngs` must not set an argument that the parent passes at the call.
    return [
        place for place in walk(graph, unset=True) if place.value is not UNSET or not _passed(place)
    ]


def _passed(place: Place) -> bool:
    return isinstance(place.owner, fdl.Partial) and place.part in signatures.inherited(
        place.owner.__fn_or_cls__
    )


def _unique(places: Iterable[Place]) -> list[Place]:
    """Return the distinct places: two paths to one argument, or constant, are one place."""
    # Else `any:hidden*=2` would scale an argument of a shared node, or a constant with two users,
    # twice. A place in a tuple is known by its path alone, since tuples have no identity.
    places_by_key: dict[Any, Place] = {}
    for place in places:
        if values.is_constant(place.value):
            key: Any = id(place.value)
        elif (
            isinstance(place.owner, fdl.Buildable | list | dict) and not place.is_default
        ) or isinstance(place.owner, fdl.Buildable):
            key = (id(place.owner), place.part)
        else:
            key = place.path
        places_by_key.setdefault(key, place)
    return list(places_by_key.values())


def _by_pattern(graph: Graph, statement: Statement, places: Sequence[Place]) -> list[Place]:
    # Patterns are matched against written paths, so that what `show` prints can be used as it is.
    target = statement.target
    anywhere = "(?:.+[.])?" if statement.selector == "any" else ""
    matches = re.compile(anywhere + _regex(target)).fullmatch
    matched = _unique(place for place in places if matches(place.path))
    if matched:
        return matched
    if statement.selector == "glob" and not target.startswith("*"):
        inside = re.compile("(?:.+[.])?" + _regex(target))
        elsewhere = [place.path for place in places if inside.fullmatch(place.path)]
        if elsewhere:
            remedy = f"paths start at the root; for all of them write any:{target}"
            raise Unreadable(Problem(f"{target!r} matches nothing", "", "", remedy, elsewhere[:2]))
    last = re.split(r"[.\[]", target.rstrip("]"))[-1]
    close = nearest(last, {place.part for place in places if isinstance(place.part, str)})
    near = [target[: len(target) - len(last)] + name for name in close] if close != [last] else []
    word = "any:" if statement.selector == "any" else ""
    raise Unreadable(Problem(f"{word}{target} matches nothing", nearest=[word + n for n in near]))


def _regex(pattern: str) -> str:
    """Return the pattern as a regular expression: `**` is any parts, `*` one name or index."""
    expression, position = "", 0
    while position < len(pattern):
        if pattern.startswith("**.", position):
            expression, position = expression + "(?:.+[.])?", position + 3
        elif pattern.startswith("**", position):
            expression, position = expression + ".+", position + 2
        elif pattern.startswith("[*]", position):
            # Keys that are names are written as `evaluations.held_out`, others in brackets.
            expression, position = expression + r"(?:\[[^\]]*\]|[.][^.\[\]]+)", position + 3
        elif pattern[position] == "*":
            is_index = expression.endswith("\\[")
            expression, position = (
                expression + (r"[^\]]*" if is_index else r"[^.\[\]]*"),
                position + 1,
            )
        else:
            expression, position = expression + re.escape(pattern[position]), position + 1
    return expression


def _by_class(graph: Graph, statement: Statement, places: Sequence[Place]) -> list[Place]:
    # `class:luthier.layers.Mlp.hidden`: a dotted name and a dotted path with no mark between them.
    # The longest prefix that names a class of the graph is the class, the rest is the field.
    words = statement.target.split(".")
    nodes = [Place("", graph, None, "", False), *places]
    nodes = [place for place in nodes if _is_graph_node(place.value)]
    # A class that the graph has no node of may be that of a default, such as the mesh.
    defaults = [place for place in places if is_dataclass_instance(place.value)]
    for among in (nodes, defaults):
        for count in range(len(words) - 1, 0, -1):
            wanted = ".".join(words[:count])
            matching = [place for place in among if wanted in _titles(_class_of(place.value))]
            field = ".".join(words[count:])
            if matching and field:
                return _fields(graph, matching, wanted, field, places)
    if len(words) == 1 or not words[-1]:
        name = statement.target.rstrip(".")
        what = f"class:{name} names no field; write class:{name}.FIELD=VALUE"
        raise Unreadable(Problem(what))
    known = {title for p in nodes for title in _titles(p.value.__fn_or_cls__) if "." not in title}
    what = f"class:{statement.target}: the graph has no node of {words[0]}"
    # `Mlp` for GatedMlp: less alike by their letters than `ABC`, but what is meant.
    inside = [name for name in known if words[0].lower() in name.lower()]
    close = nearest(words[0], known) or sorted(inside, key=len)[:3]
    close = close or nearest(words[0], {type(place.value).__name__ for place in defaults})
    near = [f"class:{'.'.join([name, *words[1:]])}" for name in close]
    raise Unreadable(Problem(what, nearest=near, remedy="" if near else _list(known, 10)))


def _fields(
    graph: Graph, nodes: Sequence[Place], name: str, field: str, places: Sequence[Place]
) -> list[Place]:
    head = parse_path(field)[0]
    having = [p for p in nodes if head in {part for part, _, _ in children(p.value, unset=True)}]
    if not having:
        known = {part for p in nodes for part, _, _ in children(p.value, unset=True)}
        names = sorted(part for part in known if isinstance(part, str))
        near = [f"class:{name}.{other}" for other in nearest(str(head), names)]
        what = f"class:{name}.{field}: {name} has no {str(head)!r}"
        raise Unreadable(Problem(what, nearest=near, remedy="" if near else _list(names)))
    # The field is looked for below the first path of each node, which need not have it set: for a
    # path below a default, it has to be found anew.
    # One default instance is that of every node of its class, and each of them gets its own.
    first: dict[Any, str] = {}
    for place in having:
        is_default = is_dataclass_instance(place.value)
        first.setdefault(place.path if is_default else id(place.value), place.path)
    wanted = [f"{at}.{field}" if at else field for at in first.values()]
    by_path = {place.path: place for place in places}
    return _unique(by_path[path] if path in by_path else find(graph, path) for path in wanted)


def _class_of(value: Any) -> Any:
    return value.__fn_or_cls__ if is_node(value) else type(value)


def _list(names: Iterable[str], most: int = MOST_LISTED) -> str:
    return f"there are {listed(sorted(names), most)}"


def _is_graph_node(value: Any) -> bool:
    return is_node(value) and not values.is_value_node(value)


def _titles(target: Any) -> set[str]:
    """Return all names of a class or function, and of the bases of a class."""
    # Every suffix of the full name, so that as much of the module may be written as is needed. Not
    # for the bases in flax, since `class:Module.x` would match every layer.
    titles: set[str] = set()
    for cls in target.__mro__[:-1] if isinstance(target, type) else (target,):
        module = getattr(cls, "__module__", "") or ""
        name = getattr(cls, "__qualname__", "")
        if not module.startswith("flax.nnx") or cls is target:
            parts = [*module.split("."), *name.split(".")]
            titles |= {".".join(parts[start:]) for start in range(len(parts))}
            # `optax.adamw` is defined in `optax._src.alias`.
            titles.add(f"{parts[0]}.{name}")
    return titles - {""}


def _by_constant(graph: Graph, statement: Statement, places: Sequence[Place]) -> list[Place]:
    """Return the place of the constant with this name; one place, since it has one value."""
    named: dict[str, list[Place]] = {}
    for place in [*places, *_operands(places)]:
        if values.is_constant(place.value) and place.value.__arguments__.get("name"):
            named.setdefault(place.value.__arguments__["name"], []).append(place)
    constants = {id(place.value): place for place in reversed(named.get(statement.target, ()))}
    if len(constants) > 1:
        at = " and ".join(sorted(place.path for place in constants.values()))
        what = f"{statement.target!r} is the name of {len(constants)} constants, at {at}"
        raise Unreadable(Problem(what, remedy="write a path instead"))
    if not constants:
        known = list(named)
        near = [f"gin:{name}" for name in nearest(statement.target, known)]
        remedy = "" if near else _list(known) if known else "the graph has no named constants"
        what = f"no constant is called {statement.target!r}"
        raise Unreadable(Problem(what, nearest=near, remedy=remedy))
    return list(constants.values())


def _operands(places: Iterable[Place]) -> Iterator[Place]:
    """Yield the operands of arithmetic, at any depth."""
    pending = [place for place in places if values.is_operation(place.value)]
    seen: set[int] = set()
    while pending:
        place = pending.pop()
        if id(place.value) in seen:
            continue
        seen.add(id(place.value))
        for part, child in place.value.__arguments__.items():
            inside = Place(place.path, child, place.value, part, False)
            yield inside
            if values.is_operation(child):
                pending.append(inside)


def _by_key(graph: Graph, statement: Statement, places: Sequence[Place]) -> list[Place]:
    """Return the places that a key of a front end set, according to the history."""
    find_places = front_ends.keys_of(statement.selector)
    if find_places is None:
        raise Unreadable(f"no front end has keys that are written {statement.selector}:KEY")
    return _unique(find_places(graph, statement.target, [*places, *_operands(places)]))


def _by_tag(graph: Graph, statement: Statement, places: Sequence[Place]) -> list[Place]:
    # Tags are matched by class, derived tags included. A tag may be on an argument that is not set,
    # which `places` lists by another rule, so the arguments are found at their nodes.
    nodes = [Place("", graph, None, "", False), *places]
    tagged: list[Place] = []
    known: set[str] = set()
    for place in nodes:
        if not is_node(place.value):
            continue
        for part, tags in place.value.__argument_tags__.items():
            names = {base.__name__ for tag in tags for base in tag.__mro__ if base is not fdl.Tag}
            full = {f"{tag.__module__}.{tag.__qualname__}" for tag in tags}
            known |= {tag.__name__ for tag in tags}
            if statement.target in names | full:
                path = join(place.path, part)
                child = place.value.__arguments__.get(part, UNSET)
                tagged.append(Place(path, child, place.value, part, False))
    if not tagged:
        near = [f"tag:{name}" for name in nearest(statement.target, known)]
        remedy = "" if near or not known else _list(known)
        remedy = remedy or ("" if known else "the graph has no tags")
        what = f"no argument is tagged {statement.target!r}"
        raise Unreadable(Problem(what, nearest=near, remedy=remedy))
    return _unique(tagged)
