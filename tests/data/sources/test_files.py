import os

import pytest

from luthier.data.sources.files import matching_files, read_file
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
