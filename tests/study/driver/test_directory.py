import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier.errors import UnknownReference
from luthier.study.driver.directory import StudyDirectory, find_study, trial_graph


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
    with pytest.raises(UnknownReference) as caught:
        trial_graph("toy")
    assert str(caught.value) == "'toy' names no trial of a study; write study:NAME/17"
