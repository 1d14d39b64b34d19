from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest

from luthier.layers import abstract_forms
from luthier.layers.declared import kernel, kernel_bytes, kernel_flops, visible, visible_share

X = jnp.ones((2, 3))


def _absent(x):
    raise RuntimeError("the device is not here")


def _scopes(function):
    equation = jax.make_jaxpr(function)(X).eqns[0]
    return str(equation.source_info.name_stack)


def test_the_scope_carries_the_visible_share():
    def scaled(x):
        with visible(Fraction(3, 8)):
            return x * 2

    assert visible_share(_scopes(scaled)) == Fraction(3, 8)
    assert visible_share(_scopes(lambda x: x * 2)) == 1


def test_a_kernel_is_one_operation_that_declares_its_flops():
    run = kernel(lambda x: jnp.tanh(x) + 1, _absent, flops=70)
    (equation,) = jax.make_jaxpr(run)(X).eqns
    assert kernel_flops(equation.params["name"]) == 70
    assert kernel_flops("loss") is None
    assert jnp.allclose(run(X), jnp.tanh(1) + 1)


def test_an_abstract_form_stands_for_a_kernel_that_cannot_be_traced_here():
    run = kernel(_absent, lambda x: x + 1, flops=70)
    with pytest.raises(RuntimeError, match="the device is not here"):
        jax.make_jaxpr(run)(X)
    with abstract_forms():
        (equation,) = jax.make_jaxpr(run)(X).eqns
    names = [inner.primitive.name for inner in equation.params["jaxpr"].eqns]
    assert names == ["optimization_barrier", "add"]
    name = equation.params["name"]
    assert (kernel_flops(name), kernel_bytes(name)) == (70, X.nbytes + X.nbytes)
    with pytest.raises(RuntimeError, match="the device is not here"):
        jax.make_jaxpr(run)(X)
