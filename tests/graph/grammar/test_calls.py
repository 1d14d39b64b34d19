from __future__ import annotations

import ast

import fiddle as fdl
import optax
import pytest
from graph_toys import modules, parts

from luthier.graph import grammar
from luthier.graph.grammar import Unreadable, kind_of, make_node


def bind(target, text):
    tree = ast.parse(text, mode="eval").body
    return {name: ast.unparse(item) for name, item in grammar.bind(target, "f", tree).items()}


def test_arguments_get_their_names():
    assert bind(parts.Cosine, "f(1, total_steps=3)") == {"peak": "1", "total_steps": "3"}
    assert bind(parts.by_position, "f(1, 2, c=3)") == {0: "1", 1: "2", "c": "3"}
    assert bind(parts.keywords, "f(1, anything=2)") == {"a": "1", "anything": "2"}


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        (parts.Cosine, "f(1, 2, 3, 4)", "f takes 3 arguments, not 4 without a name"),
        (parts.Cosine, "f(1, peak=2)", "f is given 'peak' twice"),
        (parts.Cosine, "f(paek=2)", "f has no argument 'paek'; did you mean peak?"),
        (
            parts.Cosine,
            "f(zzz=2)",
            "f has no argument 'zzz'; it takes peak, warmup_steps, total_steps",
        ),
        (optax.chain, "f(1)", "f takes *args, which a graph cannot name; wrap it in a function"),
        (3, "f()", "f is not callable"),
    ],
)
def test_what_does_not_bind(target, text, message):
    with pytest.raises(Unreadable) as caught:
        bind(target, text)
    assert message in str(caught.value)


def test_kinds():
    assert kind_of(parts.Mlp, {}, None) is fdl.Config
    assert kind_of(parts.Mlp, {}, fdl.Partial(parts.Mlp)) is fdl.Partial
    assert kind_of(modules.Dense, {}, None) is fdl.Partial
    assert kind_of(modules.Dense, {"rngs": 1}, None) is fdl.Config


def test_nodes():
    assert make_node(parts.by_position, fdl.Config, {0: 1, "c": 2})[0] == 1
    with pytest.raises(Unreadable, match="is not callable"):
        make_node(3, fdl.Config)
