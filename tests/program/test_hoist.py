import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.errors import BadInput
from luthier.program import InexactError, Scalar, substitutions, values_of

SCALING = [operator.mul, operator.truediv]
CANCELLING = [operator.add, operator.sub, operator.pow, operator.floordiv, operator.mod]
COMPARING = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def _scalar(value):
    return Scalar(jnp.asarray(value), jnp.asarray(1 - value))


@pytest.mark.parametrize("operation", [*SCALING, *CANCELLING, *COMPARING])
def test_arithmetic_with_arrays_acts_on_the_value_from_either_side(operation):
    scalar, other = _scalar(0.75), jnp.asarray(2.5)
    assert operation(scalar, other) == operation(jnp.asarray(0.75), other)
    assert operation(other, scalar) == operation(other, jnp.asarray(0.75))


@pytest.mark.parametrize("operation", [*SCALING, *COMPARING])
def test_what_float32_does_exactly_enough_is_let_through_with_numbers(operation):
    scalar = _scalar(0.75)
    for left, right in ((scalar, 2.5), (2.5, scalar), (scalar, scalar)):
        numbers = (getattr(x, "value", x) for x in (left, right))
        assert operation(left, right) == operation(*numbers)


@pytest.mark.parametrize("operation", CANCELLING)
def test_what_python_would_do_in_double_is_refused_with_numbers(operation):
    scalar = _scalar(0.75)
    for left, right in ((scalar, 2.5), (2.5, scalar), (scalar, scalar), (2 * scalar, 1)):
        with pytest.raises(InexactError, match="is computed in double"):
            operation(left, right)


@given(st.floats(0.9, 0.99999))
def test_the_complement_is_subtracted_in_double(b2):
    scalar = _scalar(b2)
    assert np.float32((1 - scalar).value) == np.float32(1 - b2)
    assert np.float32((1.0 - scalar).value) == np.float32(1 - b2)
    assert (1 - (1 - scalar)).value == scalar.value


def test_the_complement_of_what_was_scaled_is_refused():
    with pytest.raises(InexactError):
        1 - 0.5 * _scalar(0.9)
    with pytest.raises(InexactError):
        1 - -_scalar(0.9)


def test_float32_alone_would_lose_the_complement():
    assert np.float32(1 - jnp.asarray(0.9999)) != np.float32(1 - 0.9999)


def test_it_promotes_as_the_python_number_that_it_stands_for():
    half = jnp.ones(3, jnp.bfloat16)
    assert (half * _scalar(0.5)).dtype == jnp.bfloat16
    assert jnp.where(half > 0, half, _scalar(0.5).value).dtype == jnp.bfloat16


def test_it_is_an_array_to_numpy_functions_of_jax():
    assert jnp.sqrt(jnp.asarray(_scalar(0.25))) == 0.5
    assert float(_scalar(0.25)) == 0.25
    assert bool(_scalar(0.25))


def test_a_branch_on_a_traced_scalar_is_jaxs_own_error():
    def branch(value):
        return 1 if Scalar(value, 1 - value) > 0 else 0

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(branch)(0.5)


def test_values_of_a_graph_are_floats_with_complements_and_ints_alone(shrunk_graph):
    values = values_of(shrunk_graph, ["optimizer.b2", "seed"])
    assert [float(v) for v in values] == pytest.approx([0.98, 0.02, 0.0])
    found = substitutions(shrunk_graph, ["optimizer.b2", "seed"], values)
    assert isinstance(found["optimizer.b2"], Scalar)
    assert found["seed"] is values[2]


def test_what_cannot_be_hoisted_is_refused_all_at_once(shrunk_graph):
    with pytest.raises(BadInput) as caught:
        values_of(shrunk_graph, ["data.length", "model.block.mlp.activation"])
    assert len(caught.value.problems) == 2


def test_what_does_not_fit_in_a_scalar_of_a_program_stays_a_constant(shrunk_graph):
    from luthier import graph as graphs

    large = graphs.apply(shrunk_graph, ["seed=2147483648"])
    with pytest.raises(BadInput, match="seed: cannot be hoisted: 2147483648 does not fit"):
        values_of(large, ["seed"])
    largest = graphs.apply(shrunk_graph, ["seed=2147483647"])
    assert int(values_of(largest, ["seed"])[0]) == 2147483647


@pytest.fixture
def shrunk_graph():
    from luthier import graph as graphs

    return graphs.resolve("configs.lm.quickstart")
