import fiddle as fdl
import jax
import pytest
from flax import nnx

from luthier.recipes import vision


def _count(graph):
    model = nnx.eval_shape(lambda: fdl.build(graph)(rngs=nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (vision.resnet18, 11_689_512),
        pytest.param(vision.resnet34, 21_797_672, marks=pytest.mark.slow),
        (vision.resnet50, 25_557_032),
    ],
)
def test_sizes_are_those_of_the_papers_networks(make, count):
    assert _count(make()) == count


@pytest.mark.full
def test_group_normalization_leaves_the_size_and_couples_nothing():
    graph = vision.group_normalized(vision.resnet18())
    assert _count(graph) == _count(vision.resnet18())
    model = nnx.eval_shape(lambda: fdl.build(graph)(rngs=nnx.Rngs(0)))
    assert not any(hasattr(module, "COUPLES") for _, module in nnx.iter_modules(model))
    coupled = nnx.eval_shape(lambda: fdl.build(vision.resnet18())(rngs=nnx.Rngs(0)))
    assert any(hasattr(module, "COUPLES") for _, module in nnx.iter_modules(coupled))


def test_small_images_have_a_small_stem():
    graph = vision.small_images(vision.resnet18(10))
    model = nnx.eval_shape(lambda: fdl.build(graph)(rngs=nnx.Rngs(0)))
    assert model.stem.convolution.kernel.shape == (3, 3, 3, 64)
