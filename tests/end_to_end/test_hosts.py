"""Several real processes that train one run: started, compared, killed, and started again."""

import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import trainer
from tests.compiling import QUICK_FLAGS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PATH = os.pathsep.join((str(REPOSITORY / "framework"), str(REPOSITORY)))
LINE = "To be, or not to be, that is the question.\n"

TINY = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=32",
    "model.block.dropout=partial:luthier.layers.Dropout(rate=0.1)",
    "data.length=32",
    "training.global_batch_size=8",
    "evaluations.held_out.num_batches=2",
    "evaluations.held_out.global_batch_size=8",
    "records.wandb=None",
)


@pytest.fixture
def place(tmp_path):
    """Return a folder with a small corpus in it."""
    (tmp_path / "a.txt").write_text(LINE * 200)
    return tmp_path


def _overrides(place, steps, save_every, *others):
    text = f"luthier.data.TextFiles('{place}/*.txt')"
    return (
        *TINY,
        f"data.source:={text}",
        f"evaluations.held_out.data.source:={text}",
        f"training.steps={steps}",
        f"optimizer.learning_rate.warmup_steps={steps // 4}",
        f"checkpoints.every.count={save_every}",
        f"evaluations.held_out.every.count={save_every}",
        *others,
    )


# Half of the time of compiling; what follows more steps compiles as users do.


