import json
import os
import subprocess
import sys
import threading

import pytest

from luthier.errors import RunError
from luthier.launch import member
from luthier.launch.member import Rank


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
        "process 0 of 2 did not say where it listens in 0 s "
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
