from __future__ import annotations

import pytest

from luthier import project
from luthier.errors import BadInput


def _write(folder, text):
    folder.joinpath("pyproject.toml").write_text(text)


def test_the_nearest_pyproject_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    _write(tmp_path, '[tool.luthier]\npackages = ["far"]\n')
    assert project.find(inner) == project.Project(tmp_path, ("far",))
    _write(tmp_path / "a", '[tool.luthier]\npackages = ["near", "near_too.part"]\n')
    assert project.find(inner) == project.Project(tmp_path / "a", ("near", "near_too.part"))


def test_a_pyproject_is_a_project_by_its_table_or_by_experiments_beside_it(tmp_path):
    inner = tmp_path / "scratch" / "deep"
    inner.mkdir(parents=True)
    _write(tmp_path, "[tool.luthier]\n")
    assert project.root(inner) == tmp_path
    # The nearest file decides, also where it is not one of luthier.
    _write(tmp_path / "scratch", "[tool.ruff]\nline-length = 100\n")
    assert project.root(inner) == inner
    assert project.find(inner) == project.Project(inner)
    (tmp_path / "scratch" / "sweeps").mkdir()
    assert project.root(inner) == tmp_path / "scratch"
    (tmp_path / "scratch" / "sweeps").rmdir()
    _write(tmp_path / "scratch", "tool.luthier.packages = ['mine']\n")
    assert project.find(inner).packages == ("mine",)


def test_a_project_above_the_working_directory_is_described(tmp_path, monkeypatch):
    inner = tmp_path / "notebooks"
    inner.mkdir()
    _write(tmp_path, "[tool.luthier]\n")
    monkeypatch.chdir(inner)
    expected = f"{tmp_path}, from its pyproject.toml"
    assert project.described(project.records_folder("runs") / "a" / "b") == expected
    assert project.described("runs/a/b") == ""  # ./runs, which is not the project's
    monkeypatch.chdir(tmp_path)
    assert project.described(project.records_folder("runs") / "a" / "b") == ""


def test_both_lists_are_read(tmp_path):
    _write(tmp_path, '[tool.luthier]\npackages = ["mine"]\nfiddlers = ["mine.fiddlers"]\n')
    assert project.find(tmp_path) == project.Project(tmp_path, ("mine",), ("mine.fiddlers",))


def test_settings_may_be_absent(tmp_path):
    _write(tmp_path, "[project]\nname = 'x'\n")
    assert project.find(tmp_path) == project.Project(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.luthier", "cannot read"),
        ('[tool.luthier]\npackages = "mine"\n', "not a list"),
        ("[tool.luthier]\npackages = [3]\n", "3"),
        ('[tool.luthier]\npackages = ["my-package"]\n', "my-package"),
        ('[tool.luthier]\nfiddlers = ["a b"]\n', 'write fiddlers = ["my_package.fiddlers"]'),
        ('[tool.luthier]\npakages = ["mine"]\n', "did you mean packages"),
        ('[tool]\nluthier = "x"\n', "not a table"),
    ],
)
def test_bad_settings(tmp_path, text, message):
    _write(tmp_path, text)
    with pytest.raises(BadInput, match=r"pyproject\.toml") as caught:
        project.find(tmp_path)
    assert message in str(caught.value)


def test_all_problems_at_once(tmp_path):
    _write(tmp_path, '[tool.luthier]\npakages = 1\npackages = ["a b", 2]\n')
    with pytest.raises(BadInput) as caught:
        project.find(tmp_path)
    assert len(caught.value.problems) == 3
