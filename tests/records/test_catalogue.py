from __future__ import annotations

import math
import os
import sys

import numpy as np
import pytest

from luthier.errors import BadInput, RunError, UnknownReference
from luthier.records import (
    Configuration,
    Evaluation,
    JsonLines,
    RunDirectory,
    Status,
    Step,
    encode_number,
    find,
    list_runs,
    sample_steps,
)


@pytest.fixture
def root(tmp_path):
    """Four runs, of which the last one made was written to first."""
    root = tmp_path / "runs"
    runs = [("quickstart", "aa11"), ("quickstart", "aa22"), ("quickstart", "bb33"), ("c4", "aa11")]
    for age, (name, id) in enumerate(runs):
        run = RunDirectory.create(root, name, id, configuration=Configuration(graph="{}"))
        for path in run.path.iterdir():
            os.utime(path, (1e9 - age, 1e9 - age))
    (root / "quickstart" / ".zz.1.tmp").mkdir()
    (root / "quickstart" / "no_run").mkdir()
    (root / "a file").write_text("")
    return root


def whole(run):
    return f"{run.name}/{run.id}"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("aa22", "quickstart/aa22"),
        ("b", "quickstart/bb33"),
        ("c4/aa11", "c4/aa11"),
        ("c4", "c4/aa11"),
        ("quickstart/b", "quickstart/bb33"),
        ("last", "quickstart/aa11"),
        ("quickstart/aa22/", "quickstart/aa22"),
    ],
)
def test_a_run_is_found(root, reference, expected):
    assert whole(find(root, reference)) == expected


def test_the_name_of_an_experiment_wins_over_one_that_it_begins(root):
    RunDirectory.create(root, "c4_large", "cc44", configuration=Configuration(graph="{}"))
    assert whole(find(root, "c4")) == "c4/aa11"


def test_a_path_is_found_wherever_it_is(root, monkeypatch):
    path = root / "c4" / "aa11"
    assert find("elsewhere", path) == RunDirectory(path)
    monkeypatch.chdir(path)
    assert find("elsewhere", ".") == RunDirectory(path)


@pytest.mark.parametrize("reference", ["aa11", "aa", "quickstart"])
def test_several_runs_are_named(root, reference):
    with pytest.raises(RunError, match=r"may mean .*quickstart/aa11") as caught:
        find(root, reference)
    assert "\n" not in str(caught.value)
    remedy = "write NAME/ID" if reference == "aa11" else "give more of the id, or `last`"
    assert str(caught.value).endswith(f"; {remedy}")


def test_an_unknown_run_has_near_names(root):
    with pytest.raises(UnknownReference, match="did you mean quickstart/aa22"):
        find(root, "ab22")
    with pytest.raises(UnknownReference, match=r"did you mean .*quickstart"):
        find(root, "quickstrat")
    for reference in ("", "zzzzzzzz"):
        with pytest.raises(UnknownReference, match="`luthier runs` lists them"):
            find(root, reference)


def test_no_runs(tmp_path):
    for root in (tmp_path, tmp_path / "none"):
        assert list_runs(root) == []
        for reference in ("last", "aa"):
            with pytest.raises(UnknownReference, match="there are no runs in"):
                find(root, reference)


def test_runs_are_listed_with_the_newest_at_the_end(root):
    listed = list_runs(root)
    names = [whole(summary.directory) for summary in listed]
    assert names == ["c4/aa11", "quickstart/bb33", "quickstart/aa22", "quickstart/aa11"]
    assert {summary.status for summary in listed} == {"created"}


def test_a_killed_run_is_listed_with_its_last_recorded_step(root):
    run = find(root, "bb33")
    run.write_status(Status(status="running", step=2, total_steps=10))
    sink = JsonLines(run.metrics_path)
    for step in range(1, 6):
        sink.emit(Step(step, {"loss": 1 / step}))
    sink.close()
    status = list_runs(root)[-1].record
    assert (status.status, status.step, status.total_steps) == ("interrupted", 5, 10)
    assert status.metrics == {"loss": 0.2}


def test_a_damaged_run_does_not_hide_the_others(root):
    (root / "c4" / "aa11" / "status.json").write_text("{")
    (root / "quickstart" / "bb33" / "status.json").write_text("[]")
    problems = [summary.problem for summary in list_runs(root)]
    assert len(problems) == 4
    assert sum(bool(problem) for problem in problems) == 2


