import jax
import pytest

import luthier
from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError
from luthier.planner import plan_apart, process, targets

SMALL = [
    "fiddler:debug",
    "parallelism.mesh.data=1",
    "parallelism.mesh.fsdp=-1",
    "training.global_batch_size=4",
]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def graph():
    found = graphs.apply(
        graphs.resolve("configs.lm.quickstart"), SMALL, shelves=("luthier.recipes",)
    )
    for evaluation in found.evaluations.values():
        evaluation.global_batch_size = 4
    return found


@pytest.mark.full
def test_a_step_is_compiled_in_a_process_of_its_own(graph):
    before = jax.devices()
    phases = []
    report = luthier.plan(
        graph, slice="cpu:4", on_progress=lambda message: phases.append(message["phase"])
    )
    assert jax.devices() == before
    assert phases[-1] == "compile"
    assert (report.subject.level, report.fits, report.subject.mesh) == (
        "compile",
        True,
        {"fsdp": 4},
    )
    assert report.memory.bytes_per_device["temporaries"] > 0
    assert {"all-gather", "all-reduce"} <= {c["kind"] for c in report.collectives}
    assert {axis for c in report.collectives for axis in c["axes"]} == {"fsdp"}
    assert report.flops["hardware"] >= report.flops["full"] * 0.99
    assert report.memory.live
    again = []
    luthier.plan(graph, slice="cpu:4", on_progress=lambda message: again.append(message["phase"]))
    assert "compile" not in again  # what was compiled is kept


@pytest.mark.full
def test_an_infeasible_plan_is_refused_as_in_this_process(graph):
    with pytest.raises(BadInput, match=r"4 rows cannot be divided over 8 devices"):
        plan_apart(graph, "cpu:8", level="shapes")


def test_a_process_that_dies_is_reported(graph, monkeypatch):
    monkeypatch.setattr(process, "_MODULE", "luthier.no_such_module")
    with pytest.raises(
        LuthierError, match=r"the planning process ended with exit code 1: .*No module"
    ):
        plan_apart(graph, "cpu:2", level="shapes")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["v5e-4", "v4-8", "2xv5e-4", "h100:4"])
def test_absent_slices_are_compiled_for(graph, text):
    missing = targets.missing_compiler(targets.read(text))
    if missing:
        pytest.skip(missing)
    wide = graphs.apply(graph, ["training.global_batch_size=8"])
    for evaluation in wide.evaluations.values():
        evaluation.global_batch_size = 8
    if text.startswith("2x"):
        wide = graphs.apply(wide, ["parallelism.mesh.across_slices.data=2"])
    report = plan_apart(wide, text)
    assert (report.subject.level, report.fits, report.memory.refusal) == ("compile", True, "")
    assert report.collectives
    across = [c for c in report.collectives if c["is_across_slices"]]
    assert bool(across) is text.startswith("2x")
    terms = {"compute", "memory", "links"}
    assert all(report.step["seconds_by_term"][term] > 0 for term in terms)
