"""What the tests of context parallel attention share: meshes, and the plain core beside another."""

import jax
import jax.numpy as jnp
import pytest

from luthier.layers import DropoutKeys
from luthier.parallel import Mesh, Rules, activation_rules, make_mesh

# Documents that end within pieces and across them, one of a single token, and padding.
DOCUMENTS = [[10, 1, 14, 5], [32]]


@pytest.fixture
def on_mesh():
    """Return a context of the rules of a mesh of eight devices."""

    def enter(**sizes):
        return activation_rules(make_mesh(Mesh(**sizes).sizes(8), jax.devices()), Rules())

    return enter


@pytest.fixture
def heads(draw):
    """Return queries, keys and values: 8 query heads, 2 key and value heads."""
    return draw(2, 32, 8, 8), draw(2, 32, 2, 8), draw(2, 32, 2, 8)


@pytest.fixture
def tokens(pack):
    """Return rows of several documents."""
    return pack(DOCUMENTS, 32)


@pytest.fixture
def keys(tokens):
    """Return dropout keys of the tokens."""
    return DropoutKeys.of_tokens(jax.random.key(3), tokens.segments_BL, tokens.positions_BL)


@pytest.fixture
def everything(heads, tokens, draw):
    """Return a function from a core to its result and its gradients, compiled as one program."""
    weights = draw(2, 32, 8, 8)

    def compute(core, bias=None, dropout=None, arguments=heads):
        def loss(query, key, value, bias):
            context = core(query, key, value, tokens, tokens, dropout, bias)
            return (context * weights[..., : context.shape[-1]]).sum(), context

        run = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True, allow_int=True)
        (_, context), gradients = jax.jit(run)(*arguments, bias)
        return [context, *jax.tree.leaves(gradients)]

    return compute


@pytest.fixture
def assert_near(distance):
    """Return a function that compares lists of arrays, each by norm."""

    def check(found, expected, tolerance=1e-6):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert jnp.isfinite(one).all()
            assert distance(one, other) < tolerance

    return check
