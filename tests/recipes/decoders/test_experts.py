import fiddle as fdl

from luthier import graph as graphs
from luthier import layers
from luthier.recipes.decoders import llama, qwen3_30b_a3b, with_experts

SIZES = {"vocab_size": 258, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 12}


def test_shared_experts_are_one_of_their_size_together(num_parameters):
    plain = llama(**SIZES)
    graph = with_experts(plain, num_experts=8, k=3, num_shared=2)
    expert = 3 * 16 * 12
    router = 16 * 8
    added = 2 * (expert * (8 + 2 - 1) + router)
    assert num_parameters(graph) == num_parameters(plain) + added
    assert plain.block.mlp.__fn_or_cls__ is layers.GatedMlp


def test_one_size_is_of_the_experts_and_the_shared_one():
    graph = with_experts(llama(**SIZES), num_experts=8, k=3, num_shared=2)
    graph = graphs.apply(graph, ["block.mlp.expert.hidden_dim=20"])
    assert graphs.evaluate(graph.block.mlp.shared.hidden_dim) == 40


def test_dispatch_is_dropless_by_default(num_parameters):
    assert with_experts(llama(**SIZES), num_experts=8, k=3).block.mlp.dispatch == fdl.Config(
        layers.Dropless
    )
    capacity = fdl.Config(layers.Capacity, factor=2.0)
    graph = with_experts(llama(**SIZES), num_experts=8, k=3, dispatch=capacity)
    assert graph.block.mlp.dispatch is capacity


def test_qwen3_of_experts_has_its_size(num_parameters):
    assert num_parameters(qwen3_30b_a3b()) == 30_532_122_624


def test_trains(assert_trains):
    capacity = fdl.Config(layers.Capacity)
    graph = llama(**SIZES, pad_to_multiple=8)
    assert_trains(with_experts(graph, num_experts=4, k=2, num_shared=1, dispatch=capacity))
