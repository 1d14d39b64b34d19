"""Processes find each other, compare what they run, and explain why one of them cannot join."""

from __future__ import annotations

import concurrent.futures
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import jax
import pytest

from luthier.errors import BadInput, DataError
from luthier.parallel.distributed import (
    Attendance,
    Membership,
    call_roll,
    explain,
    farewell,
    rendezvous,
)

REMEDY = "start all hosts with the same command, source and versions"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rendezvous, "_STRAGGLE_SECONDS", 0.3)
    monkeypatch.setattr(rendezvous, "_RETRY_SECONDS", 0.02)


@pytest.fixture
def address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def _call(address, *those, seconds=5.0):
    """Call the roll of processes that are threads; return what each of them hears."""

    def one(mine):
        try:
            call_roll(address, mine, seconds)
        except BadInput as error:
            return str(error)
        return "went on"

    with concurrent.futures.ThreadPoolExecutor(len(those)) as pool:
        return list(pool.map(one, those))


def _process(index, count, host="n{}", **facts):
    return Attendance(index, count, facts, host.format(index))


def test_all_go_on_when_all_have_come_and_the_port_is_free_again(address):
    those = [_process(index, 4, jax="0.10.2") for index in (2, 0, 3, 1)]
    for _ in range(2):
        assert _call(address, *those) == ["went on"] * 4


def test_a_process_that_differs_is_reported_to_all(address):
    those = [
        _process(0, 3, **{"the version of jax": "0.10.2", "the source of luthier": "aa"}),
        _process(1, 3, **{"the version of jax": "0.10.2", "the source of luthier": "bb"}),
        _process(2, 3, **{"the version of jax": "0.11.0", "the source of luthier": "aa"}),
    ]
    lines = (
        "process 1 of 3 differs in the source of luthier: bb, where process 0 has aa; "
        f"{REMEDY}\n"
        "process 2 of 3 differs in the version of jax: 0.11.0, where process 0 has 0.10.2; "
        f"{REMEDY}"
    )
    assert _call(address, *those) == [lines] * 3


@pytest.mark.parametrize(
    ("those", "line"),
    [
        (
            [_process(0, 2), _process(1, 3), _process(2, 3)],
            "process 1 on n1 was started as one of 3 processes, process 0 on n0 as one of 2; give "
            "all of them the same --num-processes",
        ),
        (
            [_process(0, 3), _process(1, 2)],
            "process 1 on n1 was started as one of 2 processes, process 0 on n0 as one of 3; give "
            "all of them the same --num-processes",
        ),
        (
            [_process(0, 3), _process(1, 3, "n1"), _process(1, 3, "n1")],
            "two processes claim to be process 1 of 3 (on n1); give each of them a "
            "--process-id of its own",
        ),
        (
            [_process(0, 2), _process(7, 2)],
            "there is no process 7 of 2 (claimed on n7); processes are counted from 0",
        ),
    ],
)
def test_a_wrong_count_or_number_is_reported_to_all(address, those, line):
    found = _call(address, *those)
    assert found[0].splitlines()[0] == line
    assert set(found) == {found[0]}


def test_two_hosts_with_one_number_are_both_named():
    one, two = Attendance(1, 3, {}, "n4"), Attendance(1, 3, {}, "n5")
    came = {0: Attendance(0, 3, {}, "n0"), 1: one}
    (problem,) = rendezvous.verdict(came, [(one, two)], 25)
    assert "process 1 of 3 (on n4 and n5)" in str(problem)


def test_whoever_is_missing_is_named_by_all_that_came(address):
    found = _call(address, _process(0, 3), _process(2, 3), seconds=0.4)
    line = (
        "process 1 of 3 did not connect within 0 s; check that every host has started, or "
        "wait longer with --join-seconds"
    )
    assert found == [line] * 2


def test_many_that_are_missing_are_named_in_short():
    (problem,) = rendezvous.verdict({0: Attendance(0, 64, {}, "n0")}, [], 25)
    assert problem.what == (
        "processes 1, 2, 3, 4, 5, 6, 7, 8 and 55 more of 64 did not connect within 25 s"
    )


def test_what_is_missing_does_not_hide_who_differs():
    came = {0: _process(0, 3, a="1"), 2: _process(2, 3, a="2")}
    first, second = rendezvous.verdict(came, [], 25)
    assert first.what == "process 1 of 3 did not connect within 25 s"
    assert second.what == "process 2 of 3 differs in a: 2, where process 0 has 1"


def test_a_missing_process_0_is_reported_with_its_address(address):
    (found,) = _call(address, _process(1, 2), seconds=0.2)
    assert found == (
        f"process 0 does not answer at {address} within 0 s: Connection refused; start process 0 "
        "there, on a port that this machine can reach"
    )


def test_a_port_that_is_in_use_is_reported(address):
    with socket.create_server(("", int(address.rpartition(":")[2]))):
        (found,) = _call(address, _process(0, 2), seconds=0.2)
    port = address.rpartition(":")[2]
    assert found == (
        f"process 0 cannot listen at port {port}: Address already in use [set by --coordinator]; "
        "choose a port that is free"
    )


