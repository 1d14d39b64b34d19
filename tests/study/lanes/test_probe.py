import pytest

from luthier.study.engines.packed_trials import PackingChoice, StepCost, best, powers

KINDS = {"vmap": (2, 4, 8), "map": (2, 4, 8)}


def _measured(table, asked):
    def measure(lanes, num_lanes):
        asked.append((lanes, num_lanes))
        seconds = table.get((lanes, num_lanes))
        return None if seconds is None else StepCost(seconds, 0.0)

    return measure


def test_the_fastest_lanes_are_chosen():
    asked = []
    table = {("vmap", 2): 0.8, ("vmap", 4): 0.5, ("vmap", 8): 0.6, ("map", 2): 0.9, ("map", 4): 0.4}
    choice = best(StepCost(1.0, 0.0), KINDS, 8, 10_000, _measured(table, asked))
    assert choice == PackingChoice("map", 4)
    assert asked == [("vmap", 2), ("vmap", 4), ("vmap", 8), ("map", 2), ("map", 4), ("map", 8)]


def test_a_kind_is_left_where_it_gets_slower_or_does_not_fit():
    asked = []
    table = {("vmap", 2): 1.1}
    assert best(StepCost(1.0, 0.0), KINDS, 8, 10_000, _measured(table, asked)) == PackingChoice(
        "single"
    )
    assert asked == [("vmap", 2), ("map", 2)]


@pytest.mark.parametrize(("seconds", "chosen"), [(0.96, "single"), (0.94, "vmap")])
def test_a_gain_of_less_than_five_percent_is_none(seconds, chosen):
    choice = best(
        StepCost(1.0, 0.0), {"vmap": (2,)}, 2, 10_000, _measured({("vmap", 2): seconds}, [])
    )
    assert choice.lanes == chosen


def test_nothing_is_measured_that_costs_more_than_a_small_part_of_the_trials():
    asked = []
    # 16 trials of 50 steps of 4 ms are over before a compile of 6 s pays.
    choice = best(StepCost(0.004, 3.0), KINDS, 16, 50, _measured({}, asked))
    assert (choice, asked) == (PackingChoice("single"), [])
    best(StepCost(0.004, 3.0), KINDS, 16, 5_000, _measured({}, asked))
    assert asked == [("vmap", 2), ("map", 2)]


def test_one_trial_has_nobody_to_share_with():
    asked = []
    best(StepCost(1.0, 0.0), KINDS, 1, 10_000, _measured({}, asked))
    assert asked == []


def test_lanes_of_one_device_each_are_weighed_in_multiples_of_the_devices():
    asked = []
    table = {("shard", 2): 0.7, ("shard", 4): 0.5, ("vmap", 2): 0.9, ("vmap", 4): 0.95}
    counts = {"vmap": (2, 4), "shard": (2, 4, 8)}
    choice = best(StepCost(1.0, 0.0), counts, 6, 10_000, _measured(table, asked))
    assert choice == PackingChoice("shard", 4, num_devices=1)
    assert asked == [("vmap", 2), ("vmap", 4), ("shard", 2), ("shard", 4)]


def test_powers_of_two():
    assert [powers(most) for most in (0, 1, 2, 7, 8)] == [[], [], [2], [2, 4], [2, 4, 8]]
