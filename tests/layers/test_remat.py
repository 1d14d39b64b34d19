import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from luthier.layers import FullRemat, NoRemat, SaveNamed, SaveProjections

X = jnp.arange(1.0, 5.0).reshape(2, 2)


def layer(x):
    y = checkpoint_name(jnp.sin(x), "inner")
    return jnp.tanh(checkpoint_name(y @ jnp.ones((2, 2)), "product")).sum()


POLICIES = [NoRemat(), FullRemat(), SaveNamed(("product",)), SaveProjections()]


@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_gradient_stays(policy, scanned):
    gradient = jax.jit(jax.grad(policy.wrap(layer, scanned=scanned)))(X)
    assert jnp.allclose(gradient, jax.grad(layer)(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("policy", "products", "sines"),
    [
        (NoRemat(), 2, 1),
        (FullRemat(), 3, 2),
        (SaveNamed(("product",)), 2, 1),
        (SaveNamed(("inner",)), 3, 1),
        (SaveProjections(), 2, 1),
    ],
    ids=repr,
)
def test_what_is_computed_again(policy, products, sines):
    text = str(jax.make_jaxpr(jax.grad(policy.wrap(layer, scanned=True)))(X))
    assert text.count("dot_general[") == products
    assert text.count(" sin ") == sines


def test_policies_are_values():
    assert SaveNamed(["a"]) == SaveNamed(("a",))
    assert len({NoRemat(), NoRemat(), SaveNamed(["a"]), SaveNamed(("a",))}) == 2
