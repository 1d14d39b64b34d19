"""Every study of the repository describes what can run; nothing is trained here."""

import itertools
import pathlib

import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.study import Editing, SliceInfo, check_study, locate
from luthier.study.driver import Admission, make_suggester

STUDIES = (
    "architecture",
    "batch_and_learning_rate",
    "lm_learning_rate",
    "mesh_and_remat",
    "mesh_and_size",
    "rungs",
    "width_transfer",
)


@pytest.fixture(params=STUDIES)
def graph(request):
    return graphs.resolve(f"sweeps.{request.param}:study")


def test_all_studies_are_tested():
    found = {path.stem for path in (pathlib.Path(__file__).parents[2] / "sweeps").glob("*.py")}
    assert found == {"__init__", *STUDIES}


def test_a_study_is_whole_and_is_recorded(graph):
    study = check_study(graph, Editing())
    assert graphs.equal(graphs.from_json(graphs.to_json(graph)), graph)
    assert study.name in STUDIES
    assert study.engine is not None


def test_its_first_settings_make_graphs_that_can_run(graph):
    study = check_study(graph, Editing())
    suggester = make_suggester(study)
    asked = list(itertools.islice(map(suggester.ask, range(1, 9)), 8))
    assert len({str(a.assignment) for a in asked}) > 4
    admission = Admission(study, Editing(), {})
    for number, found in enumerate(asked, 1):
        made = admission.make_graph(found.assignment, number, 0)
        try:
            graphs.validate(made)
        except BadInput as error:
            pytest.fail(f"{found.assignment}: {error}")


def test_the_baseline_is_in_the_space_that_is_searched():
    graph = graphs.resolve("sweeps.lm_learning_rate:study")
    study = check_study(graph, Editing())
    found = locate(study.base, study.space, Editing())
    assert found == {"optimizer.learning_rate.peak": 4e-3, "optimizer.weight_decay": 0.1}


@pytest.mark.full
def test_a_mesh_that_cannot_be_is_refused_by_the_gate():
    study = check_study(graphs.resolve("sweeps.mesh_and_remat:study"), Editing())
    study.gate.close()
    admission = Admission(study, Editing(), {})
    admission.open([SliceInfo(0, "cpu:0", 1)])
    reason = admission.admit(1, {"mesh": 1, "remat": 0}, 0).reason
    study.gate.close()
    assert "fsdp" in reason
