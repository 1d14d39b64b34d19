import re

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from luthier.layers import (
    FullRemat,
    NoRemat,
    OffloadNamed,
    Residual,
    SaveNamed,
    SaveProjections,
    SaveWithin,
    named_residuals,
)

ADDRESS = re.compile(r"0x[0-9a-f]+")

X = jnp.arange(1.0, 5.0).reshape(2, 2)


def layer(x):
    y = checkpoint_name(jnp.sin(x), "inner")
    return jnp.tanh(checkpoint_name(y @ jnp.ones((2, 2)), "product")).sum()


POLICIES = [
    NoRemat(),
    FullRemat(),
    SaveNamed(("product",)),
    SaveProjections(),
    SaveWithin(16),
    OffloadNamed(["product"]),
]


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


def chain(x):
    """Two products; the second costs as much as the first, for a quarter of the bytes."""
    wide = checkpoint_name(x @ jnp.ones((2, 8)), "wide")
    narrow = checkpoint_name(jnp.sin(wide) @ jnp.ones((8, 2)), "narrow")
    return jnp.tanh(checkpoint_name(jnp.cos(narrow), "cheap")).sum()


def test_what_residuals_cost():
    found = named_residuals(jax.make_jaxpr(chain)(X).jaxpr)
    assert found == [Residual("wide", 64, 64), Residual("narrow", 16, 64), Residual("cheap", 16, 0)]


@pytest.mark.parametrize(
    ("budget", "kept"),
    [(0, []), (15, []), (16, ["narrow"]), (79, ["narrow", "cheap"]), (80, ["narrow", "wide"])],
)
def test_a_budget_keeps_what_is_worth_most_by_the_byte(budget, kept):
    found = str(jax.make_jaxpr(jax.grad(SaveWithin(budget).wrap(chain, scanned=True)))(X))
    expected = jax.make_jaxpr(jax.grad(SaveNamed(kept).wrap(chain, scanned=True)))(X)
    assert ADDRESS.sub("", found) == ADDRESS.sub("", str(expected))


def test_what_is_offloaded_goes_to_the_host_and_comes_back():
    gradient = jax.grad(OffloadNamed(["product"]).wrap(layer, scanned=True))
    text = str(jax.make_jaxpr(gradient)(X))
    assert text.count("Host") == 1
    assert text.count("Device") == 1
    assert "Host" not in str(
        jax.make_jaxpr(jax.grad(OffloadNamed([]).wrap(layer, scanned=True)))(X)
    )


LAYERS, ROWS, WIDE, NARROW = 8, 64, 64, 16


def measured(policy):
    """Return the gradient of a stack of layers, and the bytes that its program needs beside it."""

    def apply(x, kernels):
        wide = checkpoint_name(x @ kernels[0], "wide")
        narrow = checkpoint_name(jnp.sin(wide) @ kernels[1], "narrow")
        return jnp.tanh(narrow) + x, None

    def loss(kernels, x):
        return jnp.square(jax.lax.scan(policy.wrap(apply, scanned=True), x, kernels)[0]).sum()

    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape) / 4
    kernels = draw(0, LAYERS, NARROW, WIDE), draw(1, LAYERS, WIDE, NARROW)
    x = draw(2, ROWS, NARROW)
    compiled = jax.jit(jax.grad(loss)).lower(kernels, x).compile()
    return compiled(kernels, x), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.full
def test_policies_change_memory_and_no_gradient(distance):
    wide, narrow = ROWS * WIDE * 4, ROWS * NARROW * 4
    exact, everything = measured(NoRemat())
    sizes = {}
    for policy in (
        FullRemat(),
        SaveNamed(["narrow"]),
        SaveNamed(["wide", "narrow"]),
        SaveWithin(0),
        SaveWithin(narrow),
        SaveWithin(wide + narrow),
        OffloadNamed(["narrow"]),
    ):
        gradient, sizes[policy] = measured(policy)
        for one, other in zip(gradient, exact, strict=True):
            assert distance(one, other) < 1e-6, policy
    least, some = sizes[FullRemat()], sizes[SaveNamed(["narrow"])]
    both = sizes[SaveNamed(["wide", "narrow"])]
    assert least < some < both <= everything
    assert both - some > LAYERS * wide / 2
    assert sizes[SaveWithin(0)] == least
    assert sizes[SaveWithin(narrow)] == some
    assert sizes[SaveWithin(wide + narrow)] == both
