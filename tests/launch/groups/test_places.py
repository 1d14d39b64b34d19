import pytest

from luthier.errors import BadInput
from luthier.launch import member
from luthier.launch.member import Rank, read_place


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
        "nothing tells which process of the group this is; start it with srun, or set "
        "LUTHIER_RANK, LUTHIER_RANKS, LUTHIER_LOCAL_RANK, LUTHIER_START"
    )
