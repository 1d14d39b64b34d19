import sys
import types

import pytest

from luthier.errors import BadInput
from luthier.study import Zipped
from luthier.study.space import generate


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("toy_sweeps")

    def sweep_lr():
        for rate in (0.1, 0.2):
            yield {"rate": rate, "width": 8}

    def sweep_bad():
        yield 3

    made.sweep_lr, made.sweep_bad = sweep_lr, sweep_bad
    monkeypatch.setitem(sys.modules, "toy_sweeps", made)


def test_a_generator_becomes_a_table(module):
    expected = Zipped(({"rate": 0.1, "width": 8}, {"rate": 0.2, "width": 8}))
    assert generate("toy_sweeps", ["lr"]) == {"lr": expected}


def test_all_problems_with_generators_are_reported_at_once(module):
    with pytest.raises(BadInput) as caught:
        generate("toy_sweeps", ["seeds", "bad"])
    assert [str(problem) for problem in caught.value.problems] == [
        "toy_sweeps has no generator 'seeds'; there are lr, bad",
        "toy_sweeps:sweep_bad yields 3, no dict from paths to values",
    ]
