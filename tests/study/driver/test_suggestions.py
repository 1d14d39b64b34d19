import dataclasses

import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.study import samplers
from luthier.study.driver.sampling import distribution, make_suggester, seed_of

SPACE = studies.Space({"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 256)})
INNER = studies.Space({"optimizer.decay": studies.Uniform(0.5, 0.9)})
CONDITIONAL = studies.Space(
    {
        "rate": studies.Log(1e-4, 1e-1),
        "note": studies.Choice(("a", studies.Option("b", space=INNER))),
    }
)


def _suggester(sampler, space=SPACE, **settings):
    node = samplers.sampler(sampler) if isinstance(sampler, str) else sampler
    study = studies.build(toys.make_study(space=space, **settings))
    return make_suggester(dataclasses.replace(study, sampler=node))


def _run(suggester, count, with_results=True):
    found = []
    for number in range(1, count + 1):
        asked = suggester.ask(number)
        found.append(asked)
        if with_results:
            suggester.record(number, "complete", (asked.assignment["rate"],), {})
    return [asked.assignment for asked in found]


@pytest.mark.parametrize("sampler", ["random", "quasi-random", "tpe", "nsga-ii"])
@pytest.mark.parametrize("space", [SPACE, CONDITIONAL])
def test_the_same_past_gives_the_same_suggestions(sampler, space):
    first, second = (_run(_suggester(sampler, space), 20) for _ in range(2))
    assert first == second
    assert len({found["rate"] for found in first}) > 15
    assert _run(_suggester(sampler, space, seed=1), 20) != first or sampler == "quasi-random"


@pytest.mark.parametrize("sampler", ["random", "quasi-random"])
def test_a_sampler_that_does_not_look_back_suggests_the_same_whatever_the_results(sampler):
    informed, uninformed = _suggester(sampler), _suggester(sampler)
    assert not informed.looks_back
    assert _run(informed, 12) == _run(uninformed, 12, with_results=False)


@pytest.mark.parametrize("sampler", ["random", "quasi-random", "tpe", "nsga-ii"])
def test_a_suggester_that_is_restored_goes_on_as_if_nothing_had_been(sampler):
    whole, begun = _suggester(sampler), _suggester(sampler)
    expected = _run(whole, 60)[40:]
    restored = _suggester(sampler)
    for number in range(1, 41):
        asked = begun.ask(number)
        restored.restore(number, asked)
        for suggester in (begun, restored):
            suggester.record(number, "complete", (asked.assignment["rate"],), {})
    found = []
    for number in range(41, 61):
        asked = restored.ask(number)
        found.append(asked.assignment)
        restored.record(number, "complete", (asked.assignment["rate"],), {})
    assert found == expected


def test_a_quasi_random_sequence_covers_the_space_evenly():
    found = _run(_suggester("quasi-random"), 32)
    low = sum(f["rate"] < 10**-2.5 for f in found)
    assert low == 16


def test_a_grid_hands_out_every_point_once_and_ends():
    node = fdl.Config(studies.Grid, resolution=3)
    suggester = _suggester(node)
    found = _run(suggester, 18)
    assert len({tuple(point.items()) for point in found}) == 18
    assert suggester.ask(19) is None


def test_tpe_searches_where_the_values_are_low():
    found = _run(_suggester("tpe"), 60)
    late = sum(f["rate"] < 1e-3 for f in found[40:])
    assert late > 12


def test_tpe_learns_from_what_cannot_run():
    suggester = _suggester("tpe")
    widths = []
    for number in range(1, 61):
        asked = suggester.ask(number)
        widths.append(asked.assignment["width"])
        state = "infeasible" if asked.assignment["width"] > 4 else "complete"
        suggester.record(number, state, None if state == "infeasible" else (1.0,), {})
    assert sum(width > 4 for width in widths[40:]) < 10  # by chance it were 13 of 20


def test_conditional_spaces_make_tpe_look_at_groups():
    suggester = _suggester("tpe", CONDITIONAL)
    sampler = suggester._sampler(1)
    assert (sampler._multivariate, sampler._group) == (True, True)
    assert not _suggester("tpe")._sampler(1)._group


def test_settings_that_failed_or_are_no_number_do_not_stop_a_search():
    suggester = _suggester("tpe")
    for number in range(1, 15):
        suggester.ask(number)
        values = (float("nan"),) if number % 2 else None
        suggester.record(number, "complete" if number % 2 else "failed", values, {})
    assert suggester.ask(15) is not None


def test_every_dimension_is_stored_as_a_primitive():
    kinds = optuna.distributions
    assert distribution(studies.Log(1e-4, 1)) == kinds.FloatDistribution(1e-4, 1, log=True)
    assert distribution(studies.Uniform(0, 1)) == kinds.FloatDistribution(0, 1)
    assert distribution(studies.Int(2, 8, 2)) == kinds.IntDistribution(2, 8, step=2)
    assert distribution(studies.Pow2(8, 64)) == kinds.IntDistribution(3, 6)
    assert distribution(studies.Ordinal(("a", "b"))) == kinds.IntDistribution(0, 1)
    assert distribution(studies.Choice((None, "b"))) == kinds.CategoricalDistribution((0, 1))
    assert distribution(studies.Zipped(({"a": 1},))) == kinds.CategoricalDistribution((0,))


def test_seeds_depend_on_the_study_and_the_setting():
    assert len({seed_of(seed, setting) for seed in range(20) for setting in range(20)}) == 400
