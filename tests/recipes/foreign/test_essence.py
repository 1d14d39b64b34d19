import fiddle as fdl

from luthier import graph as graphs
from luthier import layers
from luthier.recipes.foreign import differences, essence

SIZES = {"vocab_size": 11, "width": 2, "depth": 3, "tied": False, "pad": 1}


def test_layers_are_spelled_out_so_that_cycles_of_equal_kinds_are_one(families):
    model = families["llama"](**SIZES)
    by_turns = graphs.copy_graph(model)
    by_turns.block = [by_turns.block, graphs.copy_graph(by_turns.block)]
    assert not differences(essence(model), essence(by_turns))
    by_turns.block[1].mlp.hidden_dim = 7
    assert differences(essence(model), essence(by_turns)) == [("block[1].mlp.hidden_dim", 6.0, 7.0)]


def test_value_nodes_defaults_and_templates_by_class_are_what_they_mean(families):
    model = families["llama"](**SIZES)
    written = graphs.copy_graph(model)
    written.dim = graphs.multiply(graphs.value(4, name="quarter"), 2)
    written.block.attention.head_dim = 2
    written.block.mlp.up = layers.Linear
    written.block.attention.core = fdl.Config(layers.FusedAttention)
    assert not differences(essence(model), essence(written))


def test_a_bias_counts_and_its_initializer_does_not(families):
    model = families["llama"](**SIZES)
    model.block.mlp.up = fdl.Partial(layers.Linear, bias=fdl.Config(layers.Zeros))
    other = graphs.copy_graph(model)
    other.block.mlp.up.bias = fdl.Config(layers.Ones)
    assert not differences(essence(model), essence(other))
    other.block.mlp.up.bias = None
    assert [path for path, *_ in differences(essence(model), essence(other))] == [
        f"block[{layer}].mlp.up.bias" for layer in range(3)
    ]
