import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.optim import Guard

ONE = jnp.float32(1)


def run(guard, norms, loss=ONE):
    check = jax.jit(guard.check)
    state, accepted = guard.init(), []
    for norm in norms:
        ok, state = check(state, loss, jnp.float32(norm))
        accepted.append(bool(ok))
    return accepted, state


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_is_refused_and_counted(bad):
    accepted, state = run(Guard(), [1.0, bad, bad, 1.0, bad])
    assert accepted == [True, False, False, True, False]
    assert (state.total_skipped, state.consecutive_skipped, state.observed) == (3, 1, 2)
    assert (state.mean, state.variance) == (1, 0)
    refused, _ = Guard().check(Guard().init(), jnp.float32(bad), ONE)
    assert not refused


def test_statistics_are_those_of_the_norms():
    norms = np.random.default_rng(0).uniform(1, 3, size=50)
    _, state = run(Guard(decay=0.999), norms)
    np.testing.assert_allclose(state.mean, norms.mean(), rtol=1e-5)
    np.testing.assert_allclose(state.variance, norms.var(), rtol=1e-4)


def test_statistics_forget():
    _, state = run(Guard(decay=0.5), [100.0] * 5 + [1.0] * 30)
    np.testing.assert_allclose(state.mean, 1, rtol=1e-4)


def test_a_spike_is_refused_once_the_guard_is_warm():
    quiet = [1.0, 1.2, 0.8, 1.1, 0.9] * 4
    guard = Guard(spike_factor=4.0, warmup_steps=20)
    accepted, state = run(guard, [*quiet, 10.0, 1.0])
    assert accepted == [True] * 20 + [False, True]
    assert (state.total_skipped, state.consecutive_skipped) == (1, 0)
    assert run(guard, [*quiet[:-1], 10.0])[0][-1]
    assert run(Guard(spike_factor=None, warmup_steps=0), [*quiet, 1e9])[0][-1]


def test_a_quiet_stretch_does_not_make_every_step_a_spike():
    guard = Guard(spike_factor=4.0, warmup_steps=5)
    accepted, _ = run(guard, [1.0] * 20 + [1.3, 1.5])
    assert accepted == [True] * 21 + [False]


def test_the_first_step_is_never_a_spike():
    assert run(Guard(spike_factor=1.0, warmup_steps=0), [5.0])[0] == [True]


def test_a_lasting_rise_is_accepted_after_a_while():
    accepted, state = run(Guard(spike_factor=4.0, warmup_steps=20), [1.0] * 20 + [8.0] * 100)
    assert not accepted[20]
    assert all(accepted[-50:])
    assert state.consecutive_skipped == 0


def test_states_keep_their_types_so_that_they_can_be_carried():
    for guard in (Guard(), Guard(spike_factor=3.0)):
        _, state = guard.check(guard.init(), ONE, jnp.bfloat16(2))
        assert [x.dtype for x in state] == [x.dtype for x in guard.init()]
        assert [x.shape for x in state] == [()] * 5


@pytest.mark.full
def test_traced_settings_give_the_bits_of_constants():
    start = run(Guard(), np.random.default_rng(0).uniform(1, 3, size=30))[1]

    def check(decay, factor, norm):
        ok, state = Guard(decay=decay, spike_factor=factor, warmup_steps=0).check(start, ONE, norm)
        return ok, *state

    traced = jax.jit(check)
    for decay in (0.9, 0.99, 0.999):
        for factor in (1.0, 3.3):
            constant = jax.jit(functools.partial(check, decay, factor))
            # Where the complement is exact enough, a bare tracer has the bits of a constant.
            found = traced(np.float32(decay), np.float32(factor), jnp.float32(7.7))
            expected = constant(jnp.float32(7.7))
            assert found[0] == expected[0]
            np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-5)
    assert traced._cache_size() == 1
