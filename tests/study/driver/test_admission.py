import dataclasses

import fiddle as fdl
import simulated_engine as toys

from luthier import graph as graphs
from luthier.study import AnotherSeed, Editing, Log, Packed, Pow2, SliceInfo, Space, build
from luthier.study.driver import Admission, kind_of

SMALL, LARGE = SliceInfo(0, "small", 1, memory_bytes=100), SliceInfo(1, "large", 2)


def _admission(**settings):
    study = dataclasses.replace(build(toys.make_study()), **settings)
    made = Admission(study, Editing(packages=toys.PACKAGES), {})
    made.open([SMALL, LARGE])
    return made


def test_a_trial_gets_its_graph_and_may_run_anywhere():
    admitted = _admission().admit(3, {"rate": 0.5, "width": 5}, 0)
    assert (admitted.graph.rate, admitted.graph.width) == (0.5, 32)
    assert set(admitted.packed) == {kind_of(SMALL), kind_of(LARGE)}
    assert (admitted.reason, admitted.copy_of) == ("", None)


def test_a_graph_that_is_no_good_cannot_run():
    base = fdl.Config(toys.Toy, heads=16)
    reason = _admission(base=base).admit(3, {"rate": 0.5, "width": 3}, 0).reason
    assert reason.startswith("width % heads == 0 does not hold") or "heads" in reason


def test_a_constraint_keeps_a_trial_from_running():
    space = Space(build(toys.make_study()).space.dimensions, constraints=["width < 20"])
    admission = _admission(space=space)
    assert admission.admit(3, {"width": 5}, 0).reason == "breaks the constraint width < 20"
    assert admission.admit(4, {"width": 4}, 0).reason == ""


def test_a_gate_decides_for_each_kind_of_slice():
    def gate(graph, slice):
        return "too large" if slice.memory_bytes and graph.width > slice.memory_bytes else ""

    admission = _admission(gate=gate)
    assert set(admission.admit(3, {"width": 7}, 0).packed) == {kind_of(LARGE)}
    refuses = _admission(gate=lambda graph, slice: f"too large for {slice.name}")
    reason = refuses.admit(4, {"width": 7}, 0).reason
    assert reason == "on 1 x cpu: too large for small; on 2 x cpu: too large for large"


def test_the_same_graph_gets_the_result_of_the_first():
    admission = _admission()
    assert admission.admit(3, {"width": 5}, 0).copy_of is None
    assert admission.admit(4, {"width": 5}, 0).copy_of == 3
    assert admission.admit(3, {"width": 5}, 0).copy_of is None  # asked again after a crash
    assert _admission(dedupe=None).admit(4, {"width": 5}, 0).copy_of is None


def test_another_seed_is_taken_where_that_is_the_policy():
    admission = _admission(dedupe=AnotherSeed())
    seeds = [
        admission.admit(n, {"width": 5}, 0).graph.__arguments__.get("seed", 0) for n in range(3)
    ]
    assert seeds == [0, 1, 2]


def test_repeats_of_a_setting_have_seeds_of_their_own():
    graph = _admission(seeds=3).admit(5, {"width": 5}, 2).graph
    assert graph.seed == 2
    assert graphs.origin_of(graph, "seed") == "trial 5: seed=2"


def test_packing_is_asked_about_the_base_and_the_graph():
    def packing(base, graph, slice):
        return Packed(key=str(graph.width), hoist=("rate",), lanes="vmap", num_lanes=4)

    admitted = _admission(packing=packing).admit(3, {"width": 5}, 0)
    assert admitted.packed[kind_of(SMALL)] == Packed("32", ("rate",), "vmap", 4)


def _recorded_admission(space, **wandb):
    from luthier.records import Records, Wandb

    @dataclasses.dataclass
    class Recorded:
        seed: int = 0
        rate: float = 0.1
        width: int = 8
        records: Records | None = None

    node = fdl.Config(Wandb, project="p", **wandb)
    base = fdl.Config(Recorded, records=fdl.Config(Records, wandb=node))
    study = dataclasses.replace(build(toys.make_study()), base=base, space=Space(space))
    return Admission(study, Editing(), {}, "5ba1e7")


def test_the_run_of_a_trial_is_in_the_group_of_the_study():
    found = _recorded_admission({}).make_graph({}, 7, 0).records.wandb
    assert (found.group, found.name, found.project) == ("toy", "toy/7", "p")
    assert (found.job_type, found.tags) == ("trial", ("sweep", "toy"))


def test_the_run_of_a_trial_has_what_was_swept_as_entries_of_its_config():
    admission = _recorded_admission(
        {"rate": Log(1e-4, 1e-1), "width": Pow2(8, 64)}, config={"note": "mine"}, group="all"
    )
    found = admission.make_graph({"rate": 0.02, "width": 5}, 7, 0).records.wandb
    assert found.group == "all"
    assert found.config == {
        "note": "mine",
        "study": "toy",
        "trial": 7,
        "outcome": "running",
        "summary_run": "5ba1e7",
        "swept/rate": 0.02,
        "swept/width": 32,
    }
