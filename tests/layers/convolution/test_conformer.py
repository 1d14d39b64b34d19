"""The Conformer block against PyTorch; tools/goldens/make_vision.py made the file."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Attention,
    ConformerBlock,
    ConvolutionModule,
    Dropout,
    DropoutKeys,
    EinsumAttention,
    Linear,
    Mlp,
    SameDocument,
    Tokens,
    Zeros,
)

DIM = 16
LINEAR = functools.partial(Linear, bias=Zeros())


def make(rate=None):
    attention = functools.partial(
        Attention, 4, projection=LINEAR, output=LINEAR, core=EinsumAttention(SameDocument())
    )
    return ConformerBlock(
        attention,
        functools.partial(Mlp, 24, jax.nn.silu, LINEAR, LINEAR),
        functools.partial(ConvolutionModule, 5),
        dropout=None if rate is None else functools.partial(Dropout, rate),
        dim=DIM,
        rngs=nnx.Rngs(0),
    )


@pytest.mark.full
def test_against_torch(apply):
    with np.load(Path(__file__).parent / "goldens" / "conformer.npz") as file:
        arrays = dict(file)
    graphdef, state = nnx.split(nnx.eval_shape(make))
    for path, variable in nnx.to_flat_state(state):
        given = arrays.pop("before/" + ".".join(map(str, path)))
        assert variable.shape == given.shape, path
        variable.set_value(jnp.asarray(given))
    assert set(arrays) == {"inputs", "outputs"}
    tokens = Tokens.single(*arrays["inputs"].shape[:2])
    found = apply(nnx.merge(graphdef, state), arrays["inputs"], tokens)
    np.testing.assert_allclose(found, arrays["outputs"], rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_packed_texts_do_not_see_each_other(apply, draw, pack):
    block, x = make(), draw(1, 12, DIM)
    packed = apply(block, x, pack([[7, 4]], 12))
    for start, size in ((0, 7), (7, 4)):
        alone = apply(block, x[:, start : start + size], Tokens.single(1, size))
        np.testing.assert_allclose(packed[:, start : start + size], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_convolution_looks_two_tokens_to_each_side(draw):
    module = ConvolutionModule(5, dim=DIM, rngs=nnx.Rngs(0))
    x, tokens = draw(1, 11, DIM), Tokens.single(1, 11)
    reach = jax.jacrev(lambda x: module(x, tokens)[0, 5].sum())(x)[0]
    assert (jnp.abs(reach).sum(-1) > 0).tolist() == [3 <= i <= 7 for i in range(11)]


@pytest.mark.full
def test_dropout_follows_its_keys(apply, draw):
    block, x, tokens = make(0.5), draw(2, 6, DIM), Tokens.single(2, 6)
    documents = jnp.broadcast_to(jnp.arange(2)[:, None], (2, 6))
    keys = DropoutKeys.of_tokens(jax.random.key(0), documents, tokens.positions_BL)
    plain, dropped = apply(block, x, tokens, None), apply(block, x, tokens, keys)
    assert not np.allclose(plain, dropped)
    np.testing.assert_array_equal(dropped, apply(block, x, tokens, keys))


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_shapes_and_axes(kernel_size):
    module = ConvolutionModule(kernel_size, dim=DIM, rngs=nnx.Rngs(0))
    assert module.kernel.shape == (kernel_size, DIM)
    assert module.kernel.get_metadata()["logical_axes"] == (None, "embed")
    assert module.gated.kernel.shape == (DIM, 2, DIM)
