"""What `show` and `diff` say of sharing: settings, weights, or a value."""

from __future__ import annotations

import fiddle as fdl

from luthier import graph as graphs
from luthier import layers, models


def _quickstart():
    return graphs.resolve("configs.lm.quickstart")


def test_a_template_that_is_used_twice_shares_its_settings():
    graph = _quickstart()
    assert "    norm: same settings as model.block.norm" in graphs.render(graph).splitlines()
    apart = graphs.copy_graph(graph)
    apart.model.norm = fdl.Partial(layers.RMSNorm)
    (change,) = graphs.diff(graph, apart)
    assert str(change).startswith(
        "= model.norm: no longer shares its settings with model.block.norm"
    )
    (change,) = graphs.diff(apart, graph)
    assert str(change).startswith("= model.norm: now shares its settings with model.block.norm")


def test_weights_are_tied_by_a_node_of_their_own_which_says_so():
    graph = _quickstart()
    tied = "unembedding = luthier.layers.TiedUnembedding (weights tied to the embedding)"
    assert f"    {tied}  (default)" in graphs.render(graph, defaults=True).splitlines()
    own = graphs.apply(graph, ["model.unembedding=luthier.layers.Unembedding"])
    (change,) = graphs.diff(graph, own)
    assert str(change).startswith(
        "~ model.unembedding: luthier.layers.TiedUnembedding (weights tied to the embedding) -> "
        "luthier.layers.Unembedding (was left at its default)"
    )


def test_a_set_node_that_ties_says_so_too():
    graph = fdl.Partial(
        models.Decoder, vocab_size=8, unembedding=fdl.Partial(layers.TiedUnembedding, cap=30.0)
    )
    assert (
        "  unembedding: partial luthier.layers.TiedUnembedding (weights tied to the embedding)"
        in graphs.render(graph).splitlines()
    )


def test_a_shared_value_is_reported_by_its_name():
    lines = graphs.render(_quickstart()).splitlines()
    assert "      total_steps = 900 (shared as steps)" in lines
    assert "    steps = 900 (shared as steps)" in lines
