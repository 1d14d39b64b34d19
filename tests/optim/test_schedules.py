import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.errors import BadInput
from luthier.optim import (
    Constant,
    Cycles,
    Exponential,
    InverseSquareRoot,
    Join,
    Piecewise,
    WarmupCosine,
    WarmupLinear,
    WarmupPolynomial,
    WarmupStableDecay,
)

STEPS = np.arange(130)


def warmup_then(fall):
    """Return the closed form of a rise to 0.3 from 0.01 in 10 steps, then `fall` of the share."""

    def value(t):
        if t < 10:
            return 0.01 + 0.29 * t / 10
        return 0.02 + 0.28 * fall(t)

    return value


def cycles(t):
    for begin, length, peak in ((0, 10, 0.3), (10, 20, 0.15), (30, 40, 0.075)):
        if begin <= t < begin + length:
            return 0.02 + (peak - 0.02) * 0.5 * (1 + np.cos(np.pi * (t - begin) / length))
    return 0.02


def joined(t):
    if t < 5 or t >= 70:
        return 0.3 if t < 5 else 0.4
    return 0.2 * (t - 5) / 10 if t < 15 else 0.1 + 0.1 * (1 - min(1, (t - 15) / 40))


SCHEDULES = {
    "constant": (Constant(0.3), lambda t: 0.3, optax.constant_schedule(0.3)),
    "cosine": (
        WarmupCosine(0.3, 10, 100, 0.02, 0.01),
        warmup_then(lambda t: 0.5 * (1 + np.cos(np.pi * min(1, (t - 10) / 90)))),
        optax.warmup_cosine_decay_schedule(0.01, 0.3, 10, 100, 0.02),
    ),
    "linear": (
        WarmupLinear(0.3, 10, 100, 0.02, 0.01),
        warmup_then(lambda t: 1 - min(1, (t - 10) / 90)),
        optax.join_schedules(
            [optax.linear_schedule(0.01, 0.3, 10), optax.linear_schedule(0.3, 0.02, 90)], [10]
        ),
    ),
    "polynomial": (
        WarmupPolynomial(0.3, 10, 100, 0.02, 0.01, 2.5),
        warmup_then(lambda t: (1 - min(1, (t - 10) / 90)) ** 2.5),
        optax.join_schedules(
            [optax.linear_schedule(0.01, 0.3, 10), optax.polynomial_schedule(0.3, 0.02, 2.5, 90)],
            [10],
        ),
    ),
    "cycles": (
        Cycles(0.3, 10, 3, 2.0, 0.5, 0.02),
        lambda t: cycles(t),
        optax.join_schedules(
            [
                optax.cosine_decay_schedule(0.3 * 0.5**i, 10 * 2**i, 0.02 / (0.3 * 0.5**i))
                for i in range(3)
            ],
            [10, 30],
        ),
    ),
    "join": (
        Join([Constant(0.3), WarmupLinear(0.2, 10, 50, 0.1), Constant(0.4)], [5, 70]),
        lambda t: joined(t),
        None,
    ),
    "stable": (
        WarmupStableDecay(0.3, 10, 30, 100, 0.02, 0.01),
        warmup_then(lambda t: min(1, max(0, (100 - t) / 30))),
        optax.join_schedules(
            [
                optax.linear_schedule(0.01, 0.3, 10),
                optax.constant_schedule(0.3),
                optax.linear_schedule(0.3, 0.02, 30),
            ],
            [10, 70],
        ),
    ),
    "inverse square root": (
        InverseSquareRoot(0.3, 10),
        lambda t: 0.3 * min(t / 10, np.sqrt(10 / max(t, 1))),
        None,
    ),
    "exponential": (
        Exponential(0.3, 0.5, 20, 0.01),
        lambda t: max(0.01, 0.3 * 0.5 ** (t / 20)),
        optax.exponential_decay(0.3, 20, 0.5, end_value=0.01),
    ),
    "piecewise": (
        Piecewise([0.3, 0.1, 0.2], [10, 60]),
        lambda t: 0.3 if t < 10 else 0.1 if t < 60 else 0.2,
        optax.piecewise_constant_schedule(0.3, {10: 1 / 3, 60: 2}),
    ),
}
every_schedule = pytest.mark.parametrize("row", SCHEDULES.values(), ids=SCHEDULES)


