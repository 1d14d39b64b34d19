"""Hosts that do not fit together, as really started processes: all of them say why, and soon."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest

import luthier

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 30.0
"""What a mismatch may take, from the start of the processes to the end of the last."""


@pytest.fixture
def address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def _start(place, address, index, count, *words, path=()):
    """Begin to train as one host of a run does."""
    search = os.pathsep.join(map(str, [*path, REPOSITORY]))
    where = ("--coordinator", address, "--num-processes", str(count), "--process-id", str(index))
    command = ("-m", "luthier", "train", "configs.lm.quickstart", "--devices", "cpu:2")
    return subprocess.Popen(
        [sys.executable, *command, *words, *where],
        cwd=place,
        env=os.environ | {"PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ends(hosts, start):
    ends = [(*host.communicate(timeout=120), host.returncode) for host in hosts]
    seconds = time.monotonic() - start
    assert seconds < SECONDS, f"{seconds:.1f} s"
    return ends


def _all_say(line, hosts, start):
    for out, err, code in _ends(hosts, start):
        assert (out, err, code) == ("", f"luthier: {line}\n", 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_version_is_reported_by_all(tmp_path, address):
    other = tmp_path / "other" / "jax-0.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.9.9\n")
    start = time.monotonic()
    hosts = [
        _start(tmp_path, address, 0, 2),
        _start(tmp_path, address, 1, 2, path=[other.parent]),
    ]
    import jax

    line = (
        f"process 1 of 2 differs in the version of jax: 0.9.9, where process 0 has "
        f"{jax.__version__}; start all hosts with the same command, source and versions"
    )
    _all_say(line, hosts, start)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_source_is_reported_by_all(tmp_path, address):
    package = pathlib.Path(luthier.__file__).parent
    copy = tmp_path / "other" / "luthier"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "durations.py").open("a") as file:
        file.write("\n# One comment more.\n")
    start = time.monotonic()
    hosts = [
        _start(tmp_path, address, 0, 2),
        _start(tmp_path, address, 1, 2, path=[copy.parent]),
    ]
    for out, err, code in _ends(hosts, start):
        assert (out, code) == ("", 2)
        (line,) = err.splitlines()
        assert line.startswith("luthier: process 1 of 2 differs in the source of luthier: ")
        assert line.endswith("; start all hosts with the same command, source and versions")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_host_is_reported_by_all_others(tmp_path, address, missing):
    start = time.monotonic()
    hosts = [_start(tmp_path, address, i, 3) for i in range(3) if i != missing]
    line = (
        "process 2 of 3 did not connect within 20 s; check that every host has started, or "
        "wait longer with --join-seconds"
    )
    if missing == 0:
        line = (
            f"process 0 does not answer at {address} within 20 s: Connection refused; start "
            "process 0 there, on a port that this machine can reach"
        )
    _all_say(line, hosts, start)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wrong_number_of_processes_is_reported_by_all(tmp_path, address):
    name, start = socket.gethostname(), time.monotonic()
    hosts = [_start(tmp_path, address, 0, 2), _start(tmp_path, address, 1, 3)]
    line = (
        f"process 1 on {name} was started as one of 3 processes, process 0 on {name} as one of 2; "
        "give all of them the same --num-processes"
    )
    _all_say(line, hosts, start)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_experiment_is_reported_by_all(tmp_path, address):
    start = time.monotonic()
    hosts = [
        _start(tmp_path, address, 0, 2),
        _start(tmp_path, address, 1, 2, "optimizer.b2=0.9"),
    ]
    for out, err, code in _ends(hosts, start):
        assert (out, code) == ("", 2)
        (line,) = err.splitlines()
        assert line.startswith("luthier: process 1 of 2 differs in the experiment: ")
    assert not (tmp_path / "runs").exists()
