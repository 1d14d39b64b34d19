import dataclasses

import simulated_engine as toys

from luthier import study as studies
from luthier.study import Editing, SharedPrograms, SliceInfo
from luthier.study.driver import Admission

SLICE = SliceInfo(0, "0", 1)
PEAK = "optimizer.learning_rate.peak"


def test_trials_that_differ_in_hoisted_leaves_have_one_key(tiny):
    packing, base = SharedPrograms(num_lanes=4, paths=(PEAK, "model.num_layers")), tiny()
    found = [packing(base, tiny(f"{PEAK}={peak}", "seed=3"), SLICE) for peak in (0.1, 0.2)]
    assert found[0] == found[1]
    assert found[0] == packing(base, base, SLICE)
    assert (set(found[0].hoist), found[0].lanes, found[0].num_lanes) == ({PEAK, "seed"}, "auto", 4)
    deeper = packing(base, tiny("model.num_layers=2"), SLICE)
    assert deeper.key != found[0].key
    assert deeper.hoist == found[0].hoist


def test_without_paths_a_trial_hoists_where_it_differs_from_the_base(tiny):
    packing, base = SharedPrograms("single"), tiny()
    found = packing(base, tiny(f"{PEAK}=0.5", "name=other"), SLICE)
    assert (set(found.hoist), found.lanes, found.num_lanes) == ({PEAK, "seed"}, "single", 1)


def test_the_baseline_shares_the_program_of_the_trials_that_set_numbers(tiny):
    space = studies.Space(
        {PEAK: studies.Log(1e-4, 1e-2), "task.z_loss": studies.Uniform(0.0, 1e-3)}
    )
    study = studies.build(
        toys.make_study(base=tiny("task.z_loss=1e-4"), space=space)  # packing by default
    )
    admission = Admission(study, Editing(packages=toys.PACKAGES), {})
    admission.open([SLICE])
    chosen = {PEAK: 3e-3, "task.z_loss": 5e-4}
    (first,) = admission.admit(0, {}, 0).packed.values()
    (second,) = admission.admit(1, chosen, 0).packed.values()
    assert {PEAK, "task.z_loss", "seed"} <= set(first.hoist)
    assert first == second


class Gate:
    """Refuses deep models; counts how often it is asked."""

    def __init__(self, by_program):
        self.by_program, self.asked = by_program, []

    def __call__(self, graph, slice):
        num_layers = graph.model.num_layers
        self.asked.append(num_layers)
        return "too deep" if num_layers > 2 else ""


def test_a_gate_that_judges_by_the_program_sees_one_trial_of_each(tiny):
    space = studies.Space(
        {PEAK: studies.Log(1e-4, 1e-2), "model.num_layers": studies.Ordinal((1, 2, 3))}
    )
    for by_program, asked in ((True, [1, 2, 3, 3]), (False, [1, 1, 2, 2, 3, 3])):
        study = studies.build(toys.make_study(base=tiny(), space=space))
        gate = Gate(by_program)
        admission = Admission(dataclasses.replace(study, gate=gate), Editing(), {})
        admission.open([SLICE])
        found = [
            admission.admit(2 * layers + half, {PEAK: 0.001 * (1 + half), "model.num_layers": i}, 0)
            for i, layers in enumerate((1, 2, 3))
            for half in (0, 1)
        ]
        assert gate.asked == asked
        assert [one.reason for one in found] == [""] * 4 + ["too deep"] * 2
        keys = [packed.key for one in found for packed in one.packed.values()]
        assert keys[0] == keys[1] != keys[2] == keys[3]