def test_every_schedule_is_in_the_table():
    public = {
        value
        for name, value in vars(inspect.getmodule(Constant)).items()
        if inspect.isclass(value)
        and value.__module__ == Constant.__module__
        and name not in ("Schedule", "Warmup")
    }
    assert public == {type(ours) for ours, _, _ in SCHEDULES.values()}


@every_schedule
def test_the_closed_form_and_optax(row):
    ours, closed, of_optax = row
    found = jax.jit(jax.vmap(ours))(jnp.asarray(STEPS, jnp.int32))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, [closed(t) for t in STEPS], rtol=1e-5, atol=1e-9)
    if of_optax is not None:
        theirs = jax.vmap(of_optax)(jnp.asarray(STEPS))
        np.testing.assert_allclose(found, theirs, rtol=2e-5, atol=1e-7)


@every_schedule
def test_a_python_step_and_a_vector_of_steps_will_do(row):
    ours, closed, _ = row
    assert ours(7).shape == ()
    assert ours(7).dtype == jnp.float32
    np.testing.assert_allclose(ours(7), closed(7), rtol=1e-5)
    np.testing.assert_allclose(ours(jnp.arange(20))[7], ours(7), rtol=1e-6)


@every_schedule
def test_every_argument_may_be_traced_with_the_same_bits(row):
    ours = row[0]
    make = type(ours)
    arguments = {name: getattr(ours, name) for name in inspect.signature(make).parameters}

    # Schedules within schedules, and how many cycles there are, are structure.
    fixed = {name: arguments.pop(name) for name in ("schedules", "num_cycles") if name in arguments}

    def value(arguments, step):
        return make(**arguments, **fixed)(step)

    traced = jax.jit(value)
    constant = jax.jit(functools.partial(value, arguments))
    for step in (0, 3, 10, 11, 50, 99, 100, 1000):
        assert traced(arguments, step) == constant(step)


def test_without_a_warmup_the_first_value_is_the_peak():
    for schedule in (WarmupCosine(0.3, 0, 9), WarmupLinear(0.3, 0, 9)):
        assert schedule(0) == np.float32(0.3)
    assert WarmupStableDecay(0.3, 0, 0, 9)(8) == np.float32(0.3)


@given(
    st.floats(1e-6, 10),
    st.integers(0, 50),
    st.integers(1, 500),
    st.floats(0, 1),
    st.integers(0, 600),
)
def test_a_warmup_schedule_stays_between_its_ends(peak, warmup, rest, end, step):
    for make in (WarmupCosine, WarmupLinear):
        value = float(make(peak, warmup, warmup + rest, end * peak)(step))
        assert -1e-6 * peak <= value <= peak * (1 + 1e-6)
        if step >= warmup:
            assert value >= end * peak * (1 - 1e-5) - 1e-6 * peak


def test_pieces_and_boundaries_must_fit():
    with pytest.raises(BadInput, match="2 values and 2 boundaries; give one boundary less"):
        Piecewise([0.1, 0.2], [3, 4])
    with pytest.raises(BadInput, match="1 schedules and 1 boundaries; give one boundary less"):
        Join([Constant(0.1)], [3])


@pytest.mark.full
def test_ranges_and_relations_name_arguments():
    for ours, _, _ in SCHEDULES.values():
        names = set(inspect.signature(type(ours)).parameters)
        assert set(getattr(ours, "RANGES", {})) <= names
        for relation in getattr(ours, "RELATIONS", ()):
            words = relation.replace("<=", " ").replace("<", " ").replace("+", " ").split()
            assert set(words) <= names
