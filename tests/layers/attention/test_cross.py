import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    CrossAttention,
    EinsumAttention,
    FusedAttention,
    Linear,
    Normal,
    SameDocument,
    Tokens,
)

DIM, HEADS, HEAD_DIM = 12, 3, 5


def make(**settings):
    linear = functools.partial(Linear, bias=Normal(0.3))
    projections = {"projection": linear, "output": linear}
    settings = {"head_dim": HEAD_DIM, **projections, **settings}
    return CrossAttention(HEADS, dim=DIM, rngs=nnx.Rngs(0), **settings)


@jax.jit
def attend(model, x, tokens, source, source_tokens):
    return model(x, tokens, model.remember(source), source_tokens)


def reference(model, x, source, scale):
    """Attend from all of x to all of the source, in float64."""
    wide = lambda parameter: np.asarray(parameter[...], np.float64)
    project = lambda part, x: np.einsum("ld,dhk->lhk", x, wide(part.kernel)) + wide(part.bias)
    query, key, value = (
        project(part, np.asarray(states, np.float64))
        for part, states in ((model.query, x), (model.key, source), (model.value, source))
    )
    scores = np.einsum("lhk,shk->hls", query, key) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = np.einsum("hls,shk->lhk", weights, value)
    return np.einsum("lhk,hkd->ld", context, wide(model.output.kernel)) + wide(model.output.bias)


@pytest.mark.parametrize(
    ("core", "scale"),
    [
        (EinsumAttention(SameDocument()), HEAD_DIM**-0.5),
        (EinsumAttention(SameDocument(), scale=1.0), 1.0),
        (FusedAttention(SameDocument()), HEAD_DIM**-0.5),
    ],
    ids=["einsum", "unscaled", "fused"],
)
def test_the_formula_for_each_packed_pair(core, scale, draw, pack, distance):
    model = make(core=core)
    x, source = draw(1, 9, DIM), draw(1, 8, DIM)
    targets, sources = pack([[4, 3]], 9), pack([[2, 5]], 8)
    found = attend(model, x, targets, source, sources)[0]
    first = reference(model, x[0, :4], source[0, :2], scale)
    second = reference(model, x[0, 4:7], source[0, 2:7], scale)
    assert distance(found[:4], first) < 1e-6
    assert distance(found[4:7], second) < 1e-6


def test_without_a_source_the_context_is_zero(draw, pack):
    model = make()
    x, source = draw(2, 4, DIM), draw(2, 3, DIM)
    found = attend(model, x, pack([[4], [2]], 4), source, pack([[], [3]], 3))
    bias = jnp.broadcast_to(model.output.bias[...], (4, DIM))
    np.testing.assert_array_equal(found[0], bias)  # no source at all
    np.testing.assert_array_equal(found[1, 2:], bias[2:])  # padding of the target
    assert (found[1, :2] != bias[:2]).any(-1).all()


def test_gradients_are_finite_where_rows_are_padding(draw, pack):
    graphdef, state = nnx.split(make())
    x, source = draw(2, 4, DIM), draw(2, 3, DIM)
    tokens, sources = pack([[4], []], 4), pack([[2], []], 3)

    def loss(state, x, source):
        return jnp.square(attend(nnx.merge(graphdef, state), x, tokens, source, sources)).sum()

    gradients = jax.grad(loss, argnums=(0, 1, 2))(state, x, source)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    np.testing.assert_array_equal(gradients[2][0, 2:], 0)  # padding of the source


def test_logical_axes():
    state = nnx.to_flat_state(nnx.state(make()))
    axes = {".".join(path): p.get_metadata()["logical_axes"] for path, p in state}
    assert axes["query.kernel"] == ("embed", "heads", "head_dim")
    assert axes["key.kernel"] == axes["value.kernel"] == ("embed", "kv_heads", "head_dim")
    assert axes["output.kernel"] == ("heads", "head_dim", "embed")


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="dim 13 does not divide into 3 heads"):
        CrossAttention(3, dim=13, rngs=nnx.Rngs(0))


def test_tokens_are_described_by_segments_and_not_by_positions(draw):
    model, x, source = make(), draw(1, 4, DIM), draw(1, 6, DIM)
    single = Tokens.single(1, 6)
    late = Tokens(single.positions_BL + 7, single.segments_BL)
    found = [attend(model, x, Tokens.single(1, 4), source, tokens) for tokens in (single, late)]
    np.testing.assert_array_equal(*found)
