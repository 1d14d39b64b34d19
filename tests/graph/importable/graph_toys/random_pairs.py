"""Pairs of graphs at random: the second is the first after some edits, or another graph."""

from __future__ import annotations

import fiddle as fdl
from hypothesis import strategies as st

from graph_toys import parts, recorded
from graph_toys.random_graphs import LEAVES, graphs
from luthier.graph import copy_graph, is_value_node, multiply
from luthier.graph import value as shared_value
from luthier.graph.record import entries
from luthier.graph.signatures import arguments


@st.composite
def pairs(draw):
    choice = draw(st.integers(0, 3))
    a = draw(graphs()) if choice < 2 else [parts.experiment, recorded.everything][choice - 2]()
    for _ in range(draw(st.integers(0, 2))):
        edit(draw, a)
    if draw(st.integers(0, 5)) == 0:
        return a, draw(graphs())
    b = copy_graph(a)
    for _ in range(draw(st.integers(0, 4))):
        edit(draw, b)
    return a, b


def edit(draw, graph):
    """Change one thing of a graph, in place."""
    owner = draw(st.sampled_from(_owners(graph)))
    if isinstance(owner, list):
        _edit_list(draw, graph, owner)
    elif isinstance(owner, dict):
        _edit_dict(draw, graph, owner)
    else:
        _edit_node(draw, graph, owner)


def _owners(graph):
    found, seen, pending = [], set(), [graph]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, fdl.Buildable | list | dict) and not is_value_node(value):
            found.append(value)
        pending += [child for _, child in entries(value) or ()]
    return found


def _holds(value, target):
    return value is target or any(_holds(child, target) for _, child in entries(value) or ())


def _value(draw, graph, owner):
    """Something to put into `owner`: new, or what is in the graph already."""
    choice = draw(st.integers(0, 8))
    others = [found for found in _owners(graph) if not _holds(found, owner)]
    if choice in (1, 7, 8) and others:
        return draw(st.sampled_from(others))
    if choice == 2 and others:
        return copy_graph(draw(st.sampled_from(others)))
    if choice == 3:
        return fdl.Config(recorded.Part, size=draw(st.integers(0, 3)))
    if choice == 4:
        dim = shared_value(draw(st.integers(1, 4)), **draw(st.sampled_from([{}, {"name": "dim"}])))
        return [multiply(dim, draw(st.integers(1, 3))), dim]
    if choice == 5:
        return draw(st.lists(st.integers(0, 3), max_size=3))
    return draw(LEAVES)


def _edit_list(draw, graph, owner):
    choice = draw(st.integers(0, 3)) if owner else 0
    place = draw(st.integers(0, max(len(owner) - 1, 0)))
    if choice == 0:
        owner.insert(place, _value(draw, graph, owner))
    elif choice == 1:
        del owner[place]
    elif choice == 2:
        owner.insert(draw(st.integers(0, len(owner) - 1)), owner.pop(place))
    else:
        owner[place] = _value(draw, graph, owner)


def _edit_dict(draw, graph, owner):
    choice = draw(st.integers(0, 2)) if owner else 0
    key = draw(st.sampled_from(list(owner))) if owner else ""
    if choice == 0:
        owner[draw(st.sampled_from(["a", "b", 3, "a b"]))] = _value(draw, graph, owner)
    elif choice == 1:
        del owner[key]
    else:
        owner[draw(st.sampled_from(["c", "d"]))] = owner.pop(key)


def _edit_node(draw, graph, owner):
    given = owner.__arguments__
    choice = draw(st.integers(0, 6)) if given else 0
    part = draw(st.sampled_from(sorted(given, key=str))) if given else ""
    if choice <= 1:
        names = arguments(owner.__fn_or_cls__).names or ("a", "zebra", "new")
        given[draw(st.sampled_from(names))] = _value(draw, graph, owner)
    elif choice == 2:
        del given[part]
    elif choice == 3:
        tags = owner.__argument_tags__[part]
        tags ^= {recorded.Tagged}
    elif choice == 4:
        other = draw(st.sampled_from(sorted(given, key=str)))
        given[part], given[other] = given[other], given[part]
    elif choice == 5:
        places = [found for found in _owners(graph) if isinstance(found, list | dict)]
        places = [found for found in places if not _holds(given[part], found)]
        if places:  # the part moves there
            place, value = draw(st.sampled_from(places)), given.pop(part)
            place.append(value) if isinstance(place, list) else place.update(moved=value)
    elif isinstance(given[part], fdl.Buildable) and not is_value_node(given[part]):
        kind = draw(st.sampled_from([fdl.Config, fdl.Partial]))
        below = given[part].__arguments__
        made = kind(recorded.keywords)
        made.__arguments__.update(below)
        given[part] = draw(st.sampled_from([made, fdl.Config(recorded.keywords, a=given[part])]))