def _answering(address, answer):
    """Begin to answer whoever comes first with some bytes."""
    server = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))

    def serve():
        with server, server.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_run_that_has_begun_takes_in_no_more(address):
    thread = _answering(address, b"\0\0\x06\x04\0")
    (found,) = _call(address, _process(1, 2))
    thread.join()
    assert found == (
        f"the process at {address} is not a process 0 that waits for others; the run continues "
        "without this process, or the port has another user"
    )


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        (True, "process 0 at {} has ended: "),
        (False, "process 0 at {} does not answer"),
    ],
)
def test_a_process_0_that_gives_no_verdict_is_named(address, ends, line):
    server = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
    over = threading.Event()

    def serve():
        with server, server.accept()[0] as connection:
            if ends:
                # Closed with most of what was sent unread, as by a process that is killed.
                connection.recv(1)
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                over.wait(5)

    thread = threading.Thread(target=serve)
    thread.start()
    (found,) = _call(address, _process(1, 2), seconds=0.2)
    over.set()
    thread.join()
    assert found.startswith(line.format(address))


def test_strangers_are_not_counted(address):
    def disturb():
        host, port = address.split(":")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n")
                return
            except OSError:
                time.sleep(0.01)

    thread = threading.Thread(target=disturb)
    thread.start()
    lonely = _call(address, _process(0, 2), seconds=0.5)
    thread.join()
    assert "process 1 of 2 did not connect" in lonely[0]


PROCESS = """
import sys
from luthier.errors import BadInput
from luthier.parallel.distributed import Attendance, call_roll
address, index, count, version = sys.argv[1:]
try:
    call_roll(address, Attendance(int(index), int(count), {"the version of jax": version}), 20)
except BadInput as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.full
def test_real_processes_of_two_versions_end_with_one_line_each(address):
    own = os.environ | {"JAX_COORDINATOR_BIND_ADDRESS": address}
    start = time.monotonic()
    those = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(index), "2", version],
            env=own,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, version in enumerate(["0.10.2", "0.11.0"])
    ]
    line = (
        "process 1 of 2 differs in the version of jax: 0.11.0, where process 0 has 0.10.2; "
        f"{REMEDY}\n"
    )
    assert [(those.communicate()[0], those.returncode) for those in those] == [(line, 2)] * 2
    assert time.monotonic() - start < 30


def test_a_membership_is_read_from_the_environment():
    membership = Membership.of_environment(
        {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_NUM_PROCESSES": "4"}
    )
    assert membership == Membership("10.0.0.1:8476", 4, None)
    assert Membership.of_environment({}) == Membership()
    patient = Membership.of_environment({"LUTHIER_JOIN_SECONDS": "600"})
    assert patient == Membership(join_seconds=600.0)
    with pytest.raises(BadInput, match=r"^LUTHIER_JOIN_SECONDS=long is not a number of seconds$"):
        Membership.of_environment({"LUTHIER_JOIN_SECONDS": "long"})
    with pytest.raises(BadInput) as refusal:
        Membership.of_environment({"JAX_PROCESS_ID": "two"})
    assert str(refusal.value) == "JAX_PROCESS_ID=two is not a whole number"


@pytest.fixture
def calls(monkeypatch):
    """Return what JAX is asked, and who came to which rendezvous; nobody else is there."""
    found = []
    hidden = ("SLURM", "OMPI", "KUBERNETES", "TPU", "JAX_")
    for name in os.environ:
        if name.startswith(hidden):
            monkeypatch.delenv(name)
    monkeypatch.setattr(
        rendezvous.jax.distributed, "initialize", lambda **given: found.append(given)
    )
    monkeypatch.setattr(rendezvous, "call_roll", lambda *given: found.append(given))
    return found


WAITS = {
    "cluster_detection_method": "deactivate",
    "initialization_timeout": 60,
    "heartbeat_timeout_seconds": 15,
}


def test_all_come_to_the_roll_call_before_jax_joins_them(calls):
    rendezvous.join(Membership("10.0.0.1:8476", 2, 0), {"a": "1"})
    rendezvous.join(Membership("127.0.0.1:1", 4, 1, [2, 3], join_seconds=90), {})
    given = {"coordinator_address": "10.0.0.1:8476", "num_processes": 2, "process_id": 0}
    local = {"coordinator_address": "127.0.0.1:1", "num_processes": 4, "process_id": 1}
    assert calls == [
        ("10.0.0.1:8476", Attendance(0, 2, {"a": "1"}), 20),
        {**given, **WAITS},
        ("127.0.0.1:1", Attendance(1, 4, {}), 90),
        {**local, "local_device_ids": [2, 3], **WAITS},
    ]


def test_one_process_calls_no_roll(calls):
    rendezvous.join(Membership("10.0.0.1:8476", 1, 0), {})
    assert [set(call) & {"num_processes"} for call in calls] == [{"num_processes"}]


def _in_slurm(monkeypatch, tasks=2, step=0):
    variables = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_NTASKS": str(tasks),
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    }
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def test_the_cluster_is_detected_before_the_rendezvous(calls, monkeypatch):
    _in_slurm(monkeypatch)
    rendezvous.join(Membership(), {})
    (address, mine, _), given = calls
    assert address.startswith("n1:")
    assert (mine.process, mine.processes) == (1, 2)
    assert given == {
        "coordinator_address": address,
        "num_processes": 2,
        "process_id": 1,
        "local_device_ids": [0],
        **WAITS,
    }
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "2,3")
    rendezvous.join(Membership("n7:1"), {})
    assert calls[2][0] == "n7:1"
    assert calls[3]["local_device_ids"] == [2, 3]


def test_two_runs_in_one_slurm_allocation_take_two_ports(calls, monkeypatch):
    for step in (0, 1):
        _in_slurm(monkeypatch, step=step)
        monkeypatch.delenv("JAX_COORDINATOR_PORT", raising=False)
        rendezvous.join(Membership(), {})
    ports = {address.rpartition(":")[2] for address, *_ in calls[::2]}
    assert len(ports) == 2
    assert all(61440 <= int(port) < 65536 for port in ports)


@pytest.mark.parametrize(
    ("tasks", "visible"), [("1(x2)", "all"), ("1", "all"), ("8(x2)", "3"), ("", "3")]
)
def test_a_slurm_task_that_has_a_machine_to_itself_sees_all_its_devices(
    calls, monkeypatch, tasks, visible
):
    settings = {}

    class Config:
        def update(self, name, value):
            settings[name] = value

    def initialize(**given):
        settings["jax_cuda_visible_devices"] = "3"

    monkeypatch.setattr(rendezvous.jax.distributed, "initialize", initialize)
    monkeypatch.setattr(rendezvous, "_config", Config())
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    rendezvous.join(Membership(), {})
    assert settings["jax_cuda_visible_devices"] == visible


def test_where_no_cluster_is_found_one_line_says_what_to_give():
    code = """
