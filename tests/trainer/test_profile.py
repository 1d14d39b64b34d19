import jax.numpy as jnp
import pytest

from luthier.errors import BadInput
from luthier.trainer import ProfiledSteps, Profiler


@pytest.mark.parametrize("text", ["steps=10:15", "10:15"])
def test_steps_are_read(text):
    assert ProfiledSteps.parse(text) == ProfiledSteps(10, 15)


@pytest.mark.parametrize("text", ["", "10", "15:10", "3:3", "steps=a:b", "-1:3"])
def test_anything_else_is_one_clear_line(text):
    with pytest.raises(BadInput, match="write steps=10:15"):
        ProfiledSteps.parse(text)


def test_only_the_steps_asked_for_are_traced(tmp_path):
    profiler = Profiler(ProfiledSteps(2, 4), tmp_path)
    written = []
    for step in range(6):
        profiler.before(step)
        if profiler.after(step, jnp.ones(3) * step):
            written.append(step)
    profiler.close()
    assert written == [3]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_nothing_is_written_without_steps(tmp_path):
    profiler = Profiler(None, tmp_path)
    profiler.before(0)
    assert not profiler.after(0, None)
    profiler.close()
    assert not list(tmp_path.iterdir())
