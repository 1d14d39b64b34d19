from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp
import numpy as np
from graph_toys import parts, recorded

from luthier.graph.record.structure import Structures


def test_equal_content_has_equal_numbers():
    structures = Structures()
    for make in (recorded.everything, parts.experiment, lambda: float("nan"), lambda: {"a": [1]}):
        assert structures.number(make()) == structures.number(make())
    assert structures.number({"a": 1, "b": 2}) == structures.number({"b": 2, "a": 1})


def test_unequal_content_has_unequal_numbers():
    tagged = fdl.Config(parts.Layer, dim=1)
    fdl.add_tag(tagged, "dim", recorded.Tagged)
    unequal = [
        *(1, 1.0, True, "1", b"1", 0.0, -0.0, None, (1,), [1], {1: 1}, {"1": 1}, {1}),
        *(np.float32, jnp.float32, np.dtype("float32"), parts.relu, parts.gelu, parts.Kind.FAST),
        *(fdl.Config(parts.Layer), fdl.Partial(parts.Layer), fdl.Config(parts.Mlp), tagged),
        *(fdl.Config(parts.Layer, dim=1), fdl.Config(parts.Layer, dropout=1)),
        *(recorded.Point(1), recorded.Point(2), recorded.Pair(1, 0)),
    ]
    structures = Structures()
    numbers = [structures.number(value) for value in unequal]
    assert len(set(numbers)) == len(numbers)


def test_sharing_does_not_count():
    layer, structures = fdl.Config(parts.Layer), Structures()
    again = fdl.Config(parts.Layer)
    assert structures.number([layer, layer]) == structures.number([layer, again])
