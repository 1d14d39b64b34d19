import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    Dropout,
    DropoutKeys,
    Embedding,
    FanIn,
    LearnedPositions,
    Normal,
    TiedUnembedding,
    Tokens,
    Unembedding,
    soft_cap,
)
from luthier.losses import weighted_cross_entropy
from luthier.parallel import Mesh, Rules, activation_rules, stand_ins_for

SIZES = {"vocab_size": 11, "dim": 4}
IDS = jnp.array([[0, 10, 3]])
TOKENS = Tokens.single(1, 3)


def test_tokens_are_looked_up():
    embedding = Embedding(Normal(1.0), **SIZES, rngs=nnx.Rngs(0))
    assert (embedding(IDS, TOKENS) == embedding.table[...][IDS]).all()
    assert embedding.table.get_metadata()["logical_axes"] == ("vocab", "embed")


def test_padding_changes_no_other_parameter():
    plain = Embedding(Normal(1.0), **SIZES, rngs=nnx.Rngs(0))
    padded = Embedding(Normal(1.0), pad_to_multiple=8, **SIZES, rngs=nnx.Rngs(0))
    assert padded.table.shape == (16, 4)
    assert (padded.table[...][:11] == plain.table[...]).all()
    assert not padded.table[...][11:].any()


def test_ids_beyond_the_table_are_loud():
    embedding = Embedding(**SIZES, rngs=nnx.Rngs(0))
    assert jnp.isnan(embedding(jnp.array([[11]]), Tokens.single(1, 1))).all()


def test_positions_and_dropout():
    embedding = Embedding(
        position=functools.partial(LearnedPositions, 3),
        dropout=functools.partial(Dropout, 0.5),
        **SIZES,
        rngs=nnx.Rngs(0),
    )
    expected = embedding.table[...][IDS] + embedding.position.table[...]
    assert (embedding(IDS, TOKENS) == expected).all()
    keys = DropoutKeys.of_tokens(jax.random.key(0), IDS, TOKENS.positions_BL)
    dropped = embedding(IDS, TOKENS, keys)
    assert (dropped == 0).any()
    assert ((dropped == 0) | jnp.isclose(dropped, 2 * expected)).all()
    with pytest.raises(BadInput, match="learned positions"):
        embedding.check_length(4)


