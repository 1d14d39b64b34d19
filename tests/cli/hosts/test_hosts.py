from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import jax
import pytest

from luthier.cli import Parser, Problems, Process, hosts, joined
from luthier.errors import BadInput, DataError, Problem
from luthier.parallel import distributed


def _read(*words):
    parser = Parser(prog="luthier train")
    parser.add_argument("--devices")
    hosts.add_arguments(parser)
    arguments, unknown = parser.parse(words)
    problems = Problems(unknown)
    found = hosts.read(arguments, problems)
    problems.raise_any()
    return found


def test_without_an_option_one_process_trains():
    assert _read("--devices", "cpu:8") == []


def test_a_host_says_which_process_it_is():
    words = ("--coordinator", "10.0.0.1:8476", "--num-processes", "2", "--process-id", "1")
    membership = {
        "coordinator_address": "10.0.0.1:8476",
        "num_processes": 2,
        "process_id": 1,
    }
    assert _read(*words, "--devices", "cpu:4") == [hosts.Process(membership, "cpu:4")]


def test_what_is_detected_is_left_open():
    assert _read("--distributed") == [hosts.Process()]


def test_how_long_the_others_are_waited_for():
    own = {"join_seconds": 300}
    assert _read("--distributed", "--join-seconds", "300") == [hosts.Process(own)]
    words = ("--coordinator", "n1:8476", "--num-processes", "2", "--process-id", "1")
    (process,) = _read(*words, "--join-seconds", "300")
    assert process.membership["join_seconds"] == 300


def test_processes_of_one_machine_share_its_devices():
    first, second = _read("--processes", "2", "--devices", "cpu:8")
    assert (first.devices, second.devices) == ("cpu:4", "cpu:4")
    assert (first.membership["process_id"], second.membership["process_id"]) == (0, 1)
    address = first.membership["coordinator_address"]
    assert address == second.membership["coordinator_address"]
    assert address.startswith("127.0.0.1:")
    assert first.environment == {"JAX_COORDINATOR_BIND_ADDRESS": address}
    assert "local_device_ids" not in first.membership


def test_each_of_them_sees_gpus_of_its_own():
    found = _read("--processes", "2", "--devices", "gpu:4")
    assert [process.membership["local_device_ids"] for process in found] == [[0, 1], [2, 3]]
    assert {process.devices for process in found} == {"gpu"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--processes", "2", "--distributed"],
            "--processes, --coordinator and --distributed cannot be combined; keep one of them",
        ),
        (
            ["--coordinator", "10.0.0.1:8476", "--process-id", "0"],
            "--num-processes is missing; give --coordinator, --num-processes, --process-id",
        ),
        (
            ["--coordinator", "10.0.0.1", "--process-id", "0", "--num-processes", "2"],
            "cannot read --coordinator '10.0.0.1'; write it as 10.0.0.1:8476",
        ),
        (
            ["--coordinator", "10.0.0.1:1", "--process-id", "2", "--num-processes", "2"],
            "there is no process 2 of 2; processes are counted from 0: the last of 2 is 1",
        ),
        (
            ["--processes", "3", "--devices", "cpu:8"],
            "3 processes cannot split cpu:8; give --devices cpu:N or gpu:N, N a multiple of 3",
        ),
        (
            ["--processes", "2"],
            "2 processes cannot split devices without a count; give --devices cpu:N or "
            "gpu:N, N a multiple of 2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(words, line):
    with pytest.raises(BadInput) as refusal:
        _read(*words)
    assert str(refusal.value) == line


def test_a_child_reads_what_its_parent_wrote(monkeypatch):
    process = hosts.Process({"num_processes": 2, "process_id": 1}, "cpu:4", {"ELSE": "1"})
    monkeypatch.delenv(hosts.VARIABLE, raising=False)
    assert hosts.of_child() is None
    variables = process.variables()
    assert variables.pop("ELSE") == "1"
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert hosts.of_child() == hosts.Process({"num_processes": 2, "process_id": 1}, "cpu:4")


def test_the_options_stand_in_a_group_of_their_own():
    parser = argparse.ArgumentParser()
    hosts.add_arguments(parser)
    assert "several processes:" in parser.format_help()


PROGRAM = """
import os, sys
from luthier.cli import hosts
def main(argv):
    print("said", *argv)
    os.write(1, b"by a library\\n")
    return 75
hosts.command_line.main = main
hosts.main(["train", "tiny"])
"""


def test_the_terminal_is_for_what_python_prints_and_the_code_is_passed_on():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (75, "said train tiny\n")
    assert "by a library" in done.stderr


@pytest.mark.full
def test_an_orphan_is_asked_to_save_and_ends():
    orphan = """
import os, signal, sys, time
from luthier.cli import hosts
signal.signal(signal.SIGTERM, lambda number, frame: (print("saved", flush=True), os._exit(0)))
hosts.command_line.main = lambda argv: (print("began", flush=True), time.sleep(60))
hosts.main([])
"""
    between = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {orphan!r}])
time.sleep(3)
"""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", between], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "began\nsaved\n"
    assert time.monotonic() - start < 50


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Return what is asked of the others, who are not there."""
    found = []
    monkeypatch.setenv("LUTHIER_NOTES", str(tmp_path / "notes.json"))
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1")
    monkeypatch.setattr(distributed, "join", lambda who, facts: found.append((who, *facts)))
    monkeypatch.setattr(distributed, "farewell", found.append)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: found.append("left"))
    return found


def test_it_joins_notifies_its_launcher_and_leaves(calls, tmp_path):
    stdout = sys.stdout
    with joined(Process({"num_processes": 2, "process_id": 0})):
        assert sys.stdout is stdout
    (who, *facts), left = calls
    assert (who, left) == (distributed.Membership("10.0.0.1:1", 2, 0), "left")
    assert {"the version of jax", "the version of Python", "the source of luthier"} <= set(facts)
    assert json.loads((tmp_path / "notes.json").read_text()) == {"process": 0, "processes": 1}


def test_a_failing_process_sends_the_others_its_reason_and_does_not_wait_for_them(calls):
    with pytest.raises(DataError), joined(Process()):
        raise DataError([Problem("no file", "data"), Problem("nor another")])
    assert calls[1:] == ["data: no file nor another"]
    with pytest.raises(KeyboardInterrupt), joined(Process()):
        raise KeyboardInterrupt
    assert calls[3:] == ["KeyboardInterrupt()"]


def test_a_failed_collective_becomes_the_end_of_the_other_process(calls, monkeypatch):
    lost = distributed.ProcessLost("process 1 of 2 ended: the disk is full")
    monkeypatch.setattr(distributed, "explain", lambda error: lost)
    with pytest.raises(distributed.ProcessLost), joined(Process()):
        raise RuntimeError("gloo")
    assert calls[1:] == [str(lost)]


def test_who_cannot_reach_another_process_is_not_taken_for_the_cause(calls, monkeypatch):
    lost = distributed.ProcessUnreachable("one of the 4 processes cannot be reached: gloo")
    monkeypatch.setattr(distributed, "explain", lambda error: lost)
    with pytest.raises(distributed.ProcessUnreachable), joined(Process()):
        raise RuntimeError("gloo")
    assert calls[1:] == [""]
