"""The parent with small programs in the place of processes that train."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from luthier.cli import launcher
from luthier.cli.hosts import Process

PRELUDE = """
import json, os, pathlib, signal, sys, time
index = json.loads(os.environ["LUTHIER_PROCESS"])["membership"]["process_id"]
def note(**notes):
    pathlib.Path(os.environ["LUTHIER_NOTES"]).write_text(json.dumps(notes))
"""


@pytest.fixture
def supervise(tmp_path, monkeypatch, capfd):
    """Return what runs a program as two processes: its exit code, seconds, and what was told."""
    real = subprocess.Popen
    monkeypatch.setattr(
        launcher.tempfile, "mkdtemp", lambda prefix: str(_made(tmp_path / "temporary"))
    )

    def run(program, **patience):
        for name, seconds in patience.items():
            monkeypatch.setattr(launcher, name, seconds)
        code = PRELUDE + textwrap.dedent(program)
        monkeypatch.setattr(
            launcher.subprocess,
            "Popen",
            lambda command, **options: real([sys.executable, "-c", code], **options),
        )
        members = [{"process_id": index, "num_processes": 2} for index in (0, 1)]
        start = time.monotonic()
        found = launcher.supervise([Process(member) for member in members], ["train"])
        captured = capfd.readouterr()
        return found, time.monotonic() - start, captured.out, captured.err

    return run


def _made(path):
    path.mkdir()
    return path


def test_logs_that_are_kept_hold_no_secrets(supervise, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted-0123456789")
    run = tmp_path / "run"
    run.mkdir()
    code, _, _, _ = supervise(f"""
        note(run={str(run)!r})
        print("cannot log in with", os.environ["HF_TOKEN"], "to https://me:abcdefgh@host",
              file=sys.stderr, flush=True)
        os.write(2, bytes([0xE9, 0xFF]) + b" stays")
    """)
    assert code == 0
    logs = [path.read_bytes() for path in (run / "processes").iterdir()]
    assert logs
    for log in logs:
        assert b"cannot log in with [HF_TOKEN] to https://***@host" in log
        assert b"planted" not in log
        assert bytes([0xE9, 0xFF]) + b" stays" in log


def test_the_primary_speaks_and_the_others_write_logs(supervise, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    code, _, out, err = supervise(f"""
        note(run={str(run)!r})
        print("said by", index)
        print("warned by", index, file=sys.stderr)
    """)
    assert (code, out, err) == (0, "said by 0\n", "")
    logs = {path.name: path.read_text() for path in (run / "processes").iterdir()}
    assert logs == {
        "process-0-of-2.log": "warned by 0\n",
        "process-1-of-2.log": "said by 1\nwarned by 1\n",
    }
    assert not (tmp_path / "temporary").exists()


def test_when_one_is_killed_the_others_end_and_one_line_is_printed(supervise, tmp_path):
    code, seconds, _, err = supervise(
        """
        print("C++ stack", file=sys.stderr, flush=True)
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(300)
        """,
        ABRUPT_SECONDS=0.2,
    )
    assert code == 1
    assert seconds < 30
    assert err == f"luthier: process 1 of 2 ended (signal 9) (logs: {tmp_path / 'temporary'})\n"


def test_an_error_of_all_is_printed_once_and_waited_for(supervise):
    code, _, _, err = supervise("""
        time.sleep(0.5 * index)
        print("luthier: no such experiment", file=sys.stderr)
        sys.exit(2)
    """)
    assert (code, err) == (2, "luthier: no such experiment\n")


def test_signals_are_passed_on(supervise, monkeypatch, tmp_path):
    polls = []

    def poll(seconds):
        polls.append(seconds)
        started = list(pathlib.Path(os.environ["STARTED"]).iterdir())
        if len(started) == 2 and "sent" not in polls:
            polls.append("sent")
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds / 2)

    class Clock:
        sleep, monotonic = staticmethod(poll), staticmethod(time.monotonic)

    monkeypatch.setenv("STARTED", str(_made(tmp_path / "started")))
    monkeypatch.setattr(launcher, "time", Clock)
    code, _, _, err = supervise("""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
        pathlib.Path(os.environ["STARTED"], str(index)).touch()
        time.sleep(300)
    """)
    assert (code, err) == (75, "")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
