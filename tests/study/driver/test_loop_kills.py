"""Whatever is killed: no trial is lost, none counts twice, and all results are the same."""

import kills
import pytest

from luthier import study as studies
from luthier.study.driver import StudyDirectory
from tests.study.driver.replay import replay


def _drill(tmp_path, sampler, slices, trials, count, longest, step_seconds=0.02):
    undisturbed = kills.Driven(tmp_path / "undisturbed", sampler, slices, trials)
    disturbed = kills.Driven(tmp_path / "disturbed", sampler, slices, trials, step_seconds)
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
