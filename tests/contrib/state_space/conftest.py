"""What the tests of state space layers share: the recurrence, one step after the other."""

import jax
import numpy as np
import pytest

from tests.layers.conftest import apply, distance, draw, pack  # noqa: F401


@pytest.fixture
def recur():
    """Return a function that runs `x_t = a_t x_{t-1} + b_t` in complex128."""

    def run(decay_BLS, inputs_BLS, start_BS=0.0):
        state, states = start_BS, []
        for t in range(inputs_BLS.shape[1]):
            state = decay_BLS[:, t] * state + inputs_BLS[:, t]
            states.append(state)
        return np.stack(states, axis=1)

    return run


@pytest.fixture
def double():
    """Sixty-four bit mode, put back afterwards."""
    with jax.enable_x64(True):
        yield
