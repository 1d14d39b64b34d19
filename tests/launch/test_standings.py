import threading

import pytest

from luthier.errors import Problem, RunError
from luthier.launch import Here, Job, Launch, Slurm, Standing, standings


def _launch(path, engine, *ids):
    jobs = [Job(engine, id, "group", str(path)) for id in ids]
    return Launch(path, engine, {}, "luthier train", (), jobs, 0.0)


def test_each_engine_is_asked_once_and_jobs_stay_in_their_order(tmp_path, monkeypatch):
    asked = []

    def known_standings(engine, jobs):
        asked.append((engine.name, [job.id for job in jobs]))
        return [Standing("waiting", f"{engine.name} {job.id}") for job in jobs]

    monkeypatch.setattr(Slurm, "standings", known_standings)
    monkeypatch.setattr(Here, "standings", known_standings)
    launches = [
        _launch(tmp_path / "a", "slurm", "1_0", "1_1"),
        _launch(tmp_path / "b", "local", "7"),
        _launch(tmp_path / "c", "slurm", "2"),
    ]
    found = standings(launches)
    assert [(launch.path.name, job.id, standing.detail) for launch, job, standing in found] == [
        ("a", "1_0", "slurm 1_0"),
        ("a", "1_1", "slurm 1_1"),
        ("b", "7", "local 7"),
        ("c", "2", "slurm 2"),
    ]
    assert sorted(asked) == [("local", ["7"]), ("slurm", ["1_0", "1_1", "2"])]


def test_where_nothing_was_launched_no_engine_is_asked():
    assert standings([]) == []


def test_a_queue_that_is_silent_does_not_hold_up_the_others(tmp_path, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(Slurm, "standings", lambda engine, jobs: answered.wait(60) and [])
    monkeypatch.setattr(Here, "standings", lambda engine, jobs: [Standing("running")])
    launches = [_launch(tmp_path / "a", "slurm", "1"), _launch(tmp_path / "b", "local", "7")]
    found = [standing for _, _, standing in standings(launches, seconds=0.5)]
    answered.set()
    silence = Standing("unknown", "the queue does not answer within 0.5 s")
    assert found == [silence, Standing("running")]


@pytest.mark.parametrize(
    ("engine", "detail"),
    [
        ("slurm", "no way to the cluster"),
        (
            "pigeons",
            "there is no engine 'pigeons' here; install the distribution that has it",
        ),
    ],
)
def test_an_engine_that_cannot_be_asked_knows_nothing(tmp_path, monkeypatch, engine, detail):
    def refuse(engine, jobs):
        raise RunError(Problem("no way to the cluster"))

    monkeypatch.setattr(Slurm, "standings", refuse)
    ((_, _, found),) = standings([_launch(tmp_path, engine, "1")])
    assert found == Standing("unknown", detail)
