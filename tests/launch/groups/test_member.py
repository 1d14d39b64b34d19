import json
import os
import subprocess
import sys
import threading

import pytest

from luthier.errors import BadInput, RunError
from luthier.launch import Rank, member
from luthier.launch.member import read_place


def _place(rank, count=2, start="1-0-0"):
    return Rank(rank, count, rank, start, "127.0.0.1")


def test_all_processes_learn_where_the_first_one_listens(tmp_path):
    found = {}

    def join(rank):
        found[rank] = member.variables(_place(rank), tmp_path / "meetings")

    waiting = threading.Thread(target=join, args=(1,))
    waiting.start()
    join(0)
    waiting.join(30)
    address = found[0]["JAX_COORDINATOR_ADDRESS"]
    assert address.startswith("127.0.0.1:")
    assert found == {
        rank: {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(rank),
        }
        for rank in (0, 1)
    }


def test_groups_side_by_side_and_later_starts_meet_apart(tmp_path):
    starts = [member.variables(_place(0, start=start), tmp_path) for start in ("1-0-0", "1-1-0")]
    assert starts[0]["JAX_COORDINATOR_ADDRESS"] != starts[1]["JAX_COORDINATOR_ADDRESS"]
    assert (
        member.variables(_place(1, start="1-1-0"), tmp_path)["JAX_COORDINATOR_ADDRESS"]
        == (starts[1]["JAX_COORDINATOR_ADDRESS"])
    )


def test_processes_of_one_host_share_its_devices(tmp_path):
    rank_variables = member.variables(
        Rank(0, 1, 1, "1", "127.0.0.1"), tmp_path, devices_per_process=4
    )
    assert rank_variables == {"JAX_LOCAL_DEVICE_IDS": "4,5,6,7"}


def test_a_first_process_that_never_comes_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(member, "MEETING_SECONDS", 0.3)
    with pytest.raises(RunError) as caught:
        member.variables(_place(1), tmp_path)
    assert str(caught.value) == (
        "process 0 of 2 did not publish its address within 0 s "
        f"[set by {tmp_path}/1-0-0.json]; look at its log, and whether it started"
    )


def test_it_becomes_the_program_and_imports_no_jax(tmp_path):
    code = "import os, json; print(json.dumps([os.getpid(), os.environ['JAX_PROCESS_ID']]))"
    own = {"LUTHIER_RANK": "0", "LUTHIER_RANKS": "2", "LUTHIER_LOCAL_RANK": "0"}
    words = ["-X", "importtime", "-m", "luthier.launch.member", "--meeting", str(tmp_path)]
    started = subprocess.Popen(
        [sys.executable, *words, "--", "-c", code],
        env={**os.environ, **own, "LUTHIER_START": "a"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = started.communicate(timeout=60)
    assert json.loads(out) == [started.pid, "0"]
    assert "luthier.errors" in err
    assert "jax" not in err


def test_a_process_that_cannot_join_ends_with_one_line_and_runs_nothing(
    tmp_path, monkeypatch, capsys
):
    for name in [n for n in os.environ if n.startswith(("LUTHIER_RANK", "SLURM_"))]:
        monkeypatch.delenv(name)
    words = ["-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    with pytest.raises(SystemExit) as caught:
        member.main(["--meeting", str(tmp_path / "meetings"), "--", *words])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("luthier: the environment does not name the rank of this process")
    assert not (tmp_path / "ran").exists()


def test_the_variables_of_an_engine_without_its_own():
    environment = {
        "LUTHIER_RANK": "2",
        "LUTHIER_RANKS": "4",
        "LUTHIER_LOCAL_RANK": "1",
        "LUTHIER_START": "a",
    }
    assert read_place(environment) == Rank(2, 4, 1, "a", "127.0.0.1")


def test_slurm_variables_name_the_step_and_the_start(monkeypatch):
    monkeypatch.setattr(member, "_slurm_address", lambda node: f"address of {node}")
    environment = {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURMD_NODENAME": "n2",
    }
    assert read_place(environment) == Rank(5, 8, 1, "12-3-1", "address of n2")
    del environment["SLURM_RESTART_COUNT"]
    assert read_place(environment).start == "12-3-0"


def test_slurm_knows_the_address_of_a_node_whose_name_does_not_resolve(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho NodeName=$3 Arch=x NodeAddr=10.1.2.3 NodeHostName=vm\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert member._slurm_address("n1") == "10.1.2.3"


def test_a_process_without_any_variables_is_rejected():
    with pytest.raises(BadInput) as caught:
        read_place({})
    assert str(caught.value) == (
        "the environment does not name the rank of this process in its group; "
        "start it with srun, or set LUTHIER_RANK, LUTHIER_RANKS, LUTHIER_LOCAL_RANK, LUTHIER_START"
    )
