from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from luthier.cli import End, Process, judge, launcher
from luthier.errors import RunError

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


SILENT = """\
E1122 00:43:39.463327 coordination_service_agent.cc:289] Polled an error from the service.
F1122 00:43:39.463515 client.h:80] Terminating process because the JAX distributed service detected
fatal errors. UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
{}
The tasks have crashed. Check the task logs for an earlier error, or scheduler events.

RPC: /xla.coordination.CoordinationService/PollForError
*** Check failure stack trace: ***
    @     0x7f63c1e40634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
"""
NO_COORDINATOR = """\
F1122 00:43:31.378293 client.h:80] Terminating process. absl::Status: UNAVAILABLE: Failed to send RPC to \
coordination service. Either the leader task was preempted/died/restarted unexpectedly.
"""  # noqa: E501


@pytest.fixture
def end(tmp_path):
    """Return a function from a process, its exit code and its log to how it ended."""

    def make(index, code, log="", count=2, **notes):
        path = tmp_path / f"process-{index}.log"
        path.write_text(log)
        membership = {"process_id": index, "num_processes": count}
        return End(code, path, notes, membership)

    return make


@pytest.fixture
def run(tmp_path):
    """Return the notes about a run that is saved at step 20."""
    saved = tmp_path / "run" / "checkpoints" / "20"
    saved.mkdir(parents=True)
    (saved / "commit.json").write_text("{}")
    return {"run": str(tmp_path / "run"), "again": "luthier train configs.lm.quickstart"}


@pytest.mark.parametrize("code", [0, 75, 130])
def test_an_end_together_needs_no_word(end, code):
    found = judge([end(0, code), end(1, code)])
    assert (found.code, found.lines(None)) == (code, [])


def test_the_killed_process_is_named_with_what_is_saved(end, run, tmp_path):
    found = judge([end(0, None, **run), end(1, -9)])
    assert found.code == 1
    assert found.lines(tmp_path / "logs") == [
        "process 1 of 2 ended (signal 9); the run is saved at step 20; resume it with: luthier "
        f"train configs.lm.quickstart (logs: {tmp_path / 'logs'})"
    ]


def test_before_the_first_save_it_is_to_be_started_again(end, tmp_path):
    notes = {"run": str(tmp_path / "run"), "again": "luthier train tiny"}
    found = judge([end(0, -9, **notes), end(1, None)])
    assert found.lines(None) == [
        "process 0 of 2 ended (signal 9); no checkpoint of the run is saved yet; restart it with: "
        "luthier train tiny"
    ]


@pytest.mark.parametrize("names", ["3", "/job:jax_worker/replica:0/task:3"])
def test_whom_jax_names_is_blamed_and_not_whom_it_ended(end, run, names):
    found = judge([end(1, -6, SILENT.format(names), count=4, **run)])
    assert found.code == 75
    assert found.reasons == ["process 3 of 4 ended, is stopped, or cannot be reached"]
    assert len(found.lines(None)) == 1


def test_without_the_coordinator_the_others_blame_it(end):
    found = judge([end(1, -6, NO_COORDINATOR)])
    line = "process 0 of 2 (the coordinator) ended, is stopped, or cannot be reached"
    assert (found.code, found.lines(None)) == (75, [line])


@pytest.mark.parametrize(
    ("log", "notes"),
    [
        ("Fatal Python error: Aborted\n", {"silent": "process 2 of 3 is stopped"}),
        ("luthier: one of the 3 processes cannot be reached: gloo\n", {"unreachable": True}),
        ("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n", {}),
    ],
)
def test_the_loss_of_another_machine_is_no_failure_of_this_one(end, log, notes):
    code = 1 if "unreachable" in notes else -6
    assert judge([end(0, code, log, count=3, **notes)]).code == 75
    assert judge([end(0, code, log, count=3, **notes), end(1, None, count=3)]).code == 75
    # Here all processes are of this machine, which is not lost; or one has reported why it ended.
    everyone = [end(0, code, log, count=3, **notes), end(1, None, count=3), end(2, None, count=3)]
    assert judge(everyone).code == 1
    notes["lost"] = "process 1 of 3 ended: no data"
    assert judge([end(0, -6, log, count=3, **notes)]).code == 1


def test_a_loss_before_anything_new_is_saved_is_not_repeated_without_end(end, run):
    (step,) = (int(path.name) for path in pathlib.Path(run["run"], "checkpoints").iterdir())
    for start, code in ((step - 1, 75), (step, 1)):
        found = judge([end(1, -6, NO_COORDINATOR, **run, start=start)])
        assert found.code == code
        (line,) = found.lines(None)
        assert line.endswith(f"; the run is saved at step {step}; resume it with: {run['again']}")


