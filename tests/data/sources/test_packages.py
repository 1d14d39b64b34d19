import sys

import pytest

from luthier.data.sources.files import package_file
from luthier.errors import DataError


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "carrier_of_data"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "data" / "x.csv").write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "carrier_of_data"


def test_a_file_is_found_without_importing(package):
    assert package_file(package, "data", "x.csv").read_text() == "1"
    assert package not in sys.modules


def test_what_is_missing(package):
    with pytest.raises(DataError, match=r"has no data/y.csv; pip install --no-deps carrier-of"):
        package_file(package, "data", "y.csv", distribution="carrier-of-data")
    with pytest.raises(DataError, match="no_such_package, which is not installed"):
        package_file("no_such_package", "x")
