import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from luthier.cli import main
from luthier.errors import BadInput
from luthier.launch import Here, Job, ProcessGroup, Resources, make_launch
from luthier.storage import ProcessIdentity


def _wait(engine, jobs, states, seconds=60):
    deadline = time.monotonic() + seconds
    while (found := engine.standings(jobs))[0].state not in states:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def _group(place, code, name="group", restarts=0):
    return ProcessGroup(name, ["-c", code], str(place), str(place), {"WORD": "a b"}, restarts)


TELL = "import os; print(os.environ['WORD'], *(os.environ.get(n) for n in {names}))"


def test_all_processes_of_a_group_run_and_know_who_they_are(tmp_path):
    engine = Here(processes=2)
    assert engine.layout == Resources(1, 2)
    code = TELL.format(names=("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "LUTHIER_LOCAL_RANK"))
    group = _group(tmp_path, code)
    jobs = engine.submit([group], str(tmp_path))
    (standing,) = _wait(engine, jobs, ("finished",))
    assert standing.detail == "exit code 0"
    assert group.log_path(0).read_text() == "a b 0 2 0\n"
    assert group.log_path(1).read_text() == "a b 1 2 1\n"


def test_what_died_is_started_again_and_what_was_preempted_is_not_counted(tmp_path):
    code = f"""
import os, pathlib, sys
path = pathlib.Path("{tmp_path}", "starts")
starts = int(path.read_text()) if path.exists() else 0
path.write_text(str(starts + 1))
sys.exit([75, 75, 1, 0][starts])
"""
    engine = Here()
    jobs = engine.submit([_group(tmp_path, code, restarts=1)], str(tmp_path))
    _wait(engine, jobs, ("finished",))
    assert (tmp_path / "starts").read_text() == "4"


def test_a_group_that_dies_too_often_has_failed(tmp_path):
    engine = Here()
    jobs = engine.submit([_group(tmp_path, "raise SystemExit(9)")], str(tmp_path))
    assert _wait(engine, jobs, ("failed", "finished"))[0].detail == "exit code 9"


def test_cancelled_groups_hear_a_signal_and_are_not_started_again(tmp_path):
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *unused: sys.exit(75))
print("ready", flush=True)
time.sleep(60)
"""
    engine = Here()
    groups = [_group(tmp_path, code, f"group-{index}") for index in range(2)]
    jobs = engine.submit(groups, str(tmp_path))
    for group in groups:
        while not (group.log_path(0).exists() and "ready" in group.log_path(0).read_text()):
            time.sleep(0.05)
    assert engine.standings(jobs)[0].state == "running"
    engine.cancel(jobs)
    _wait(engine, jobs[::-1], ("cancelled",))
    _wait(engine, jobs, ("cancelled",))


def test_jobs_whose_processes_were_killed_have_failed(tmp_path):
    engine = Here()
    jobs = engine.submit([_group(tmp_path, "import time; time.sleep(60)")], str(tmp_path))
    os.killpg(int(jobs[0].id), 9)
    assert _wait(engine, jobs, ("failed",))[0].detail == "its processes were killed"


@pytest.fixture
def stranger():
    """A process that has nothing to do with luthier."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def _identity(process, **changes):
    identity = ProcessIdentity.of(process.pid)
    return json.dumps(dataclasses.asdict(dataclasses.replace(identity, **changes)))


@pytest.mark.parametrize(
    ("changes", "state", "detail"),
    [
        ({"started": "1"}, "failed", "its processes were killed"),  # its id was given again
        ({"boot": "another"}, "failed", "its processes were killed"),  # the host was restarted
        ({"host": "tpu-7", "boot": "another"}, "unknown", "it was started on tpu-7, and this is "),
        (None, "unknown", "its record does not identify a process: "),
        ({"pid": -1}, "unknown", "its record does not identify a process: '-1'"),
        ({"pid": 0}, "unknown", "its record does not identify a process: '0'"),
        ({"pid": "self"}, "unknown", "its record does not identify a process: 'self'"),
        ({"pid": 1.5}, "unknown", "its record does not identify a process: '1.5'"),
    ],
)
def test_only_the_process_that_was_started_is_shown_and_sent_a_signal(
    stranger, changes, state, detail, tmp_path, monkeypatch, capsys
):
    """A recorded id is text in a shared file, and soon that of another process."""
    place = "" if changes is None else _identity(stranger, **changes)
    id = str((changes or {}).get("pid", stranger.pid))
    folder = tmp_path / "runs" / "lab" / "ab12" / "launch" / "1"
    folder.mkdir(parents=True)
    (folder / "job.sh").touch()
    job = Job("local", id, "group", str(folder), place)
    make_launch(folder, Here(), "luthier train lab", [], [job])
    signals = []
    monkeypatch.setattr(os, "kill", lambda *given: signals.append(given) if given[1] else None)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *given: signals.append(given))
    monkeypatch.chdir(tmp_path)
    (standing,) = Here().standings([job])
    assert standing.state == state
    assert standing.detail.startswith(detail)
    code = main(["launch", f"--cancel={id}"])
    printed = capsys.readouterr()
    if state == "unknown":
        assert code == 2
        assert printed.err.startswith(f"luthier: job {id} is not cancelled: {detail}")
        assert not (folder / "cancelled").exists()
    else:
        assert (code, printed.err) == (0, f"job {id} has ended already\n")
    Here().cancel([job] if state == "failed" else [])
    assert not signals
    assert stranger.poll() is None


def test_an_exit_code_is_seen_whole_or_not_at_all(tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "mv"
    slow.parent.mkdir()
    slow.write_text(f"""#!/bin/sh
touch {tmp_path}/moving
while [ ! -e {tmp_path}/go ]; do sleep 0.05; done
exec /bin/mv "$@"
""")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    engine = Here()
    jobs = engine.submit([_group(tmp_path, "raise SystemExit(3)")], str(tmp_path))
    deadline = time.monotonic() + 60
    while not (tmp_path / "moving").exists():
        assert engine.standings(jobs)[0].state == "running"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert engine.standings(jobs)[0].state == "running"
    (tmp_path / "go").touch()
    assert _wait(engine, jobs, ("failed",))[0].detail == "exit code 3"


def test_the_script_is_for_people_too(tmp_path):
    engine = Here(processes=3)
    (text,) = engine.files([_group(tmp_path, "pass")], str(tmp_path)).values()
    assert f"#     setsid bash {tmp_path}/job.sh\n" in text
    assert sys.executable in text
    assert "for rank in 0 1 2; do" in text
    assert not list(tmp_path.iterdir())


def test_no_processes_at_all():
    with pytest.raises(BadInput, match=r"^local: processes is less than 1$"):
        Here(processes=0)
