"""Kills of real training: the driver, its workers, or both, at random moments."""

import pathlib
import sys
from collections.abc import Sequence

import kills
import pytest
from sweep_trials import TINY, recorded

from luthier.study import read_result
from luthier.study.driver import read_journal

STUDY = """
import fiddle as fdl

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies
from luthier import study as studies


def study():
    text = "luthier.data.TextFiles('{folder}/*.txt')"
    own = [f"data.source:={{text}}", f"evaluations.held_out.data.source:={{text}}"]
    base = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*{words!r}, *own])
    loss = fdl.Config(metrics.Selector, "held_out", "loss", "lower")
    return fdl.Config(
        studies.Study,
        name="injection",
        base=base,
        space=fdl.Config(
            studies.Space,
            {{
                "optimizer.learning_rate.peak": studies.Log(1e-3, 1e-1),
                "optimizer.weight_decay": studies.Choice([0.0, 0.1, 0.2, 0.3]),
            }},
        ),
        objectives=[fdl.Config(studies.Measured, loss)],
        sampler=studies.sampler("random"),
        budget=fdl.Config(studies.Budget, trials=32, retries=100),
        engine=fdl.Config(studies.Local),
        packing=fdl.Config(studies.SharedPrograms, lanes="single"),
        dedupe=None,
    )
"""
STEPS = (
    "training.steps=1600",
    "checkpoints.every.count=300",
    "evaluations.held_out.every.count=500",
)


def write_project(folder: pathlib.Path, steps: Sequence[str] = STEPS) -> pathlib.Path:
    """Write a project whose module `injection` has a study of tiny trials; return its folder.

    Args:
      folder: Where it is to be.
      steps: Overrides of the trials.
    """
    folder.mkdir()
    (folder / "a.txt").write_text("To be, or not to be, that is the question.\n" * 30)
    words = [word for word in TINY if word.split("=")[0] not in {w.split("=")[0] for w in steps}]
    (folder / "injection.py").write_text(STUDY.format(folder=folder, words=[*words, *steps]))
    configs = pathlib.Path(__file__).parents[3] / "configs"
    (folder / "configs").symlink_to(configs)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("sampler", "slices"), [("random", 2), ("tpe", 1)])
def test_forty_kills_of_real_training_leave_the_undisturbed_outcome(tmp_path, sampler, slices):
    undisturbed = kills.Trained(write_project(tmp_path / "undisturbed"), sampler, slices, 32)
    disturbed = kills.Trained(write_project(tmp_path / "disturbed"), sampler, slices, 32)
    undisturbed.begin()
    undisturbed.finish()
    done = kills.disturb(disturbed, 40, seed=11, longest=2.0)
    counts, expected = disturbed.counts(), list(range(32))
    assert done == 40
    assert counts["asked"] == expected
    assert sorted(counts["ended"]) == expected
    found, wanted = disturbed.outcome(), undisturbed.outcome()
    for (trial, graph, result), (_, first_graph, first_result) in zip(found, wanted, strict=True):
        place = str(tmp_path / "undisturbed")
        assert graph.replace(str(tmp_path / "disturbed"), place) == first_graph, trial
        assert result == first_result, trial


RUNGS = (
    "training.steps=90",
    "checkpoints.every.count=45",
    "evaluations.held_out.every.count=10",
)


def _result(driven, trial):
    return read_result(driven.path / "trials" / f"{trial:04d}").result


def _recorded(driven, trial):
    return recorded(driven.path / "trials" / f"{trial:04d}" / "run" / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "packing",
    [(), ('packing=luthier.study.SharedPrograms(lanes="vmap", num_lanes=2)',)],
    ids=["single", "vmap"],
)
def test_trials_with_rungs_and_kills_repeat_trials_that_never_paused(tmp_path, packing):
    scheduler = "scheduler=luthier.study.Asha(num_rungs=3)"
    whole = kills.Trained(write_project(tmp_path / "whole", RUNGS), "random", 2, 12, packing)
    rungs = kills.Trained(
        write_project(tmp_path / "rungs", RUNGS), "random", 2, 12, (*packing, scheduler)
    )
    whole.begin()
    whole.finish()
    done = kills.disturb(rungs, 40, seed=5, longest=2.0)
    counts = rungs.counts()
    assert done == 40
    assert counts["asked"] == sorted(counts["ended"]) == list(range(12))
    lengths = []
    for trial in range(12):
        result, expected = _result(rungs, trial), dict(_result(whole, trial)["series"])
        for step, metrics in result["series"]:
            assert metrics.items() <= expected[step].items(), trial
        # A trial that stayed at a rung has the first part of what it would have recorded.
        found, wanted = _recorded(rungs, trial), _recorded(whole, trial)
        steps = max((step for step, _, _ in found), default=0)
        assert found == [one for one in wanted if one[0] <= steps], trial
        # Where its worker was killed in the instant after the report, the driver wrote the result,
        # of what was reported, and the last lines of the record may be missing.
        assert steps == result["steps"] or set(result["facts"]) == {"device_seconds"}, trial
        lengths.append(result["steps"])
    assert 90 in lengths
    assert min(lengths) < 90
    lines = list(read_journal(rungs.path / "journal.jsonl"))
    resumed = {line["trial"] for line in lines if line["kind"] == "promoted"}
    assert resumed & {trial for trial in range(12) if lengths[trial] == 90}
