from __future__ import annotations

import fiddle as fdl
from graph_toys import compared, parts

from luthier.graph import compare, diff


def test_templates_share_their_settings():
    template, other = (fdl.Partial(parts.Mlp, hidden=1) for _ in range(2))
    a = compared.part(size=template, rate=other)
    b = compared.part(size=template, rate=template)
    (change,) = diff(a, b)
    assert change.summary == "now shares its settings with size"
    assert not change.is_effective


def test_values_are_plain_json_and_nodes_have_none():
    a = compared.part(size=compared.mlp(), rate=(1, parts.relu), other={"a": float("inf")})
    b = compared.part(size=3, rate=[1.5], other={"a": float("nan")})
    changes = compare.compare(compare.document(a), compare.document(b)).changes
    assert [(change.value_before, change.value_after) for change in changes] == [
        (None, 3),
        ([1, "graph_toys.parts.relu"], [1.5]),
        ("inf", "nan"),
    ]


def test_tied_weights_are_told_of_live_nodes():
    class Tied:
        TIES = "embed"

    (change,) = diff(compared.part(size=1), compared.part(size=fdl.Config(Tied)))
    assert change.summary.endswith("Tied() (weights tied to embed)")
