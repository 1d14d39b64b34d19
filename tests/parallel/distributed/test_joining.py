import os
import subprocess
import sys

import pytest

from luthier.errors import BadInput
from luthier.parallel.distributed import Membership, joining


def test_the_environment_tells_what_it_knows():
    told = Membership.of_environment(
        {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_NUM_PROCESSES": "4"}
    )
    assert told == Membership("10.0.0.1:8476", 4, None)
    assert Membership.of_environment({}) == Membership()
    with pytest.raises(BadInput) as refusal:
        Membership.of_environment({"JAX_PROCESS_ID": "two"})
    assert str(refusal.value) == "JAX_PROCESS_ID=two is not a whole number"


def test_what_is_given_and_how_long_is_waited(monkeypatch):
    calls = []
    monkeypatch.setattr(joining.jax.distributed, "initialize", lambda **given: calls.append(given))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    joining.join(Membership("10.0.0.1:8476", 2, 0))
    joining.join(Membership())
    joining.join(Membership("127.0.0.1:1", 2, 1, [2, 3]))
    waits = {"initialization_timeout": 300, "heartbeat_timeout_seconds": 15}
    given = {"coordinator_address": "10.0.0.1:8476", "num_processes": 2, "process_id": 0}
    local = {"coordinator_address": "127.0.0.1:1", "num_processes": 2, "process_id": 1}
    assert calls == [
        {**given, "cluster_detection_method": "deactivate", **waits},
        waits,
        {**local, "local_device_ids": [2, 3], **waits},
    ]


def test_two_runs_in_one_slurm_allocation_take_two_ports(monkeypatch):
    ports = []
    monkeypatch.setattr(
        joining.jax.distributed,
        "initialize",
        lambda **given: ports.append(os.environ.pop("JAX_COORDINATOR_PORT")),
    )
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for step in ("0", "1"):
        monkeypatch.setenv("SLURM_STEP_ID", step)
        joining.join(Membership())
    assert len(set(ports)) == 2
    assert all(61440 <= int(port) < 65536 for port in ports)


@pytest.mark.parametrize(
    ("tasks", "visible"), [("1(x2)", "all"), ("1", "all"), ("8(x2)", "3"), ("", "3")]
)
def test_a_slurm_task_that_has_a_machine_to_itself_sees_all_its_devices(
    monkeypatch, tasks, visible
):
    settings = {}

    class Config:
        def update(self, name, value):
            settings[name] = value

    def initialize(**given):
        settings["jax_cuda_visible_devices"] = "3"

    monkeypatch.setattr(joining.jax.distributed, "initialize", initialize)
    monkeypatch.setattr(joining, "_config", Config())
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    joining.join(Membership())
    assert settings["jax_cuda_visible_devices"] == visible


def test_where_no_cluster_is_found_one_line_says_what_to_give():
    code = """
from luthier.errors import BadInput
from luthier.parallel.distributed import Membership, join
try:
    join(Membership())
except BadInput as error:
    print(error)
"""
    hidden = ("SLURM", "OMPI", "KUBERNETES", "TPU", "JAX_COORDINATOR")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == (
        "no cluster is found here that tells which process this is [set by --distributed]; give "
        "--coordinator HOST:PORT --num-processes N --process-id I\n"
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
            Membership(),
            "cannot join the other processes: DEADLINE_EXCEEDED: nobody there "
            "[set by --distributed]",
        ),
    ],
)
def test_whoever_finds_nobody_says_so_in_one_line(monkeypatch, membership, line):
    def nobody(**given):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody\n there")

    monkeypatch.setattr(joining.jax.distributed, "initialize", nobody)
    with pytest.raises(BadInput) as refusal:
        joining.join(membership)
    assert str(refusal.value) == line
