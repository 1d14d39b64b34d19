from pathlib import Path

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import parallel
from luthier.errors import BadInput
from luthier.layers import Alibi, Normal, PastBuckets, RelativeBias, SignedBuckets, Tokens
from luthier.tasks import count_flops

# Made from another implementation by tools/goldens/make_families.py.
GOLDENS = Path(__file__).parents[1] / "goldens" / "biases.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDENS) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("buckets", "name"),
    [
        (SignedBuckets(), "buckets/1/32/128"),
        (PastBuckets(), "buckets/0/32/128"),
        (PastBuckets(8, 20), "buckets/0/8/20"),
    ],
    ids=repr,
)
def test_buckets(buckets, name, golden):
    found = np.asarray(buckets(jnp.asarray(golden["offsets"])))
    assert (found == golden[name]).all()
    assert set(found.tolist()) <= set(range(buckets.num_buckets))


@pytest.mark.parametrize(
    ("kind", "least", "condition"),
    [
        (PastBuckets, 17, "num_buckets // 2 < max_distance"),
        (SignedBuckets, 9, "num_buckets // 4 < max_distance"),
    ],
)
def test_the_last_bucket_is_beyond_the_near_ones(kind, least, condition):
    offsets = jnp.arange(-40, 41)
    assert set(np.asarray(kind(32, least)(offsets)).tolist()) <= set(range(32))
    remedy = "raise max_distance, or take fewer buckets"
    for distance in (least - 1, 1):
        with pytest.raises(BadInput, match=f"^max_distance: .* {distance}, .*{remedy}"):
            kind(32, distance)
    graph = fdl.Config(kind, num_buckets=32, max_distance=least - 1)
    with pytest.raises(BadInput) as caught:
        graphs.validate(graph)
    line = f"{kind.__name__} needs {condition}, and max_distance = {least - 1}, num_buckets = 32 "
    assert str(caught.value).startswith(line)
    assert str(caught.value).endswith(remedy)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 8, 12, 16])
def test_slopes(num_heads, golden):
    bias = Alibi(num_heads)(Tokens.single(1, 2), Tokens.single(1, 2))
    assert bias.shape == (1, num_heads, 2, 2)
    np.testing.assert_allclose(-bias[0, :, 1, 0], golden[f"slopes/{num_heads}"], rtol=1e-6)


def test_alibi_grows_with_the_distance():
    tokens = Tokens.single(1, 5)
    bias = np.asarray(Alibi(2)(tokens, tokens))[0]
    distance = np.abs(np.arange(5)[:, None] - np.arange(5))
    np.testing.assert_allclose(bias, [-(2.0**-4) * distance, -(2.0**-8) * distance])


def test_a_learned_number_for_head_and_bucket():
    bias = RelativeBias(3, PastBuckets(8, 20), Normal(1.0), rngs=nnx.Rngs(0))
    assert bias.table.shape == (8, 3)
    assert bias.table.get_metadata()["logical_axes"] == (None, "heads")
    tokens = Tokens.single(2, 40)
    found = np.asarray(bias(tokens, tokens))
    assert found.shape == (2, 3, 40, 40)
    table = np.asarray(bias.table[...])
    assert (found[0, :, 30, 28] == table[2]).all()
    assert (found[1, :, 39, 0] == table[7]).all()
    assert (found[0, :, 3, 9] == table[0]).all()


def test_the_product_for_tpus_finds_the_same_numbers_and_gradients():
    bias = RelativeBias(3, SignedBuckets(8, 20), Normal(1.0), rngs=nnx.Rngs(0))
    tokens = Tokens.single(2, 40)
    weights = np.random.default_rng(0).normal(size=(2, 3, 40, 40))

    def total(bias):
        found = bias(tokens, tokens)
        return jnp.sum(found * weights), found

    expected, found = nnx.grad(total, has_aux=True)(bias)
    mesh = parallel.Mesh().arrange(jax.devices()[:1])
    with parallel.activation_rules(mesh, parallel.Rules()), parallel.stand_ins_for("tpu"):
        program = jax.make_jaxpr(lambda: bias(tokens, tokens))()
        gradient, by_product = nnx.grad(total, has_aux=True)(bias)
    assert "gather" not in str(program)
    flops = count_flops(program)  # a lookup has none
    assert (flops.weights, flops.batched, flops.idle > 0) == (0, 0, True)
    np.testing.assert_array_equal(by_product, found)
    np.testing.assert_allclose(gradient.table[...], expected.table[...], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [Alibi(2), RelativeBias(2, table=Normal(1.0), rngs=nnx.Rngs(0))])
def test_biases_follow_positions_and_not_places(bias, pack):
    packed, alone = pack([[3, 4]], 9), Tokens.single(1, 4)
    assert (bias(packed, packed)[..., 3:7, 3:7] == bias(alone, alone)).all()
    last = Tokens(jnp.array([[3]]), jnp.array([[1]]))
    assert (bias(last, alone) == bias(alone, alone)[..., 3:, :]).all()
