import jax
import jax.numpy as jnp
import pytest

from luthier.layers import Circular, GPipe, Pipelined, pipeline
from tests.layers.pipeline import pipelined_toy as toy

SLOW = pytest.mark.slow


@pytest.mark.full
@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule"),
    [
        (4, 8, GPipe()),
        (2, 4, Circular(2)),
        pytest.param(2, 2, GPipe(), marks=SLOW),
        pytest.param(4, 4, GPipe(), marks=SLOW),
        pytest.param(2, 8, Circular(4), marks=SLOW),
        pytest.param(4, 4, Circular(2), marks=SLOW),
        pytest.param(8, 8, Circular(1), marks=SLOW),
        pytest.param(4, 8, Circular(2), marks=SLOW),
    ],
)
def test_nothing_comes_of_bubbles_full_of_nan(
    monkeypatch, distance, stages, microbatches, schedule
):
    seen = []

    def nan(microbatch):
        seen.append(microbatch)
        return jax.tree.map(lambda x: jax.lax.stop_gradient(x) * jnp.nan, microbatch)

    monkeypatch.setattr(pipeline, "filling", nan)
    expected, _ = toy.plain()
    found, _ = toy.run(Pipelined(microbatches, schedule), stages=stages)
    assert seen
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-6


def test_what_idle_stages_compute_on_has_no_gradient():
    gradient = jax.grad(lambda x: pipeline.filling({"x": x})["x"].sum())(jnp.ones(3))
    assert gradient.tolist() == [0, 0, 0]
