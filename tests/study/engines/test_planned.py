import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier import study as studies
from luthier.errors import BadInput
from luthier.planner import targets
from luthier.planner.targets import read
from luthier.study import TrialWork, Work
from luthier.study.engines import planned

SMALL = (
    "model.num_layers=1",
    "model.dim=64",
    "data.length=32",
    "records.wandb=None",
    "training.global_batch_size=8",
)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Plan in this process, which has eight devices."""

    def plan(graph, slice, *, level, packages):
        return planner.plan_here(graph, read(slice), level=level, packages=packages)

    monkeypatch.setattr(planned, "plan_apart", plan)
    monkeypatch.setattr(planner, "plan_apart", plan)


def _study(tmp_path, **settings):
    choices = {"parallelism.mesh.tensor": studies.Choice((1, 2, 4))}
    return fdl.Config(
        studies.Study,
        name="meshes",
        base=graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL),
        space=fdl.Config(studies.Space, choices),
        objectives=[fdl.Config(studies.StepTime), fdl.Config(studies.PeakBytes)],
        sampler=fdl.Config(studies.Grid),
        engine=fdl.Config(studies.Planned, slice="v5e-8", level="shapes"),
        storage=None,
        directory=str(tmp_path),
        **settings,
    )


@pytest.mark.full
def test_a_study_is_planned_for_a_slice_that_is_absent(tmp_path):
    outcome = studies.run(_study(tmp_path))
    trials = outcome.ledger.trials
    states = {t.state for t in trials}
    assert states == {"complete", "infeasible"}, trials
    complete = [t for t in trials if t.state == "complete"]
    assert all(seconds > 0 and size > 2**10 for seconds, size in (t.values for t in complete))
    (refused,) = [t for t in trials if t.state == "infeasible"]
    assert "'kv_heads' (2) is not divisible by mesh axis tensor=4" in refused.reason


@pytest.mark.full
def test_what_does_not_fit_is_infeasible(tmp_path):
    engine, directory = studies.Planned("v5e-8", "shapes"), tmp_path / "0"
    directory.mkdir()
    large = ["model.num_layers=96", "model.dim=8192", "model.block.mlp.hidden_dim=32768"]
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), large)
    (directory / "config.json").write_text(graphs.to_json(graph))
    (info,) = engine.open(str(tmp_path))
    assert (info.name, info.num_devices, info.device_kind) == ("v5e-8 (planned)", 8, "TPU v5 lite")
    engine.start(0, Work([TrialWork(0, 1, str(directory))]))
    (ended,) = engine.events(60)
    engine.close()
    assert ended.outcome == "infeasible"
    assert "MiB on each device, which has 16,128.0 MiB" in ended.reason
    gate = studies.PlanGate("v5e-8")
    assert gate(graph, info) == f"v5e-8: {ended.reason}"
    assert gate(graphs.resolve("configs.lm.quickstart"), info) == ""


def test_unavailable_targets_are_reported_at_once(monkeypatch):
    monkeypatch.setattr(targets, "_is_installed", lambda module: False)
    with pytest.raises(BadInput, match=r"engine\.slice: the TPU compiler is not installed"):
        studies.Planned("v5e-8").open("")
    with pytest.raises(BadInput, match=r"engine\.level: there is no level .shape.; write"):
        studies.Planned("v5e-8", "shape").open("")
