"""Graphs at random, for properties that hold of all graphs."""

from __future__ import annotations

import fiddle as fdl
import hypothesis
import numpy as np
from hypothesis import strategies as st

from graph_toys import parts, recorded

# Random graphs: leaves, containers and nodes, which may use any node again.
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(max_size=4),
    st.sampled_from([recorded.Speed.FAST, recorded.Ways.UP, np.dtype("int8"), np.float32, int]),
    st.sampled_from([parts.relu, recorded.Holder.Inner, recorded.Point(1, (2,)), range(3)]),
    st.frozensets(st.integers(), max_size=3),
)


@st.composite
def graphs(draw):
    pool = []

    def value(depth):
        choice = draw(st.integers(0, 8 if depth else 2))
        if choice <= 2:
            return draw(LEAVES)
        if choice == 3 and pool:
            return draw(st.sampled_from(pool))
        below = [value(depth - 1) for _ in range(draw(st.integers(0, 3)))]
        if choice == 4:
            made = below
        elif choice == 5:
            return tuple(below)
        elif choice == 6:
            keys = draw(st.lists(st.text(max_size=3), unique=True, min_size=3, max_size=3))
            made = dict(zip(keys, below, strict=False))
        else:
            made = node(below)
        pool.append(made)
        return made

    def node(below):
        kind = draw(st.sampled_from([fdl.Config, fdl.Partial, fdl.ArgFactory]))
        if draw(st.booleans()):
            names = draw(st.permutations(["size", "rate", "other"]))
            made = kind(recorded.Part, **dict(zip(names, below, strict=False)))
        else:
            names = draw(st.permutations(["a", "zebra", "class"]))
            made = kind(recorded.keywords, **dict(zip(names, below, strict=False)))
        if below and draw(st.booleans()):
            made.__argument_tags__[names[0]].add(recorded.Tagged)
        return made

    return node([value(3) for _ in range(3)])


SETTINGS = hypothesis.settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
