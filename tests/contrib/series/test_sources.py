import importlib.util

import numpy as np
import pytest

from luthier.contrib.series import CsvSeries, PackagedSeries, Seasons
from luthier.errors import DataError


def test_columns_of_a_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("day,a,b\n1,2.5,3\n2,,4\n")
    values = CsvSeries(str(path), ["b", "a"]).values
    np.testing.assert_array_equal(values, [[3, 2.5], [4, np.nan]])
    with pytest.raises(DataError, match="no column 'c'; its columns: day, a, b"):
        CsvSeries(str(path), ["c"]).values  # noqa: B018
    path.write_text("a\n1\nx\n")
    with pytest.raises(DataError, match=r"x\.csv:3: could not convert"):
        CsvSeries(str(path), ["a"]).values  # noqa: B018
    path.write_text("a\n")
    with pytest.raises(DataError, match="no rows"):
        CsvSeries(str(path), ["a"]).values  # noqa: B018


@pytest.mark.parametrize(
    ("name", "package", "points", "missing"),
    [
        ("co2", "statsmodels", 2284, 59),
        ("sunspots", "statsmodels", 309, 0),
        ("elnino", "statsmodels", 732, 0),
        ("sf-temps", "vega_datasets", 8759, 0),
    ],
)
def test_packaged(name, package, points, missing):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the data is in a package: pip install --no-deps {package}")
    values = PackagedSeries(name).values
    assert values.shape == (points, 1)
    assert np.isnan(values).sum() == missing


def test_an_unknown_name():
    with pytest.raises(DataError, match="there are co2, sunspots"):
        PackagedSeries("c02").values  # noqa: B018


def test_seasons_are_the_formula():
    values = Seasons(3000).values[:, 0]
    assert values.shape == (3000,)
    np.testing.assert_array_equal(values, Seasons(3000).values[:, 0])
    assert not np.array_equal(values, Seasons(3000, seed=1).values[:, 0])
    time = np.arange(3000)
    clean = np.sin(2 * np.pi * time / 24) + 0.5 * np.sin(2 * np.pi * time / 168 + 1)
    noise = (values - clean - 0.3 * np.sin(2 * np.pi * time / 2000)) / 0.2
    assert noise.std() == pytest.approx(1.0, rel=0.1)  # 0.6**2 / (1 - 0.8**2) = 1
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(0.8, abs=0.05)
