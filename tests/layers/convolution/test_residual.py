"""Blocks; whole networks are compared with another implementation in tests/models."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from luthier.layers import BasicBlock, BottleneckBlock, GroupNorm, LargeStem, SmallStem


@pytest.mark.parametrize(("make", "expansion"), [(BasicBlock, 1), (BottleneckBlock, 4)])
def test_shapes(draw, apply, make, expansion):
    x = draw(2, 9, 8, 3)
    for stride in (1, 2):
        block = make(in_dim=3, width=4, stride=stride, rngs=nnx.Rngs(0))
        assert apply(block, x).shape == (2, -(-9 // stride), -(-8 // stride), 4 * expansion)


def test_a_block_of_one_size_starts_as_the_identity(draw, apply):
    block = BasicBlock(in_dim=4, width=4, stride=1, rngs=nnx.Rngs(0))
    assert block.shortcut is None
    x = draw(2, 6, 6, 4)
    np.testing.assert_allclose(apply(block, x), jax.nn.relu(x), rtol=1e-6)


def test_the_way_past_is_a_convolution_where_sizes_change():
    block = BottleneckBlock(in_dim=16, width=4, stride=2, rngs=nnx.Rngs(0))
    assert block.shortcut.kernel.shape == (1, 1, 16, 16)
    assert block.convolutions[1].window[0] == (2, 2)
    assert block.convolutions[0].window[0] == (1, 1)


def test_norms_are_templates():
    norm = functools.partial(GroupNorm, 2)
    block = BasicBlock(norm, norm, in_dim=4, width=6, stride=1, rngs=nnx.Rngs(0))
    assert all(isinstance(n, GroupNorm) for n in (*block.norms, block.shortcut_norm))


@pytest.mark.parametrize(
    ("make", "shape"), [(LargeStem, (2, 8, 8, 4)), (SmallStem, (2, 32, 32, 4))]
)
def test_stems(draw, apply, make, shape):
    stem = make(in_dim=3, out_dim=4, rngs=nnx.Rngs(0))
    assert apply(stem, draw(2, 32, 32, 3)).shape == shape
