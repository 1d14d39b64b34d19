import pytest

from luthier.planner import targets
from luthier.planner.process import Estimates, silent, timed


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_phases_are_reported_and_timed():
    messages, timings = [], {}
    with timed(timings, "compile", messages.append, 12.0):
        pass
    with timed(timings, "compile", messages.append):
        pass
    assert messages == [
        {"phase": "compile", "seconds_left": 12.0},
        {"phase": "compile", "seconds_left": None},
    ]
    assert list(timings) == ["compile"]
    assert timings["compile"] >= 0
    assert silent({"phase": "x"}) is None


def test_times_are_learned_for_each_kind_of_compiler():
    program = "%0 = add\n" * 100
    first = Estimates(targets.read("v5e-16")).seconds(program)
    assert first == pytest.approx(3.0)
    Estimates(targets.read("v5e-16")).keep(program, 10.0)
    assert Estimates(targets.read("v4-8")).seconds(program * 2) == pytest.approx(20.0)
    Estimates(targets.read("v4-8")).keep(program, 20.0)
    assert Estimates(targets.read("v4-8")).seconds(program) == pytest.approx(15.0)
    assert Estimates(targets.read("h100:8")).seconds(program) == pytest.approx(0.6)
