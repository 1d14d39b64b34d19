import subprocess
import sys

import pytest

from luthier.study.driver import directory


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a user, beside luthier."""
    folder = tmp_path / "here" / "my_toys"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("RATE = 1\n")
    (folder / "deep.py").write_text("")
    (tmp_path / "study").mkdir()
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_workers_run_the_source_that_was_copied(package, tmp_path):
    target = directory.take(tmp_path / "study", ["my_toys.deep"])
    (package / "__init__.py").write_text("RATE = 2\n")
    code = "import my_toys, luthier; print(my_toys.RATE, luthier.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["1", str(target / "luthier" / "__init__.py")], done.stderr


def test_an_edit_is_reported_by_package(package, tmp_path):
    directory.take(tmp_path / "study", ["my_toys"])
    assert directory.edited(tmp_path / "study") == []
    (package / "deep.py").write_text("CHANGED = 1\n")
    assert directory.edited(tmp_path / "study") == ["my_toys"]


def test_a_second_look_copies_nothing(package, tmp_path):
    target = directory.take(tmp_path / "study", ["my_toys"])
    (package / "__init__.py").write_text("RATE = 2\n")
    directory.take(tmp_path / "study", ["my_toys"])
    assert (target / "my_toys" / "__init__.py").read_text() == "RATE = 1\n"


def test_a_copy_that_was_torn_is_made_again(package, tmp_path):
    (tmp_path / "study" / "source" / "luthier").mkdir(parents=True)
    target = directory.take(tmp_path / "study", [])
    assert (target / "luthier" / "__init__.py").is_file()
