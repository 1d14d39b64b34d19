import numpy as np
import pytest

from luthier.checkpoint.foreign import in_memory, pax
from luthier.checkpoint.foreign.pax import PaxParameters, of_layer
from luthier.checkpoint.foreign.pax_family import family_of
from luthier.errors import CheckpointError

LM = "params.lm.transformer"


@pytest.fixture
def write(tmp_path):
    """A file of parameters by name, drawn by shape."""

    def make(shapes):
        from safetensors.numpy import save_file

        generator = np.random.default_rng(0)
        arrays = {
            name: generator.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        path = tmp_path / "x.safetensors"
        save_file(arrays, path)
        return path, arrays

    return make


def whole(array):
    return array.read(tuple(slice(0, size) for size in array.shape))


def test_layers_that_are_unrolled_keep_their_names(write):
    path, arrays = write({f"{LM}.x_layers_{i}.layer_norm.scale": (4,) for i in range(3)})
    found = pax.read(path)
    assert list(found.arrays) == [f"lm.transformer.x_layers_{i}.layer_norm.scale" for i in range(3)]
    last = found.arrays["lm.transformer.x_layers_2.layer_norm.scale"]
    np.testing.assert_array_equal(whole(last), arrays[f"{LM}.x_layers_2.layer_norm.scale"])


def test_layers_that_are_repeated_come_in_turns(write):
    path, arrays = write({f"{LM}.repeat.sub.x_layers_{i}.layer_norm.scale": (3, 4) for i in (0, 1)})
    found = pax.read(path)
    assert len(found.arrays) == 6
    name = "lm.transformer.x_layers_5.layer_norm.scale"
    assert found.labels[name] == "lm.transformer.repeat.sub.x_layers_1.layer_norm.scale[2]"
    expected = arrays[f"{LM}.repeat.sub.x_layers_1.layer_norm.scale"][2]
    np.testing.assert_array_equal(whole(found.arrays[name]), expected)


def test_stages_of_a_pipeline_follow_each_other(write):
    """Two rounds of three stages, each a loop of two layers."""
    beginning = f"{LM}.pipeline.body.repeat.sub.x_layers_0"
    shapes = {f"{beginning}.layer_norm.scale": (2, 3, 2, 4), f"{beginning}.ff.w": (2, 3, 2, 4, 5)}
    path, arrays = write(shapes)
    found = pax.read(path)
    assert found.parts["ff.w"].shape == (4, 5)
    layer = found.arrays["lm.transformer.x_layers_9.ff.w"]  # (1 * 3 + 1) * 2 + 1
    np.testing.assert_array_equal(whole(layer), arrays[f"{beginning}.ff.w"][1, 1, 1])


def test_queries_keys_and_values_are_taken_apart(write):
    path, arrays = write({f"{LM}.x_layers_0.self_attention.combined_qkv.w": (3, 4, 2, 6)})
    found = pax.read(path)
    key = found.parts["self_attention.combined_qkv.w[1]"]
    np.testing.assert_array_equal(whole(key), next(iter(arrays.values()))[1])


def test_interleaved_numbers_are_put_half_a_head_apart(write):
    shapes = {f"{LM}.x_layers_0.self_attention.{part}.w": (4, 2, 6) for part in ("key", "value")}
    shapes[f"{LM}.x_layers_1.self_attention.combined_qkv.w"] = (3, 4, 2, 6)
    path, _ = write(shapes)
    plain, turned = pax.read(path), pax.read(path, interleaved=True)
    order = [0, 2, 4, 1, 3, 5]
    for name, array in plain.arrays.items():
        is_rotated = "value" not in name and not name.endswith("[2]")
        expected = whole(array)[..., order] if is_rotated else whole(array)
        np.testing.assert_array_equal(whole(turned.arrays[name]), expected)


def test_the_last_checkpoint_is_found(tmp_path):
    for step in (5, 100):
        (tmp_path / "checkpoints" / f"checkpoint_{step:08d}" / "state").mkdir(parents=True)
    last = tmp_path / "checkpoints" / "checkpoint_00000100" / "state"
    assert pax.state_of(tmp_path) == pax.state_of(tmp_path / "checkpoints") == last
    assert pax.state_of(last) == last


def test_a_folder_without_parameters_is_refused(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        pax.read(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds no parameters of a language model of Pax; "
        "give the folder of a job's checkpoints"
    )
    with pytest.raises(CheckpointError, match=r"holds no moving averages .*; leave averages out"):
        pax.read(tmp_path, averages=True)


def test_a_damaged_store_is_refused(tmp_path):
    (tmp_path / "manifest.ocdbt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read: "):
        pax.read(tmp_path)


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