def test_who_is_lost_at_the_end_is_named(end):
    log = (
        "F1126 client.h:80] Terminating process. INTERNAL: Shutdown barrier has failed.\n"
        "Barrier result: 'INTERNAL: Barrier failed because: task is set to ERROR: UNAVAILABLE: "
        "Task 1 heartbeat timeout.'\n"
    )
    found = judge([end(0, -6, log)])
    line = "process 1 of 2 ended, is stopped, or cannot be reached"
    assert (found.code, found.reasons) == (75, [line])


def test_who_is_lost_in_a_collective_may_be_unknown(end):
    log = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    line = "another process of 2 ended, is stopped, or cannot be reached"
    assert judge([end(1, -6, log)]).reasons == [line]
    assert judge([end(1, -6, log + NO_COORDINATOR)]).reasons == [
        "process 0 of 2 (the coordinator) ended, is stopped, or cannot be reached"
    ]


def test_a_store_that_cannot_be_asked_hides_no_reason(end, run, monkeypatch):
    def refuse(store):
        raise RunError("gs://lab/run/checkpoints/: no answer in 60 s")

    monkeypatch.setattr("luthier.checkpoint.Store.latest", refuse)
    found = judge([end(1, -9, **run)])
    assert found.lines(None) == [
        "process 1 of 2 ended (signal 9); its checkpoints cannot be listed now; resume it with: "
        "luthier train configs.lm.quickstart"
    ]


def test_a_process_that_was_seen_to_die_comes_before_what_the_others_say(end):
    found = judge([end(0, -9), end(1, -6, NO_COORDINATOR)])
    assert found.lines(None) == ["process 0 of 2 ended (signal 9)"]


def test_bad_input_of_all_is_reported_once(end, run):
    log = "a warning\nluthier: optimizer.b2: 3 is too much\nluthier: no data\n"
    found = judge([end(0, 2, log, **run), end(1, 2, log)])
    assert found.code == 2
    assert found.lines(None) == ["optimizer.b2: 3 is too much", "no data"]


def test_a_process_that_ends_in_silence_is_named(end):
    found = judge([end(0, None), end(1, 1, "Fatal Python error\n")])
    assert found.lines(None) == ["process 1 of 2 ended (exit code 1)"]


def test_which_process_it_was_may_be_known_by_its_notes_only(tmp_path):
    (tmp_path / "log").write_text("")
    found = judge([End(-11, tmp_path / "log", {"process": 5, "processes": 8}, {})])
    assert found.lines(None) == ["process 5 of 8 ended (signal 11)"]


def test_what_a_process_heard_of_another_comes_before_whom_jax_names(end):
    lost = "process 0 of 2 ended: the disk is full"
    found = judge([end(1, -6, NO_COORDINATOR, lost=lost)])
    assert found.lines(None) == [lost]


def test_an_abort_beside_a_kill_is_what_came_of_it(end):
    found = judge([end(0, -6, "terminate called: Gloo all-reduce failed\n"), end(1, -9)])
    assert found.lines(None) == ["process 1 of 2 ended (signal 9)"]
    assert judge([end(0, -6), end(1, None)]).lines(None) == ["process 0 of 2 ended (signal 6)"]


def test_bad_input_of_one_is_the_cause_where_jax_ended_the_others_over_it(end, run):
    full = "cannot write runs/metrics.jsonl: No space left on device; free space on that disk"
    first = end(0, 2, f"luthier: {full}\n", **run)
    for code in (-6, 1, None):
        found = judge([first, end(1, code, NO_COORDINATOR, lost=f"process 0 of 2 ended: {full}")])
        assert (found.code, found.lines(None)) == (2, [full])
    assert judge([first, end(1, -9)]).code == 1


def test_an_abort_gives_way_to_the_notes_of_the_process(end):
    line = "process 0 of 2 ended, is stopped, or cannot be reached; stacks: runs/stacks"
    found = judge([end(1, -6, "Fatal Python error: Aborted\n", silent=line)])
    assert (found.code, found.reasons) == (75, [line])
    assert judge([end(1, -6)]).reasons == ["process 1 of 2 ended (signal 6)"]


@pytest.mark.parametrize("code", [-6, None])
def test_the_primary_knows_best_who_is_silent(end, code):
    """The others hear it alone, and late where the machine is busy."""
    ends = [end(i, -6, silent="process 0 of 4 ...") for i in (1, 2)]
    primary = end(0, code, silent="process 3 of 4 ...")
    assert judge([*ends, primary, end(3, None)]).reasons == ["process 3 of 4 ..."]


def test_the_message_of_a_process_comes_before_its_silence(end):
    ends = [end(0, -6, silent="process 1 of 3 is silent"), end(2, -6, lost="process 1 of 3 ended")]
    assert judge(ends).reasons == ["process 1 of 3 ended"]


def test_who_is_heard_of_again_is_no_reason(end):
    assert judge([end(0, -6, silent=None)]).reasons == ["process 0 of 2 ended (signal 6)"]
