import dataclasses

import numpy as np
import pytest

from luthier.contrib.series import ForecastWindows, SeriesSource
from luthier.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class Given(SeriesSource):
    data: np.ndarray

    @property
    def values(self):
        return self.data

    @property
    def num_channels(self):
        return self.data.shape[1]


RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(5.0, [2.0, 7.0], (100, 2))


def node(values=VALUES, **settings):
    settings = {"context_length": 8, "horizon": 3, "num_threads": 0, **settings}
    return ForecastWindows(Given(values), **settings)


def test_windows():
    data = node(start=0.0, stop=0.7, statistics=0.5)
    assert data.num_rows == 70 - 8 - 3 + 1
    scaled = (VALUES - VALUES[:50].mean(0)) / VALUES[:50].std(0)
    whole = data.rows.gather(np.arange(data.num_rows))
    for row in (0, 13, data.num_rows - 1):
        np.testing.assert_allclose(whole["inputs"][row], scaled[row : row + 8], rtol=1e-5)
        np.testing.assert_allclose(whole["targets"][row], scaled[row + 8 : row + 11], rtol=1e-5)
    assert whole["weights"].all()
    assert whole["examples"].tolist() == list(range(1, data.num_rows + 1))


def test_batches_are_what_the_spec_says():
    data = node()
    expected = data.batch_spec(16)
    assert expected["targets"] == ((16, 3, 2), np.dtype(np.float32))
    batches = [next(data.iterator(global_batch_size=16, seed=0))]
    batches += list(data.batches(global_batch_size=16))
    for batch in batches:
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected
    last = batches[-1]
    padding = last["examples"] == 0
    assert padding.any()
    assert not any(last[name][padding].any() for name in last)
    assert sum(b["weights"].sum() for b in batches[1:]) == data.num_rows * 6


def test_parts_of_the_data_do_not_overlap_in_what_is_forecast():
    parts = [node(start=a, stop=b) for a, b in ((0.0, 0.7), (0.7, 0.8), (0.8, 1.0))]
    points = [
        {int(start) + step for start in part.rows.starts for step in range(3)} for part in parts
    ]
    assert points[0] | points[1] | points[2] == set(range(8, 100))
    assert not points[0] & points[1]
    assert not points[1] & points[2]
    changed = VALUES.copy()
    changed[70:] += 100
    np.testing.assert_array_equal(parts[0].rows.values[:70], node(changed).rows.values[:70])


def test_missing_values():
    values = VALUES.copy()
    values[0, 0] = values[20:22, 0] = np.nan
    data = node(values)
    whole = data.rows.gather(np.arange(data.num_rows))
    row = 20 - 8  # forecasts points 20, 21, 22
    assert whole["weights"][row].tolist() == [[0, 1], [0, 1], [1, 1]]
    assert whole["targets"][row, :2, 0].tolist() == [0, 0]
    later = whole["inputs"][22 - 8 - 3 + 3]
    assert np.isfinite(later).all()
    filled = data.rows.values
    assert filled[20, 0] == filled[21, 0] == filled[19, 0]
    assert filled[0, 0] == 0
    assert data.describe()["missing"] == 3


def test_stride_and_describe():
    data = node(stride=5)
    assert np.all(np.diff(data.rows.starts) == 5)
    described = node(np.cumsum(np.ones((100, 1)), axis=0)).describe()
    step = 1 / described["deviation"][0]
    assert described["naive_mse"] == pytest.approx(step**2 * (1 + 4 + 9) / 3, rel=1e-4)


def test_a_constant_series_is_not_divided_by_zero():
    assert np.isfinite(node(np.ones((50, 1))).rows.values).all()


def test_errors():
    with pytest.raises(DataError, match="too few for one window of 80 and 3"):
        node(context_length=80).num_rows  # noqa: B018
    with pytest.raises(DataError, match="without values at its beginning"):
        node(np.full((100, 1), np.nan)).num_rows  # noqa: B018
    digests = {node().rows.digest, node(horizon=2).rows.digest, node(stride=2).rows.digest}
    assert len(digests) == 3