def test_fan_in_gives_vectors_of_norm_one():
    embedding = Embedding(FanIn(), vocab_size=500, dim=64, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(jnp.square(embedding.table[...]).sum(-1).mean(), 1.0, rtol=0.05)


@pytest.mark.parametrize("multiple", [1, 8])
def test_tied_logits_are_inner_products(multiple, draw, distance):
    embedding = Embedding(Normal(1.0), pad_to_multiple=multiple, **SIZES, rngs=nnx.Rngs(0))
    unembedding, hidden = TiedUnembedding(), draw(2, 3, 4)
    assert not jax.tree.leaves(nnx.state(unembedding))
    expected = hidden @ embedding.table[...][:11].T
    assert unembedding(hidden, embedding).shape == (2, 3, 11)
    assert distance(unembedding(hidden, embedding), expected) < 1e-6


@pytest.mark.parametrize("multiple", [1, 8])
def test_untied_logits_have_their_kernel(multiple, draw, distance):
    rngs = nnx.Rngs(0)
    embedding = Embedding(**SIZES, rngs=rngs)
    unembedding = Unembedding(pad_to_multiple=multiple, **SIZES, rngs=rngs)
    hidden = draw(2, 3, 4)
    expected = hidden @ unembedding.kernel[...][:, :11]
    assert unembedding(hidden, embedding).shape == (2, 3, 11)
    assert distance(unembedding(hidden, embedding), expected) < 1e-6
    assert unembedding.kernel.get_metadata()["logical_axes"] == ("embed", "vocab")


def test_logits_are_float32_in_every_dtype(draw):
    rngs = nnx.Rngs(0)
    embedding = Embedding(**SIZES, dtype=jnp.bfloat16, rngs=rngs)
    unembedding = Unembedding(**SIZES, dtype=jnp.bfloat16, rngs=rngs)
    for layer in (TiedUnembedding(), unembedding):
        assert layer(draw(2, 3, 4), embedding).dtype == jnp.float32


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_backward_products_of_logits_are_in_the_type_of_the_layer(is_tied, draw):
    """A float32 cotangent would make both of them float32 products, at half the rate or less."""
    embedding = Embedding(**SIZES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    own = Unembedding(**SIZES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer = TiedUnembedding() if is_tied else own
    graphdef, state = nnx.split((layer, embedding))
    hidden, weights = draw(2, 3, 4).astype(jnp.bfloat16), draw(2, 3, SIZES["vocab_size"])

    def loss(state, hidden):
        layer, embedding = nnx.merge(graphdef, state)
        return (layer(hidden, embedding) * weights).sum()

    gradient = jax.grad(loss, (0, 1))
    text = str(jax.make_jaxpr(gradient)(state, hidden))
    kinds = re.findall(r"(\w+)\[[\d,]*\] = dot_general\[", text)
    assert sorted(kinds) == ["bf16", "bf16", "f32"]  # only the logits themselves are stored wide
    table = embedding.table[...].T if is_tied else layer.kernel[...]
    exact = np.asarray(weights, np.float64) @ np.asarray(table, np.float64).T
    found = gradient(state, hidden)[1].astype(float)
    np.testing.assert_allclose(found, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("is_tied", [False, True])
def test_logits_may_be_stored_in_fewer_bits(is_tied, draw):
    embedding = Embedding(**SIZES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    own = {**SIZES, "dtype": jnp.bfloat16}
    found, hidden = [], draw(2, 3, 4)
    for dtype in (jnp.float32, jnp.bfloat16):
        stored = {"logits_dtype": dtype}
        layer = (
            TiedUnembedding(**stored) if is_tied else Unembedding(**own, **stored, rngs=nnx.Rngs(0))
        )
        found.append(layer(hidden, embedding))
    assert [logits.dtype for logits in found] == [jnp.float32, jnp.bfloat16]
    np.testing.assert_array_equal(found[0].astype(jnp.bfloat16), found[1])
    # What follows the product is computed in float32: a cap near the logits keeps them apart.
    capped = TiedUnembedding(cap=1.0, logits_dtype=jnp.bfloat16)(hidden, embedding)
    assert capped.dtype == jnp.float32


def test_the_scale_is_rounded_to_the_type():
    plain = Embedding(Normal(1.0), **SIZES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    scaled = Embedding(Normal(1.0), scale=3072**0.5, **SIZES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    # sqrt(3072) = 55.43, and bfloat16 has 55.5.
    expected = plain(IDS, TOKENS) * jnp.bfloat16(55.5)
    assert (scaled(IDS, TOKENS) == expected).all()


def test_the_scale_leaves_positions_alone():
    position = functools.partial(LearnedPositions, 3)
    plain, scaled = (
        Embedding(Normal(1.0), position, scale=scale, **SIZES, rngs=nnx.Rngs(0))
        for scale in (None, 3.0)
    )
    table, positions = plain.table[...], plain.position.table[...]
    np.testing.assert_allclose(scaled(IDS, TOKENS), 3.0 * table[IDS] + positions, rtol=1e-6)


def test_capped_logits(draw, distance):
    rngs, hidden = nnx.Rngs(0), 10.0 * draw(2, 3, 4)
    embedding = Embedding(Normal(1.0), **SIZES, rngs=rngs)
    plain = TiedUnembedding()(hidden, embedding)
    capped = TiedUnembedding(cap=2.0)(hidden, embedding)
    assert distance(capped, 2.0 * np.tanh(np.asarray(plain, np.float64) / 2.0)) < 1e-6
    assert jnp.abs(capped).max() <= 2.0 < jnp.abs(plain).max()
    untied = Unembedding(cap=2.0, **SIZES, rngs=rngs)
    assert distance(untied(hidden, embedding), soft_cap(hidden @ untied.kernel[...], 2.0)) < 1e-6


def test_the_bias_of_tied_logits_is_capped_with_them(draw, distance):
    embedding = Embedding(Normal(1.0), pad_to_multiple=8, **SIZES, rngs=nnx.Rngs(0))
    tied = TiedUnembedding(cap=2.0, bias=Normal(1.0), vocab_size=11, rngs=nnx.Rngs(1))
    hidden = draw(2, 3, 4)
    expected = soft_cap(TiedUnembedding()(hidden, embedding) + tied.bias[...], 2.0)
    assert tied.bias.shape == (11,)
    assert distance(tied(hidden, embedding), expected) < 1e-6


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("sizes", [{"data": 1}, {"data": 2, "tensor": 4}])
def test_the_loss_needs_no_cut_through_the_padding(sizes, platform, draw, distance):
    settings = {"bias": Normal(1.0), "cap": 5.0, "pad_to_multiple": 16, "vocab_size": 13, "dim": 8}
    unembedding = Unembedding(**settings, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(unembedding)
    targets_BL = jnp.arange(8).reshape(2, 4) % 13
    shift_V = jnp.arange(13.0)

    def loss(state, hidden_BLD, is_shifted):
        def unembed(hidden_BLD):
            logits_BLV = nnx.merge(graphdef, state)(hidden_BLD, None)
            assert logits_BLV.shape[-1] == 13
            return logits_BLV + shift_V if is_shifted else logits_BLV

        options = {"z_loss": 0.1, "label_smoothing": 0.2}
        weights_BL = jnp.ones((2, 4))
        total, found = weighted_cross_entropy(
            hidden_BLD, unembed, targets_BL, weights_BL, **options
        )
        return total, found

    differentiated = jax.value_and_grad(loss, (0, 1), has_aux=True)
    mesh = Mesh(**sizes).arrange(jax.devices()[: math.prod(sizes.values())])
    hidden_BLD = draw(2, 4, 8)
    for is_shifted in (False, True):
        expected = differentiated(state, hidden_BLD, is_shifted)
        with activation_rules(mesh, Rules()), stand_ins_for(platform):
            run = jax.jit(differentiated, static_argnums=2).lower(state, hidden_BLD, is_shifted)
        compiled = run.compile()
        found = compiled(state, hidden_BLD)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert distance(one, other) < 1e-6
        # What is shifted after the cut has the vocabulary's own size. CPUs that split no vocabulary
        # cut it off always.
        is_cut = is_shifted or (len(mesh.devices.flat) == 1 and platform == "cpu")
        assert (f"[{2 // sizes['data']},4,13]" in compiled.as_text()) == is_cut
