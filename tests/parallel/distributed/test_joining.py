import os
import subprocess
import sys

import pytest

from luthier.errors import BadInput
from luthier.parallel.distributed import Attendance, Membership, rendezvous


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
