import shutil
import subprocess
import sys

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier.errors import UnknownReference
from luthier.study import trial_graph
from luthier.study.driver import StudyDirectory, copy_source, edited_packages, find_study


@pytest.fixture
def study(tmp_path):
    directory = StudyDirectory(tmp_path / "toy")
    directory.create()
    directory.write_study(toys.make_study(), ("shelf",), toys.PACKAGES)
    return directory


def test_a_study_is_read_as_it_was_written(study):
    assert study.exists
    assert graphs.equal(study.read_study(), toys.make_study())
    assert study.read_modules() == (("shelf",), toys.PACKAGES)


def test_a_trial_is_whole_in_itself_and_keeps_its_history(study):
    graph = graphs.apply(fdl.Config(toys.Toy), ["rate=0.5"], "trial 7:")
    study.write_trial(7, graph, ["rate=0.5"])
    found = trial_graph(str(study.path) + "/7")
    assert graphs.equal(found, graph)
    assert graphs.origin_of(found, "rate") == "trial 7: rate=0.5"
    assert study.read_trial(8) is None
    (study.trial_path(7) / "config.history.json").write_text("{")
    assert graphs.equal(study.read_trial(7), graph)


def test_studies_are_found_by_name_and_by_folder(study, tmp_path):
    assert find_study("toy", tmp_path).path == study.path
    assert find_study(str(study.path)).path == study.path


def test_a_missing_study_is_reported_with_the_nearest_name(study, tmp_path):
    with pytest.raises(UnknownReference) as caught:
        find_study("tyo", tmp_path)
    assert str(caught.value) == "there is no study 'tyo'; did you mean toy?"
    with pytest.raises(UnknownReference) as caught:
        find_study("zzz", tmp_path)
    assert str(caught.value) == "there is no study 'zzz'; there are toy"
    with pytest.raises(UnknownReference) as caught:
        trial_graph(f"{study.path}/3")
    assert str(caught.value) == f"{study.path} has no trial 3; it has none yet"
    for name in ("toy", "toy/²"):
        with pytest.raises(UnknownReference) as caught:
            trial_graph(name)
        remedy = "write study:NAME/17"
        assert str(caught.value) == f"{name!r} does not name a trial of a study; {remedy}"


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
    target = copy_source(tmp_path / "study", ["my_toys.deep"])
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
    copy_source(tmp_path / "study", ["my_toys"])
    assert edited_packages(tmp_path / "study") == []
    (package / "deep.py").write_text("CHANGED = 1\n")
    assert edited_packages(tmp_path / "study") == ["my_toys"]


def test_an_edit_while_the_copy_is_taken_is_reported(package, tmp_path, monkeypatch):
    copy_tree = shutil.copytree

    def copy_and_edit(place, *arguments, **options):
        copy_tree(place, *arguments, **options)
        if place == package:
            (package / "deep.py").write_text("CHANGED = 1\n")

    monkeypatch.setattr(shutil, "copytree", copy_and_edit)
    copy_source(tmp_path / "study", ["my_toys"])
    assert edited_packages(tmp_path / "study") == ["my_toys"]


def test_a_second_look_copies_nothing(package, tmp_path):
    target = copy_source(tmp_path / "study", ["my_toys"])
    (package / "__init__.py").write_text("RATE = 2\n")
    copy_source(tmp_path / "study", ["my_toys"])
    assert (target / "my_toys" / "__init__.py").read_text() == "RATE = 1\n"


def test_a_copy_that_was_torn_is_made_again(package, tmp_path):
    (tmp_path / "study" / "source" / "luthier").mkdir(parents=True)
    target = copy_source(tmp_path / "study", [])
    assert (target / "luthier" / "__init__.py").is_file()
