import fiddle as fdl
import jax
import pytest
from flax import nnx

from luthier.contrib.series import patch_tst_42, patch_tst_64, patch_tst_small


def _count(graph):
    model = nnx.eval_shape(lambda: fdl.build(graph)(rngs=nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(
    ("make", "patches", "dim", "hidden"),
    [
        (patch_tst_42, 42, 128, 256),
        (patch_tst_64, 64, 128, 256),
        (patch_tst_small, 42, 16, 128),
    ],
)
def test_sizes_are_those_of_the_formula(make, patches, dim, hidden):
    attention = 4 * (dim * dim + dim)
    mlp = 2 * dim * hidden + hidden + dim
    layer = attention + mlp + 2 * 2 * dim
    ends = 16 * dim + dim + patches * dim + patches * dim * 192 + 192
    assert _count(make(192)) == 3 * layer + ends
