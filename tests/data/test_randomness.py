import numpy as np
import pytest

from luthier.data import Draws, Visit


def draws(examples, epochs=0, seed=0, salt=0):
    examples = np.asarray(examples)
    return Draws(examples, Visit(np.zeros(len(examples), np.int64) + epochs, seed), salt)


def test_numbers_depend_on_the_example_and_not_on_the_batch():
    whole = draws(np.arange(100)).uniform(3)
    np.testing.assert_array_equal(draws([7, 99, 7]).uniform(3), whole[[7, 99, 7]])


def test_everything_named_changes_them():
    settings = [{}, {"epochs": 1}, {"seed": 1}, {"salt": 1}, {"seed": -1}]
    found = [draws(np.arange(50), **setting).uniform() for setting in settings]
    again = draws(np.arange(50))
    again.uniform()
    found.append(again.uniform())
    for first in range(len(found)):
        for second in range(first):
            assert np.abs(found[first] - found[second]).min() > 0
            assert abs(np.corrcoef(found[first], found[second])[0, 1]) < 0.5


def test_distributions():
    uniform = draws(np.arange(2000)).uniform(10).ravel()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    np.testing.assert_allclose(np.histogram(uniform, 10, (0, 1))[0], 2000, rtol=0.1)
    normal = draws(np.arange(2000)).normal(10, 2)
    assert normal.shape == (2000, 10, 2)
    assert normal.mean() == pytest.approx(0, abs=0.02)
    assert normal.std() == pytest.approx(1, abs=0.02)
    assert (normal**4).mean() == pytest.approx(3, abs=0.15)
    flat = normal.reshape(2000, 20)
    correlation = np.corrcoef(flat.T) - np.eye(20)
    assert np.abs(correlation).max() < 0.1
