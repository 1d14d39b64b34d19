import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier.trainer.processes import Probe


@pytest.fixture
def vector():
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("data",))
    return jax.device_put(jnp.ones(5), NamedSharding(mesh, PartitionSpec()))


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_step_only_compiles_and_later_ones_are_timed(vector):
    found = []
    probe = Probe(found.append)
    probe.start(vector)
    _until(lambda: not probe._busy)
    assert found == []
    for number in (1, 2):
        probe.start(vector)
        _until(lambda: not probe._busy)
        assert len(found) == number
    assert all(0 < seconds < 30 for seconds in found)
    probe.close()
    assert "luthier-probe" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.full
def test_nobody_waits_for_a_probe_that_is_still_being_timed(vector):
    found, go_on = [], threading.Event()

    def slow(seconds):
        found.append(seconds)
        go_on.wait(30)

    probe = Probe(slow)
    probe.start(vector)
    _until(lambda: not probe._busy)
    for _ in range(3):
        probe.start(vector)
    _until(lambda: found)
    assert len(found) == 1
    go_on.set()
    probe.close()
    assert len(found) == 1


@pytest.mark.full
def test_a_probe_that_never_began_ends_at_once():
    Probe(print).close()
