import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.errors import BadInput
from luthier.layers import (
    Attention,
    EinsumAttention,
    FusedAttention,
    Linear,
    LoraLinear,
    Normal,
    Rotary,
    Tokens,
)
from luthier.parallel import Mesh, Rules, activation_rules, activation_rules_table

SPLIT = Rules(activations=activation_rules_table())
BIASED = functools.partial(Linear, bias=Normal(1.0))


def make(num_heads=4, *, seed=0, dim=16, **settings):
    return Attention(num_heads, **settings, dim=dim, rngs=nnx.Rngs(seed))


@pytest.mark.full
def test_parameters_and_their_axes():
    attention = make(num_kv_heads=2, head_dim=8, projection=BIASED, output=BIASED)
    found = {
        ".".join(path): (p.shape, p.get_metadata()["logical_axes"])
        for path, p in nnx.to_flat_state(nnx.state(attention))
    }
    heads, kv_heads = ("heads", "head_dim"), ("kv_heads", "head_dim")
    assert found == {
        "query.kernel": ((16, 4, 8), ("embed", *heads)),
        "query.bias": ((4, 8), heads),
        "key.kernel": ((16, 2, 8), ("embed", *kv_heads)),
        "key.bias": ((2, 8), kv_heads),
        "value.kernel": ((16, 2, 8), ("embed", *kv_heads)),
        "value.bias": ((2, 8), kv_heads),
        "output.kernel": ((4, 8, 16), (*heads, "embed")),
        "output.bias": ((16,), ("embed",)),
    }


@pytest.mark.full
def test_grouped_queries_are_repeated_keys(draw, distance, apply):
    grouped, full = make(num_kv_heads=2, rotary=Rotary()), make(rotary=Rotary())
    full.query, full.output = grouped.query, grouped.output
    for name in ("key", "value"):
        kernel = getattr(grouped, name).kernel[...]
        getattr(full, name).kernel[...] = jnp.repeat(kernel, 2, axis=1)
    x, tokens = draw(2, 6, 16), Tokens.single(2, 6)
    assert distance(apply(grouped, x, tokens), apply(full, x, tokens)) < 1e-6


def test_cores_are_swappable(draw, pack, distance, apply):
    x, tokens = draw(2, 8, 16), pack([[3, 5], [6]], 8)
    cores = (EinsumAttention(), FusedAttention())
    einsum, fused = (apply(make(core=core, rotary=Rotary()), x, tokens) for core in cores)
    assert distance(einsum, fused) < 1e-6


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), max_size=4), st.integers(0, 11), st.integers(0, 2**16))
def test_a_token_sees_only_the_past_of_its_document(sizes, changed, seed):
    """Changing one token changes nothing outside of its document, and nothing before it."""
    length = 12
    positions, segments = np.zeros((2, 1, length), np.int32)
    start = 0
    for segment, size in enumerate(sizes, 1):
        size = min(size, length - start)
        positions[0, start : start + size] = np.arange(size)
        segments[0, start : start + size] = segment
        start += size
    tokens = Tokens(jnp.asarray(positions), jnp.asarray(segments))
    generator = np.random.default_rng(seed)
    x = jnp.asarray(generator.standard_normal((1, length, 16)), jnp.float32)
    other = x.at[0, changed].set(100 * generator.standard_normal(16))
    before, after = _rotary_attention(x, tokens), _rotary_attention(other, tokens)
    may_change = (segments[0] == segments[0, changed]) & (segments[0] > 0)
    may_change &= np.arange(length) >= changed
    may_change[changed] = True
    assert (before[0, ~may_change] == after[0, ~may_change]).all()
    if segments[0, changed] > 0:
        assert (before[0, changed] != after[0, changed]).any()


@jax.jit
def _rotary_attention(x, tokens):
    return make(rotary=Rotary())(x, tokens)


@pytest.mark.full
def test_packed_documents_are_as_if_alone(draw, pack, distance, apply):
    attention, x = make(rotary=Rotary()), draw(1, 9, 16)
    packed = apply(attention, x, pack([[4, 3]], 9))
    assert distance(packed[:, :4], apply(attention, x[:, :4], Tokens.single(1, 4))) < 1e-6
    assert distance(packed[:, 4:7], apply(attention, x[:, 4:7], Tokens.single(1, 3))) < 1e-6


def test_uneven_heads_are_refused():
    with pytest.raises(BadInput, match="dim 16 does not divide into 3 heads"):
        make(3)
    with pytest.raises(BadInput, match="4 heads cannot share 3 key and value heads"):
        make(4, num_kv_heads=3)
    assert make(3, head_dim=4).output.kernel.shape == (3, 4, 16)


@pytest.mark.full
@pytest.mark.parametrize("core", [EinsumAttention(), FusedAttention()])
def test_decoding_is_the_forward_pass(core, draw, distance, apply):
    attention = make(num_kv_heads=2, rotary=Rotary(), core=core)
    x, whole = draw(2, 5, 16), Tokens.single(2, 5)
    decode = jax.jit(lambda module, *arguments: module.decode(*arguments))
    cache, outputs, start = attention.init_cache(2, 5), [], 0
    for size in (2, 1, 2):
        part = slice(start, start + size)
        tokens = jax.tree.map(lambda a, part=part: a[:, part], whole)
        y, cache = decode(attention, x[:, part], tokens, cache, whole, start)
        outputs.append(y)
        start += size
    assert distance(jnp.concatenate(outputs, 1), apply(attention, x, whole)) < 1e-6


@pytest.mark.full
def test_computes_in_its_dtype(draw, apply):
    attention = make(dtype=jnp.bfloat16)
    assert apply(attention, draw(1, 3, 16), Tokens.single(1, 3)).dtype == jnp.bfloat16
    assert attention.init_cache(1, 3).key_BSGK.dtype == jnp.bfloat16


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_joint_projections_are_the_three_of_their_own(biased, devices, draw, distance):
    """Results and gradients, by one product; by three where the mesh splits heads, or in LoRA."""
    sizes = {"num_kv_heads": 2, "projection": BIASED if biased else Linear, "rotary": Rotary()}
    apart, joint = make(**sizes), make(**sizes, joint=True)
    x, tokens = draw(2, 6, 16), Tokens.single(2, 6)

    def loss(state, graphdef, x):
        return jnp.square(nnx.merge(graphdef, state)(x, tokens)).sum()

    found, counts = [], []
    with activation_rules(Mesh(tensor=devices).arrange(jax.devices()[:devices]), SPLIT):
        for attention in (apart, joint):
            graphdef, state = nnx.split(attention)
            run = functools.partial(loss, graphdef=graphdef)
            found.append(jax.jit(jax.grad(lambda s, x, run=run: run(s, x=x), (0, 1)))(state, x))
            text = str(jax.make_jaxpr(lambda s, x, run=run: run(s, x=x))(state, x))
            counts.append(text.count("concatenate["))
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(found[0]), strict=True):
        assert distance(a, b) < 1e-6
    assert (counts[1] > counts[0]) == (devices == 1)
    adapted = make(projection=functools.partial(LoraLinear, rank=2), joint=True)
    assert adapted(x, tokens).shape == x.shape
