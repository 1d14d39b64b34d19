import concurrent.futures
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from luthier.errors import BadInput
from luthier.parallel.distributed import Attendance, call_roll, rendezvous

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
        "process 1 of 3 did not come within 0 s; see that every host starts, or wait longer with "
        "--join-seconds"
    )
    assert found == [line] * 2


def test_many_that_are_missing_are_named_in_short():
    (problem,) = rendezvous.verdict({0: Attendance(0, 64, {}, "n0")}, [], 25)
    assert problem.what == (
        "processes 1, 2, 3, 4, 5, 6, 7, 8 and 55 more of 64 did not come within 25 s"
    )


def test_what_is_missing_does_not_hide_who_differs():
    came = {0: _process(0, 3, a="1"), 2: _process(2, 3, a="2")}
    first, second = rendezvous.verdict(came, [], 25)
    assert first.what == "process 1 of 3 did not come within 25 s"
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
    assert "process 1 of 2 did not come" in lonely[0]


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
