from luthier import graph as graphs
from luthier.recipes.decoders import nvidia, nvidia_experts, nvidia_llama, pax

SIZES = {"vocab_size": 512, "dim": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16}


def test_kernels_and_positions_are_normal_and_the_embedding_is_not_touched(abstract):
    model = abstract(nvidia(max_length=128, **SIZES))
    block = model.blocks
    for parameter in (
        block.attention.query.kernel,
        block.attention.value.kernel,
        block.attention.output.kernel,
        block.mlp.up.kernel,
        block.mlp.down.kernel,
        model.embedding.position.table,
    ):
        assert parameter.get_metadata()["initializer"] == "Normal(stddev=0.023)"
    assert model.embedding.table.get_metadata()["initializer"] == "FanIn(scale=1.0)"
    assert model.embedding.position.table.shape == (128, 64)


def test_all_else_is_that_of_base_a():
    graph, base = nvidia(**SIZES), pax(**SIZES)
    assert not graphs.equal(graph, base)
    for made in (graph, base):
        made.embedding.position = None
        for part in ("attention.projection", "attention.output", "mlp.up"):
            graphs.set_value(made, f"block.{part}.kernel", None)
    assert graphs.equal(graph, base)


def test_experts_take_the_place_of_the_mlp_without_biases(abstract):
    made = abstract(nvidia_experts(num_experts=4, hidden_dim=256, **SIZES))
    experts = made.blocks.mlp.experts
    assert experts.up.kernel.shape == (2, 4, 64, 256)
    assert experts.up.bias is experts.down.bias is None
    initializer = experts.down.kernel.get_metadata()["initializer"]
    assert initializer == f"Uniform(limit={(3 / 256) ** 0.5})"


def test_the_llama_has_biases_and_a_tied_embedding_of_base_a(abstract):
    sizes = SIZES | {"num_kv_heads": 2, "hidden_dim": 96}
    made = abstract(nvidia_llama(**sizes))
    for part in (made.blocks.attention.key, made.blocks.attention.output, made.blocks.mlp.gate):
        assert part.bias is not None
    assert made.blocks.attention.key.kernel.shape == (2, 64, 2, 16)
    assert made.blocks.attention.query_key is None
    assert made.unembedding.cap == 30.0
    assert made.unembedding.bias.shape == (512,)
    assert made.embedding.scale == 8.0