def _start(place, *words, flags=""):
    """Begin to train in the folder of a corpus; the process is that of the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "luthier", "train", "configs.lm.quickstart", *words],
        cwd=place,
        env=os.environ | {"PYTHONPATH": PATH, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process, seconds=600):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def _rows(place, kind):
    (path,) = pathlib.Path(place).glob("runs/quickstart/*/metrics.jsonl")
    rows = map(json.loads, path.read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def _losses(place):
    return [(row["step"], row["values"]["loss"]) for row in _rows(place, "step")]


def _children(process):
    """Return the processes that a parent watches, in their order."""
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(map(int, path.read_text().split()))


def _wait_until_saved(place, step, *processes):
    pattern = f"runs/quickstart/*/checkpoints/{step}/commit.json"
    while not list(pathlib.Path(place).glob(pattern)):
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_processes_train_one_run_as_one_process_does(place):
    overrides = _overrides(place, 4, 2)
    words = (*overrides, "--processes", "2", "--devices", "cpu:2")
    code, out, err = _end(_start(place, *words, flags=QUICK_FLAGS))
    assert (code, err) == (0, "")
    assert out.count("finished at step 4") == 1
    assert out.count("eval held_out at step 4") == 1
    assert re.search(r"^  devices +2 x cpu$", out, re.MULTILINE)
    assert re.search(r"^  mesh +\S", out, re.MULTILINE)
    (run,) = (place / "runs" / "quickstart").iterdir()
    assert sorted(path.name for path in (run / "processes").iterdir()) == [
        "process-0-of-2.log",
        "process-1-of-2.log",
    ]
    found = _losses(place)
    assert [step for step, _ in found] == [1, 2, 3, 4]
    (measured,) = (row["values"] for row in _rows(place, "evaluation") if row["step"] == 4)

    alone = [*overrides, f"records.directory={place / 'alone'}", "records.console=None"]
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), alone)
    result = trainer.run(graph, devices=jax.devices()[:2])
    path = result.directory / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    expected = [row["values"]["loss"] for row in rows if row["kind"] == "step"]
    np.testing.assert_allclose([loss for _, loss in found], expected, rtol=1e-6)
    tokens = [row["values"]["tokens"] for row in rows if row["kind"] == "step"]
    assert [row["values"]["tokens"] for row in _rows(place, "step")] == tokens
    for metric, value in result.metrics["held_out"].items():
        np.testing.assert_allclose(measured[metric], value, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_losses_are_the_same_for_any_number_of_processes(place):
    found = {}
    for count in (1, 2, 4):
        own = ["--processes", str(count)] if count > 1 else []
        overrides = _overrides(place, 20, 10, f"records.directory={place}/{count}/runs")
        code, _, err = _end(_start(place, *overrides, *own, "--devices", "cpu:8"), 1200)
        assert code == 0, err
        found[count] = _losses(place / str(count))
    for count in (2, 4):
        assert [step for step, _ in found[count]] == [step for step, _ in found[1]]
        np.testing.assert_allclose(
            [loss for _, loss in found[count]], [loss for _, loss in found[1]], rtol=1e-6
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mesh", ["tensor=4", "sequence=2", "sequence=4", "stage=4"])
def test_processes_may_hold_parts_of_the_same_rows(place, mesh):
    """Each row is read by all who hold a part of it, and its tokens count once."""
    heads = [f"model.block.attention.num_{kind}=4" for kind in ("heads", "kv_heads")]
    words = _overrides(place, 4, 2, f"parallelism.mesh.{mesh}", "model.num_layers=4", *heads)
    if mesh.startswith("stage"):
        stack = "luthier.layers.Pipelined(microbatches=4)"
        words = (*words, f"model.stack:={stack}")
    found = {}
    for count in (1, 2, 4):
        own = ["--processes", str(count)] if count > 1 else []
        where = f"records.directory={place}/{count}/runs"
        code, _, err = _end(_start(place, *words, where, *own, "--devices", "cpu:4"))
        assert code == 0, err
        rows = _rows(place / str(count), "step")
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        found[count] = [[row["values"][n] for n in ("loss", "tokens")] for row in rows]
    for count in (2, 4):
        np.testing.assert_allclose(found[count], found[1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killing_any_process_ends_the_others_and_a_restart_goes_on_bit_identically(place):
    words = ["--processes", "2", "--devices", "cpu:8"]
    whole = (*_overrides(place, 40, 10, f"records.directory={place}/whole/runs"), *words)
    code, _, err = _end(_start(place, *whole), 1200)
    assert code == 0, err
    killed = (*_overrides(place, 40, 10), *words)
    for index, step in ((1, 10), (0, 20)):
        process = _start(place, *killed)
        _wait_until_saved(place, step, process)
        start = time.monotonic()
        os.kill(_children(process)[index], signal.SIGKILL)
        code, _, err = _end(process)
        assert time.monotonic() - start < 30
        (line,) = err.splitlines()
        assert code == 1
        assert line.startswith(
            f"luthier: process {index} of 2 ended (signal 9); the run is saved at step "
        )
        (run,) = (place / "runs" / "quickstart").iterdir()
        assert line.endswith(f" (logs: {run / 'processes'})")
        command = line.partition("resume it with: ")[2].partition(" (logs")[0]
        assert shlex.split(command) == ["luthier", "train", "configs.lm.quickstart", *killed]
    code, _, err = _end(_start(place, *killed), 1200)
    assert code == 0, err
    assert _losses(place) == _losses(place / "whole"), "bit-identical losses, each step once"


def _free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def _start_hosts(place, *overrides, count=2, own=()):
    """Begin to train with a parent for every process, as hosts of their own have them."""
    address = _free_address()
    where = ("--coordinator", address, "--num-processes", str(count), "--devices", "cpu:2")
    return [
        _start(place, *overrides, *where, "--process-id", str(index), *dict(own).get(index, ()))
        for index in range(count)
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("index", [0, 1])
def test_a_host_that_is_gone_ends_the_others_within_thirty_seconds(place, index):
    hosts = _start_hosts(place, *_overrides(place, 4000, 10))
    _wait_until_saved(place, 10, *hosts)
    gone, left = hosts[index], hosts[1 - index]
    (child,) = _children(gone)
    start = time.monotonic()
    for pid in (gone.pid, child):
        os.kill(pid, signal.SIGKILL)
    code, _, err = _end(left)
    seconds = time.monotonic() - start
    gone.communicate()
    (line,) = err.splitlines()
    who = f"process {index} of 2" + (" (the coordinator)" if index == 0 else "")
    assert code == 75
    assert line.startswith(f"luthier: {who} ended, is stopped, or cannot be reached; ")
    # Where the other is left to find out by its silence, it leaves its stacks before JAX ends it.
    assert ("; stacks: " in line) == (index != 0)
    assert "; the run is saved at step " in line
    assert seconds < 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hosts_that_differ_stop_before_the_first_step(place):
    overrides = _overrides(place, 20, 10)
    own = {1: ("optimizer.b2=0.9",)}
    start = time.monotonic()
    ends = [_end(host, 300) for host in _start_hosts(place, *overrides, own=own)]
    assert time.monotonic() - start < 120
    for code, out, err in ends:
        (line,) = err.splitlines()
        assert (code, out) == (2, "")
        assert line.startswith("luthier: process 1 of 2 differs in the experiment: ")
        assert line.endswith("; start all hosts with the same command, source and versions")
    assert not (place / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stop_on_one_host_saves_one_step_on_all(place, number, code):
    hosts = _start_hosts(place, *_overrides(place, 4000, 10))
    _wait_until_saved(place, 10, *hosts)
    hosts[1].send_signal(number)
    ends = [_end(host) for host in hosts]
    assert [end[0] for end in ends] == [code, code]
    assert [end[2] for end in ends] == ["", ""]
    (run,) = (place / "runs" / "quickstart").iterdir()
    status = json.loads((run / "status.json").read_text())
    saved = {int(path.parent.name) for path in run.glob("checkpoints/*/commit.json")}
    assert status["status"] == {75: "preempted", 130: "interrupted"}[code]
    assert max(saved) == status["step"] > 10
