from luthier.sweep.lanes.packing import SharedPrograms
from luthier.sweep.protocol import SliceInfo

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
