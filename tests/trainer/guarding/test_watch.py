import json
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from luthier.parallel import distributed
from luthier.parallel.distributed import NOTES_VARIABLE, Liveness, Notes
from luthier.records import Watchdog
from luthier.trainer import Watch

HANGS = """
import sys, threading, time
from luthier.records import Watchdog
from luthier.records import Status, write_status
from luthier.trainer import Watch
import pathlib

def waits_for_ever():
    threading.Event().wait()

run = pathlib.Path(sys.argv[1])
write_status(run / "status.json", Status("running", step=7))
with Watch(Watchdog(seconds=0.4), "luthier train tiny") as watch:
    watch.enter("compiling")
    time.sleep(1)  # which has a limit of its own
    watch.opened(run, "luthier train tiny")
    watch.beat(7)
    waits_for_ever()
"""


def wait(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.full
def test_a_run_that_hangs_is_ended_with_its_stacks(tmp_path):
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    line = (
        f"nothing has happened for 0.4 s, after step 7; stacks: {tmp_path / 'stacks'}; "
        "to resume: luthier train tiny"
    )
    assert done.stderr == f"luthier: {line}\n"
    stacks = (tmp_path / "stacks" / "process-0.txt").read_text()
    assert "in waits_for_ever" in stacks
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["status"], status["step"], status["message"]) == ("failed", 7, line)


def test_a_notebook_gets_a_line_and_lives(tmp_path, capsys):
    with Watch(Watchdog(seconds=0.2), "") as watch:
        watch.opened(tmp_path, "")
        watch.beat(3)
        wait(lambda: (tmp_path / "stacks" / "process-0.txt").exists())
        wait(lambda: not watch._thread.is_alive())
    line = f"luthier: nothing has happened for 0.2 s, after step 3; stacks: {tmp_path / 'stacks'}\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("watchdog", [None, Watchdog(seconds=0.5)])
def test_a_run_that_goes_on_is_left_alone(tmp_path, watchdog, capsys):
    with Watch(watchdog, "") as watch:
        watch.opened(tmp_path, "")
        for step in range(12):
            watch.beat(step)
            time.sleep(0.1)
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_silent_processes_are_reported_anew_when_they_change_and_no_more_when_all_are_heard(
    tmp_path, monkeypatch
):
    notes, standings = Notes(tmp_path / "notes"), [Liveness()]
    monkeypatch.setenv(NOTES_VARIABLE, str(notes.path))
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(distributed, "process_count", lambda: 4)
    heartbeats = Mock(standing=lambda: standings[-1])
    monkeypatch.setattr("luthier.trainer.watchdog.Heartbeats", lambda at: heartbeats)
    monkeypatch.setattr("luthier.trainer.watchdog.POLL_SECONDS", 0.02)
    with Watch(Watchdog(seconds=60.0), "luthier train tiny") as watch:
        watch.opened(tmp_path, "luthier train tiny")
        for silent, description in [
            ((0,), "process 0 of 4 ended, is stopped, or cannot be reached"),
            ((2, 3), "processes 2, 3 of 4 ended, are stopped, or cannot be reached"),
        ]:
            standings.append(Liveness(silent=silent))
            line = f"{description}; stacks: {tmp_path / 'stacks'}"
            wait(lambda line=line: notes.read().get("silent") == line)
        standings.append(Liveness())
        wait(lambda: notes.read()["silent"] is None)
