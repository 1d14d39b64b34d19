"""Whatever is killed: no trial is lost, none counts twice, and all results are the same."""

import kills
import pytest

from luthier import study as studies
from luthier.study.driver import StudyDirectory, read_journal
from tests.study.driver.replay import replay


def _drill(tmp_path, sampler, slices, trials, count, longest, step_seconds=0.02, scheduler=""):
    undisturbed = kills.Driven(
        tmp_path / "undisturbed", sampler, slices, trials, scheduler=scheduler
    )
    disturbed = kills.Driven(
        tmp_path / "disturbed", sampler, slices, trials, step_seconds, scheduler
    )
    undisturbed.path.parent.mkdir()
    disturbed.path.parent.mkdir()
    undisturbed.begin()
    undisturbed.finish()
    done = kills.disturb(disturbed, count, seed=7, longest=longest)
    counts = disturbed.counts()
    expected = list(range(trials))
    assert counts["asked"] == expected
    assert sorted(counts["ended"]) == expected
    assert sorted(counts["told"]) == expected
    return undisturbed, disturbed, done


def _suggestions(driven):
    directory = StudyDirectory(driven.path)
    return list(replay(studies.build(directory.read_study()), directory))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_sweep_survives_kills(tmp_path):
    undisturbed, disturbed, done = _drill(tmp_path, "random", 2, trials=6, count=2, longest=0.3)
    assert done
    assert disturbed.outcome() == undisturbed.outcome()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("sampler", "slices"), [("random", 2), ("quasi-random", 2), ("grid", 2), ("tpe", 1)]
)
def test_forty_kills_leave_the_undisturbed_outcome(tmp_path, sampler, slices):
    undisturbed, disturbed, done = _drill(tmp_path, sampler, slices, 32, 40, 0.3, step_seconds=0.2)
    assert done == 40
    assert disturbed.outcome() == undisturbed.outcome()
    assert all(found.again == found.recorded for found in _suggestions(disturbed))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_suggestions_of_a_killed_parallel_search_follow_from_its_reported_results(tmp_path):
    _, disturbed, done = _drill(tmp_path, "tpe", 2, 32, 40, 0.3, step_seconds=0.2)
    assert done == 40
    found = _suggestions(disturbed)
    assert len(found) == 31
    assert all(again.again == again.recorded for again in found)


def _decisions(driven):
    """Return which trials reached a rung, with which value, and were promoted, in order."""
    lines = read_journal(driven.path / "journal.jsonl")
    kinds = ("reached", "promoted")
    return [(e["kind"], e["trial"], e["rung"], e["value"]) for e in lines if e["kind"] in kinds]


def _curves(driven):
    """Return graph, outcome and evaluations of all trials.

    A trial that is killed after it was judged, and before it has saved, has no facts to report.
    """
    return [
        (trial, graph, result["outcome"], result["result"]["series"])
        for trial, graph, result in driven.outcome()
    ]


def _check_rungs(tmp_path, scheduler, trials, count, step_seconds):
    # One device group: trials complete in one order, and so every decision must be the same.
    undisturbed, disturbed, done = _drill(
        tmp_path, "random", 1, trials, count, 0.3, step_seconds, scheduler
    )
    assert done == count
    assert _decisions(disturbed) == _decisions(undisturbed)
    assert _curves(disturbed) == _curves(undisturbed)
    steps = [len(result["result"]["series"]) for _, _, result in disturbed.outcome()]
    assert set(steps) <= {1, 3, 9}
    assert 9 in steps


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_study_with_rungs_survives_kills(tmp_path):
    _check_rungs(tmp_path, "asha", trials=7, count=2, step_seconds=0.03)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("scheduler", ["asha", "successive-halving"])
def test_forty_kills_of_a_study_with_rungs_leave_the_undisturbed_decisions(tmp_path, scheduler):
    _check_rungs(tmp_path, scheduler, trials=27, count=40, step_seconds=0.3)
