from __future__ import annotations

import os

import pytest

from luthier.errors import RunError, UnknownReference
from luthier.records import Configuration, JsonLines, RunDirectory, Status, Step, find, list_runs


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
    assert {summary.status.status for summary in listed} == {"created"}


def test_a_killed_run_is_listed_with_its_last_recorded_step(root):
    run = find(root, "bb33")
    run.write_status(Status(status="running", step=2, total_steps=10))
    sink = JsonLines(run.metrics_path)
    for step in range(1, 6):
        sink.emit(Step(step, {"loss": 1 / step}))
    sink.close()
    status = list_runs(root)[-1].status
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
