"""Templates where templates are wanted, however the call was written."""

from __future__ import annotations

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.errors import ValidationError
from luthier.graph import compare


@pytest.fixture(scope="module")
def quickstart():
    return graphs.resolve("configs.lm.quickstart")


@pytest.fixture(scope="module")
def expected(quickstart):
    graph = graphs.copy_graph(quickstart)
    graph.model.block.dropout = fdl.Partial(layers.Dropout, rate=0.1)
    return graph


@pytest.mark.parametrize(
    "words",
    [
        ["model.block.dropout=Dropout(rate=0.1)"],
        ["model.block.dropout:=luthier.layers.Dropout(0.1)"],
        ["model.block.dropout=partial:Dropout(rate=0.1)"],
        ["gin_bindings:PreNormBlock.dropout=@Dropout()", "gin_bindings:Dropout.rate=0.1"],
        ["gin_bindings:PreNormBlock.dropout=@Dropout", "gin_bindings:Dropout.rate=0.1"],
    ],
    ids=["=", ":=", "partial:", "gin call", "gin class"],
)
def test_a_call_is_the_template_that_the_parent_makes_the_layer_of(quickstart, expected, words):
    changed = graphs.apply(quickstart, words)
    assert graphs.equal(changed, expected)
    graphs.validate(changed)


def test_a_value_of_a_config_dict_is_read_like_an_override(quickstart, expected):
    config = {"model": {"block": {"dropout": "Dropout(rate=0.1)"}}}
    assert graphs.equal(graphs.apply_config_dict(quickstart, config), expected)


def test_hydra_needs_no_partial_for_the_parts_of_a_module():
    text = """
    _target_: luthier.layers.PreNormBlock
    _partial_: true
    attention: {_target_: luthier.layers.Attention, num_heads: 4}
    mlp: {_target_: luthier.layers.Mlp, hidden_dim: 8}
    norm: {_target_: luthier.layers.RMSNorm, _partial_: true}
    dropout: {_target_: luthier.layers.Dropout, rate: 0.1}
    """
    written = fdl.Partial(
        layers.PreNormBlock,
        attention=fdl.Partial(layers.Attention, num_heads=4),
        mlp=fdl.Partial(layers.Mlp, hidden_dim=8),
        norm=fdl.Partial(layers.RMSNorm),
        dropout=fdl.Partial(layers.Dropout, rate=0.1),
    )
    assert graphs.equal(graphs.from_hydra(text), written)


def _document(graph):
    return compare.document(graph, "graph")


def test_inside_of_a_call_and_in_a_list_too(quickstart):
    call = "PreNormBlock(attention=Attention(num_heads=4), mlp=Mlp(hidden_dim=8), norm=RMSNorm(), "
    changed = graphs.apply(quickstart, [f"model.block:=[{call}dropout=Dropout(0.1))]"])
    assert type(changed.model.block[0].dropout) is fdl.Partial
    # The difference can be written as an override again, since the grammar reads it so.
    patch = compare.overrides_of(compare.compare(*map(_document, (quickstart, changed))))
    assert graphs.equal(graphs.apply(quickstart, patch.overrides), changed)


def test_an_object_that_can_be_called_stays_one_where_no_template_is_wanted(quickstart):
    changed = graphs.apply(quickstart, ["optimizer.learning_rate=Constant(0.1)"])
    assert type(changed.optimizer.learning_rate) is fdl.Config
    changed = graphs.apply(quickstart, ["model.block.attention.core=EinsumAttention(dropout=0.1)"])
    assert type(changed.model.block.attention.core) is fdl.Config


def test_a_module_where_its_template_is_wanted_is_one_line_with_the_remedy(quickstart):
    changed = graphs.apply(quickstart, ["model.block.dropout=config:Dropout(0.1)"])
    with pytest.raises(ValidationError) as raised:
        graphs.validate(changed)
    assert str(raised.value) == (
        "model.block.dropout: is a Dropout, and its parent takes a template "
        "[set by argument 1: model.block.dropout=config:Dropout(0.1)]; "
        "write Dropout(...), in Python fdl.Partial(Dropout, ...)"
    )
