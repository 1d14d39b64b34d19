import json
import sys

import jax
import pytest

from luthier.cli.hosts import Process, joined
from luthier.errors import DataError, Problem
from luthier.parallel import distributed


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
