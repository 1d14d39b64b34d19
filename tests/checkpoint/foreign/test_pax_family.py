import numpy as np
import pytest

from luthier.checkpoint.foreign.pax import PaxParameters, of_layer
from luthier.checkpoint.foreign.pax_family import family_of
from luthier.checkpoint.foreign.stored import in_memory
from luthier.errors import CheckpointError

DIM, HEADS, HEAD = 6, 2, 4


def parameters(parts=(), arrays=()):
    made = {part: in_memory(np.zeros(shape, np.float32)) for part, shape in dict(parts).items()}
    found = {name: in_memory(np.zeros(1, np.float32)) for name in arrays}
    found |= {of_layer(part, 0): array for part, array in made.items()}
    return PaxParameters(found, made, {})


def layouts(found, **more):
    family = family_of(found, **more)
    return {tensor.foreign: tensor.parts[0].layout.text for tensor in family.tensors}


def ours(found):
    family = family_of(found)
    return {tensor.foreign: tensor.parts[0].ours for tensor in family.tensors}


def test_heads_and_their_elements_are_two_dimensions_or_one():
    query = of_layer("self_attention.query.w")
    apart = parameters({"self_attention.query.w": (DIM, HEADS, HEAD)})
    assert layouts(apart)[query] == "embed heads head_dim"
    merged = parameters({"self_attention.query.w": (DIM, HEADS * HEAD)})
    assert layouts(merged)[query] == "embed (heads head_dim) -> embed heads head_dim"


POSTS = {
    (DIM, HEADS, HEAD): "embed heads head_dim -> heads head_dim embed",
    (HEADS, HEAD, DIM): "heads head_dim embed -> heads head_dim embed",
    (DIM, HEADS * HEAD): "embed (heads head_dim) -> heads head_dim embed",
    (HEADS * HEAD, DIM): "(heads head_dim) embed -> heads head_dim embed",
}


@pytest.mark.parametrize("shape", POSTS)
def test_shapes_show_where_the_residual_stream_is(shape):
    parts = {"self_attention.query.w": (DIM, HEADS, HEAD), "self_attention.post.w": shape}
    assert layouts(parameters(parts))[of_layer("self_attention.post.w")] == POSTS[shape]


def test_a_square_kernel_must_be_declared():
    square = parameters({"self_attention.query.w": (8, 8), "self_attention.post.w": (8, 8)})
    with pytest.raises(CheckpointError) as caught:
        family_of(square)
    assert str(caught.value) == (
        "restore.heads_first: lm.transformer.x_layers_0.self_attention.post.w [8, 8] does not show "
        "which dimension is which; set it to what output_proj_use_nhd_shape is: true or false"
    )
    post = of_layer("self_attention.post.w")
    assert layouts(square, heads_first=True)[post].startswith("(heads head_dim) embed")
    assert layouts(square, heads_first=False)[post].startswith("embed (heads head_dim)")


TABLES = {
    "lm.softmax.logits_ffn.linear.w": ("embedding.table", "lm.softmax.logits_ffn.bias.b"),
    "lm.softmax.embedding.w": ("embedding.table", "lm.softmax.logits_ffn.bias.b"),
    "lm.softmax.w": ("embedding.table", "lm.softmax.bias.b"),
    "lm.embedding_lookup.emb_var": ("embedding.table", "lm.softmax.logits_ffn.bias.b"),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_embedding_has_four_names(table):
    found = ours(parameters(arrays=[table]))
    own, bias = TABLES[table]
    assert found[table] == own
    assert found[bias] == "unembedding.bias"


def test_a_head_of_its_own():
    found = ours(parameters(arrays=["lm.embedding_lookup.emb_var"]))
    assert found["lm.softmax.logits_ffn.linear.w"] == "unembedding.kernel"


def test_relative_positions_wrap_the_attention():
    found = ours(parameters({"self_attention.relative_bias.wrb": (HEADS, 8)}))
    assert (
        found[of_layer("self_attention.relative_bias.wrb")] == "blocks.{layer}.attention.bias.table"
    )
    query = found[of_layer("self_attention.query.w")]
    assert query == "blocks.{layer}.attention.attention.query.kernel"