def test_a_folder_that_may_not_be_read_does_not_hide_the_others(root, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if os.path.basename(path) == "c4":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    names = [whole(summary.directory) for summary in list_runs(root)]
    assert names == ["quickstart/bb33", "quickstart/aa22", "quickstart/aa11"]


def _trained(root, name, id, losses, status="finished", better="lower"):
    """Record a run with a training loss of 1/step, and an evaluation at every step."""
    directory = RunDirectory.create(root, name, id, configuration=Configuration("{}"))
    sink = JsonLines(directory.metrics_path)
    for step, loss in enumerate(losses, 1):
        sink.emit(Step(step, {"loss": 1 / step, "tokens_per_second": float(len(losses))}))
        sink.emit(Evaluation(step, "held_out", {"score": loss}, {"score": better}))
    sink.close()
    evaluations = {"held_out": {"score": encode_number(losses[-1])}} if losses else {}
    directory.write_status(Status(status=status, step=len(losses), evaluations=evaluations))
    return directory


def test_runs_are_selected_and_sorted(tmp_path):
    root = tmp_path / "runs"
    for name, id, losses in (
        ("lm", "aa", [3.0, 2.0]), ("lm", "bb", [3.0, math.nan]), ("lm_wide", "cc", [1.5]),
        ("vision", "dd", [2.5]), ("lm", "ee", []),
    ):  # fmt: skip
        _trained(root, name, id, losses, "failed" if id == "dd" else "finished")

    def ids(**selection):
        return [run.id for run in list_runs(root, **selection)]

    assert ids(sort="held_out/score") == ["cc", "aa", "dd", "bb", "ee"]
    assert ids(sort="held_out/score", best=2) == ["cc", "aa"]
    assert ids(sort="held_out/score", best=2, name="lm") == ["aa", "bb"]
    assert ids(name="lm*", last=2) == ["cc", "ee"]
    assert ids(status="failed") == ["dd"]
    assert ids(sort="tokens_per_second", best=2) == ["aa", "bb"]  # more is better
    with pytest.raises(BadInput, match=r"metric 'held_out/scor'; did you mean held_out/score"):
        ids(sort="held_out/scor")
    with pytest.raises(BadInput, match="best: the best runs are by a metric; give sort, too"):
        ids(best=1)
    _trained(root, "accuracy", "ff", [0.5], better="higher")
    _trained(root, "accuracy", "gg", [0.7], better="higher")
    assert ids(name="accuracy", sort="held_out/score") == ["gg", "ff"]


def test_the_curves_of_a_run_are_columns(tmp_path):
    directory = _trained(tmp_path, "lm", "aa", [3.0, 2.0, 2.5])
    sink = JsonLines(directory.metrics_path)
    sink.emit(Step(4, {"loss": math.nan, "aux": 7.0}))
    sink.close()
    with open(directory.metrics_path, "a") as file:  # a process is writing
        file.write('{"kind": "step", "step": 5, "va')
    (run,) = list_runs(tmp_path)
    assert (run.id, run.name, run.status, run.step) == ("aa", "lm", "finished", 4)
    columns = run.metrics()
    assert list(columns) == ["step", "time", "loss", "tokens_per_second", "aux"]
    assert columns["step"].tolist() == [1, 2, 3, 4]
    assert columns["step"].dtype == "int64"
    np.testing.assert_array_equal(columns["loss"], [1, 1 / 2, 1 / 3, math.nan])
    np.testing.assert_array_equal(columns["aux"], [math.nan] * 3 + [7])
    assert run.metrics("held_out")["score"].tolist() == [3.0, 2.0, 2.5]
    steps, values = run.curve("held_out/score")
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3], [3.0, 2.0, 2.5])
    assert run.curve("loss")[0].tolist() == [1, 2, 3]
    assert run.evaluations == {"held_out": {"score": 2.5}}
    with pytest.raises(BadInput, match="has no evaluation 'held'; did you mean held_out"):
        run.metrics("held")
    with pytest.raises(BadInput, match=r"lm/aa has no metric 'los'; did you mean loss"):
        run.curve("los")
    with pytest.raises(KeyError, match="there are step, time, loss"):
        columns["los"]
    pandas = pytest.importorskip("pandas")
    assert isinstance(columns.to_pandas(), pandas.DataFrame)


def test_pandas_is_asked_for_by_name_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    _trained(tmp_path, "lm", "aa", [3.0])
    with pytest.raises(BadInput, match="pandas is not installed; pip install pandas"):
        list_runs(tmp_path)[0].metrics().to_pandas()


def test_a_sample_of_a_long_record_is_spread_over_it(tmp_path):
    directory = RunDirectory.create(tmp_path, "lm", "aa", configuration=Configuration("{}"))
    assert sample_steps(directory.metrics_path) == []
    directory.metrics_path.write_text('{"kind": "header"}\n')  # before the first step
    assert sample_steps(directory.metrics_path) == []
    directory.metrics_path.unlink()
    sink = JsonLines(directory.metrics_path)
    for step in range(1, 4001):
        sink.emit(Step(step, {"loss": 1 / step}))
        if step in (10, 40):
            sink.flush()
            steps = [at.step for at in sample_steps(directory.metrics_path, 10)]
            assert (steps[0], steps[-1], len(steps)) == (1, step, 10)
    sink.close()
    steps = [at.step for at in sample_steps(directory.metrics_path, 10, window_bytes=1 << 12)]
    assert len(steps) == 10
    assert max(abs(step - 4000 * place / 9) for place, step in enumerate(steps)) < 100
