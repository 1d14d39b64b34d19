"""A real SLURM on this machine: its controller and two nodes, or four."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import injections
import pytest
import slurm_cluster

from luthier.launch import ProcessGroup, Slurm
from tests.compiling import QUICK_FLAGS

REPOSITORY = pathlib.Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    bool(slurm_cluster.missing()),
    reason=f"needs {', '.join(slurm_cluster.missing())}: Debian has them in slurmctld, slurmd, "
    "slurm-client and munge",
)
TINY = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=4",
    "evaluations.held_out.num_batches=2",
    "evaluations.held_out.global_batch_size=4",
    "optimizer.learning_rate.warmup_steps=2",
    "records.wandb=None",
)


@pytest.fixture
def cluster(monkeypatch):
    """Return a SLURM of the test's own; its commands are found, and ask it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with slurm_cluster.SlurmCluster(place) as found:
            for name in ("PATH", "SLURM_CONF"):
                monkeypatch.setenv(name, found.variables[name])
            yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder with a corpus and a copy of the source: that of all hosts is to be equal."""
    for source in (REPOSITORY / "framework" / "luthier", REPOSITORY / "configs"):
        shutil.copytree(source, tmp_path / "source" / source.name)
    (tmp_path / "a.txt").write_text("To be, or not to be, that is the question.\n" * 30)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "source"))
    monkeypatch.setenv("XLA_FLAGS", QUICK_FLAGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _luthier(*words):
    process = subprocess.run(
        [sys.executable, "-m", "luthier", *words], capture_output=True, text=True, timeout=500
    )
    assert process.returncode == 0, process
    return process.stdout


def _words(project, *others):
    text = f"luthier.data.TextFiles('{project}/*.txt')"
    return (*TINY, f"data.source:={text}", f"evaluations.held_out.data.source:={text}", *others)


def _until(is_so, seconds, cluster):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, cluster.run("squeue", "-t", "all")
        time.sleep(0.3)


def _preempt(cluster):
    """Have a job of a higher priority take both nodes for a moment."""
    cluster.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap=true")


@pytest.mark.timeout(180)
def test_two_nodes_run_one_group_and_know_who_they_are(cluster, tmp_path):
    code = "import os; print(*(os.environ[n] for n in ('JAX_PROCESS_ID', 'JAX_NUM_PROCESSES', \
'SLURMD_NODENAME', 'JAX_COORDINATOR_ADDRESS')))"
    group = ProcessGroup("hello", ["-c", code], str(tmp_path), str(tmp_path))
    engine = Slurm(nodes=2)
    jobs = engine.submit([group], str(tmp_path))
    _until(lambda: engine.standings(jobs)[0].state not in ("waiting", "running"), 120, cluster)
    (standing,) = engine.standings(jobs)
    logs = "".join(path.read_text() for path in sorted((tmp_path / "logs").iterdir()))
    assert (standing.state, standing.hosts) == ("finished", ("n1", "n2")), logs
    printed = [group.log_path(rank).read_text().split() for rank in (0, 1)]
    assert [words[:3] for words in printed] == [["0", "2", "n1"], ["1", "2", "n2"]]
    assert printed[0][3] == printed[1][3]
    assert printed[0][3].startswith("127.0.0.1:")
    again = cluster.run("sbatch", "--parsable", "--wait", str(tmp_path / "job.sh"))
    assert again.strip() == "2"  # a person reruns the script
    assert group.log_path(0).read_text().count("0 2 n1") == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_two_nodes_is_preempted_and_goes_on(cluster, project):
    words = _words(
        project,
        "training.steps=3000",
        "checkpoints.every.count=100000",
        "evaluations.held_out.every.count=1500",
    )
    on = "slurm:nodes=2,partition=low,devices=cpu:1,cpus_per_process=1"
    output = _luthier("train", "configs.lm.quickstart", *words, "--on", on)
    (run,) = (project / "runs" / "quickstart").iterdir()
    assert output == (
        f"run quickstart/{run.name} is job 1 of slurm; `luthier launch` shows its state\n"
        f"script and logs: {run}/launch/1\n"
    )

    def step():
        return json.loads((run / "status.json").read_text())["step"]

    _until(lambda: step() > 30, 300, cluster)
    (row,) = json.loads(_luthier("launch", "--json"))
    assert (row["state"], row["hosts"], row["restarts"]) == ("running", ["n1", "n2"], 0)
    _preempt(cluster)
    _until(lambda: "1|" in cluster.run("squeue", "-h", "-j1", "-O", "RestartCnt:|"), 100, cluster)
    _until(
        lambda: "COMPLETED" in cluster.run("squeue", "-h", "-tall", "-j1", "-oT%T"), 400, cluster
    )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "step"]
    assert steps == list(range(1, 3001))
    ends = [row for row in rows if row["kind"] == "ended"]
    assert [row["status"] for row in ends] == ["preempted", "finished"]
    assert 30 < ends[0]["step"] < 3000
    (row,) = json.loads(_luthier("launch", "--json", "--all"))
    assert (row["state"], row["restarts"]) == ("finished", 1)


STUDY = """
import fiddle as fdl

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies
from luthier import study as studies