from luthier.errors import BadInput
from luthier.parallel.distributed import Membership, join
try:
    join(Membership(), {})
except BadInput as error:
    print(error)
"""
    hidden = ("SLURM", "OMPI", "KUBERNETES", "TPU", "JAX_COORDINATOR")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == (
        "no cluster was detected, so the index of this process is unknown [set by "
        "--distributed]; give --coordinator HOST:PORT --num-processes N --process-id I\n"
    ), done.stderr


@pytest.mark.parametrize(
    ("membership", "line"),
    [
        (
            Membership("10.0.0.1:8476", 2, 1),
            "cannot join the other processes at 10.0.0.1:8476: DEADLINE_EXCEEDED: nobody there "
            "[set by --coordinator]; start all 2 processes, each with a --process-id of its own",
        ),
        (
            Membership(process_id=0),
            "cannot join the other processes: DEADLINE_EXCEEDED: nobody there "
            "[set by --distributed]",
        ),
    ],
)
def test_whoever_finds_nobody_says_so_in_one_line(calls, monkeypatch, membership, line):
    def nobody(**given):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody\n there")

    monkeypatch.setattr(rendezvous.jax.distributed, "initialize", nobody)
    with pytest.raises(BadInput) as refusal:
        rendezvous.join(membership, {})
    assert str(refusal.value) == line


GLOO = "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:51632"


def test_a_failed_collective_is_explained_by_what_ended_the_other_process(processes):
    def several(index):
        if index == 1:
            farewell("the disk is full")
            return None
        return explain(jax.errors.JaxRuntimeError(GLOO))

    assert str(processes(2, several)[0]) == "process 1 of 2 ended: the disk is full"


def test_without_a_farewell_the_failure_itself_is_reported(processes, monkeypatch):
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.01)
    (error, _) = processes(2, lambda index: explain(jax.errors.JaxRuntimeError(GLOO)))
    assert str(error) == f"one of the 2 processes cannot be reached: {GLOO}"


@pytest.mark.parametrize(
    "error",
    [
        DataError("the connection was reset, says the data"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"),
        ValueError("gloo"),
    ],
)
def test_errors_of_ones_own_stay_what_they_are(processes, error):
    assert processes(2, lambda index: explain(error)) == [error, error]


def test_alone_every_error_is_ones_own():
    error = jax.errors.JaxRuntimeError(GLOO)
    assert explain(error) is error


def test_a_coordinator_that_is_gone_is_not_asked_for_farewells(processes, service, monkeypatch):
    def fail(place):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: the coordinator is gone")

    monkeypatch.setattr(service, "key_value_dir_get", fail)
    (error, _) = processes(2, lambda index: explain(jax.errors.JaxRuntimeError(GLOO)))
    assert str(error) == f"one of the 2 processes cannot be reached: {GLOO}"