def study():
    base = graphs.apply(graphs.resolve("configs.lm.quickstart"), {words!r})
    loss = fdl.Config(metrics.Selector, "held_out", "loss", "lower")
    space = {{"optimizer.learning_rate.peak": studies.Log(1e-3, 1e-1)}}
    return fdl.Config(
        studies.Study,
        name="injection",
        base=base,
        space=fdl.Config(studies.Space, space),
        objectives=[fdl.Config(studies.Measured, loss)],
        sampler=studies.sampler("random"),
        budget=fdl.Config(studies.Budget, trials={trials}, retries=0),
        packing=fdl.Config(studies.SharedPrograms, lanes="single"),
        storage=None,
    )
"""


def _journal(project):
    path = project / "studies" / "injection" / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _of_kind(project, kind):
    return [line for line in _journal(project) if line["kind"] == kind]


def _write_study(project, trials, steps):
    words = _words(
        project,
        f"training.steps={steps}",
        "records.console=None",
        "checkpoints.every.count=100000",
        f"evaluations.held_out.every.count={steps}",
    )
    (project / "injection.py").write_text(STUDY.format(words=list(words), trials=trials))


def _steps_of(project, trial):
    path = project / "studies" / "injection" / "trials" / f"{trial:04d}" / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row["step"] for row in map(json.loads, lines) if row["kind"] == "step"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_groups_of_two_nodes_are_preempted_and_their_trials_go_on(cluster, project):
    _write_study(project, 2, 3000)
    on = "slurm:nodes=2,slices=2,partition=low,devices=cpu:1,cpus_per_process=1"
    words = [sys.executable, "-m", "luthier", "sweep", "injection:study", "--on", on]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _until(
            lambda: (
                all(len(_steps_of(project, t)) > 30 for t in (0, 1)) or driver.poll() is not None
            ),
            400,
            cluster,
        )
        running = cluster.run("squeue", "-h", "-tR", "-o%i %D %N").splitlines()
        assert sorted(running) == ["1_0 2 n[1-2]", "1_1 2 n[1-2]"]
        _preempt(cluster)
        out, _ = driver.communicate(timeout=400)
    finally:
        driver.kill()
    assert driver.returncode == 0, out
    lost = _of_kind(project, "lost")
    assert {(line["trial"], line["reason"], line["counts"]) for line in lost} == {
        (0, "its machines were taken away", False),
        (1, "its machines were taken away", False),
    }
    ended = {line["trial"]: line["outcome"] for line in _of_kind(project, "ended")}
    assert ended == {0: "complete", 1: "complete"}
    for trial in (0, 1):
        assert _steps_of(project, trial) == list(range(1, 3001))
    assert cluster.run("squeue", "-h") == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_driver_is_cancelled_and_the_study_goes_on(cluster, project):
    _write_study(project, 3, 1500)
    on = "slurm:nodes=2,partition=low,devices=cpu:1,cpus_per_process=1"
    line = f"exec {sys.executable} -m luthier sweep injection:study --on {on}"
    job = project / "driver.sh"
    job.write_text(f"#!/bin/bash\n#SBATCH --output=driver.log\nsrun -n1 bash -c '{line}'\n")
    cluster.run("sbatch", str(job))
    log = project / "driver.log"

    def is_under_way():
        assert "1" in cluster.run("squeue", "-h", "-o%i").split(), log.read_text()
        return len(_steps_of(project, 0)) > 30

    _until(is_under_way, 400, cluster)
    cluster.run("scancel", "1")
    _until(lambda: cluster.run("squeue", "-h") == "", 200, cluster)
    before = len(_steps_of(project, 0))
    assert 30 < before < 1500, log.read_text()
    out = _luthier("sweep", "--resume", "studies/injection", "--on", on)
    assert "3 trials" in out or "3 complete" in out, out
    ended = {line["trial"]: line["outcome"] for line in _of_kind(project, "ended")}
    assert ended == {0: "complete", 1: "complete", 2: "complete"}
    assert _steps_of(project, 0) == list(range(1, 1501))
    assert _of_kind(project, "leased")[-1]["fence"] == 4  # trial 0 was leased twice


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_short_trials_on_four_workers_survive_random_kills(
    cluster, tmp_path, monkeypatch
):
    folders = [REPOSITORY / "framework", REPOSITORY / "tests/launch", REPOSITORY / "tests/study"]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, folders)))
    monkeypatch.chdir(tmp_path)
    outcome, kills = injections.drive(tmp_path, Slurm(), slices=4, trials=200, kills=40, seed=5)
    losses = injections.check_nothing_lost(tmp_path, outcome, 200)
    assert kills >= 10
    assert 0 < sum(number * times for number, times in losses.items()) <= kills
    assert os.listdir(tmp_path / "toy" / "launch") == ["1"]
