"""Pauses, clocks, deleted and copied locks, disks without flock: one writer, each step once."""

import errno
import os
import shutil
import signal
import time

import pytest

from luthier.errors import LockLost
from luthier.records import Configuration, RunDirectory, read_metrics
from luthier.storage import holder, write_atomically

WRITER = """
import errno, fcntl, os, socket, sys, time

path, node, flock, clock, steps, heartbeat = sys.argv[1:]
from luthier.errors import LuthierError
from luthier.records import RunDirectory, Step
from luthier.records import JsonLines
from luthier.storage import lock, process, read_json, write_json

def unsupported(descriptor, operation):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

if flock == "without":
    fcntl.flock = unsupported
if node != "here":
    process._boot = lambda: f"the boot of {node}"
    socket.gethostname = lambda: node
real_time = time.time
time.time = lambda: real_time() + float(clock)
lock.HEARTBEAT_SECONDS = float(heartbeat)

def train(directory):
    saved = read_json(f"{path}/saved.json", 0)
    with directory.lock():
        directory.cut_back(saved)
        sink = JsonLines(directory.metrics_path, sync_seconds=0.05, fence=directory.fence)
        print("began", flush=True)
        for step in range(saved + 1, int(steps) + 1):
            sink.emit(Step(step, {"loss": 1 / step}))
            time.sleep(0.005)
            while step == 100 and node == "a" and not os.path.exists(f"{path}/go"):
                time.sleep(0.005)
            if step % 20 == 0:
                sink.flush()
                directory.fence()  # as the checkpoints do
                write_json(f"{path}/saved.json", step)
        sink.close()

try:
    train(RunDirectory(path))
    print("finished", flush=True)
except LuthierError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""
STEPS = 160
HEARTBEAT_SECONDS = 0.5  # long enough that a busy machine does not look like a dead one


@pytest.fixture
def run(tmp_path):
    configuration = Configuration(graph="{}")
    return RunDirectory.create(tmp_path / "runs", "demo", "a1", configuration=configuration)


@pytest.fixture
def write(start, run):
    def begin(path=run.path, node="here", flock="with", clock=0.0, heartbeat=HEARTBEAT_SECONDS):
        return start(WRITER, path, node, flock, clock, STEPS, heartbeat)

    return begin


def began(process):
    assert process.stdout.readline() == "began\n"
    return process


def end(process):
    """Return the exit code and the last line."""
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.splitlines()[-1]


def steps(run):
    return [row["step"] for row in read_metrics(run.metrics_path)]


def wait_for(run, step):
    deadline = time.monotonic() + 30
    while not run.metrics_path.exists() or len(steps(run)) < step:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.full
def test_a_holder_that_was_paused_and_taken_over_writes_nothing_more(write, run):
    """Two nodes on a disk without flock: the first one is suspended, and wakes up again."""
    first = began(write(node="a", flock="without"))
    wait_for(run, 20)
    first.send_signal(signal.SIGSTOP)
    second = began(write(node="b", flock="without"))
    (run.path / "go").touch()
    first.send_signal(signal.SIGCONT)
    code, line = end(first)
    assert code == 1
    assert "another process (process" in line
    assert line.endswith(f"has taken over {run.path}; nothing more was written")
    assert holder(run.lock_path).host == "b"  # the end of the first one has not erased it
    assert end(second) == (0, "finished")
    assert steps(run) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("clock", [7200, -7200])
def test_a_clock_that_is_wrong_by_hours_takes_no_living_lock(write, run, clock):
    first = began(write(node="a", flock="without"))
    os.utime(run.lock_path, (0, time.time() - clock))
    code, line = end(write(node="b", flock="without", clock=clock))
    assert code == 2
    assert "is being written by process" in line
    (run.path / "go").touch()
    assert end(first) == (0, "finished")
    assert steps(run) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("flock", ["with", "without"])
def test_a_deleted_lock_ends_its_holder(write, run, flock):
    first = began(write(flock=flock))
    wait_for(run, 20)
    run.lock_path.unlink()
    second = write(flock=flock)
    code, line = end(first)
    assert code == 1
    assert "is gone" in line or "has taken over" in line
    assert end(second) == (0, "finished")
    assert steps(run) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("flock", ["with", "without"])
def test_a_copied_folder_is_a_run_of_its_own(write, run, tmp_path, flock):
    first = began(write(flock=flock))
    copy = shutil.copytree(run.path, tmp_path / "copy")
    second = write(path=copy, flock=flock)
    assert end(first) == (0, "finished")
    assert end(second) == (0, "finished")
    for directory in (run, RunDirectory(copy)):
        assert steps(directory) == list(range(1, STEPS + 1))


@pytest.mark.full
def test_a_folder_that_is_moved_while_it_is_written_stays_in_one_piece(write, run, tmp_path):
    first = began(write())
    wait_for(run, 28)  # not while it saves, every 20 steps
    run.path.rename(tmp_path / "moved")
    code, line = end(first)
    assert code == 1, line
    assert "the lock file" in line
    assert "was moved or deleted while it was in use; nothing more was written" in line
    assert not run.path.exists()
    moved = RunDirectory(tmp_path / "moved")
    assert end(write(path=moved.path)) == (0, "finished")
    assert steps(moved) == list(range(1, STEPS + 1))


@pytest.mark.full
def test_of_many_that_find_a_dead_holder_one_becomes_the_writer(write, run):
    dead = began(write(node="a", flock="without"))
    dead.kill()
    dead.wait()
    many = [write(node=f"n{index}", flock="without") for index in range(4)]
    ends = [end(process) for process in many]
    assert sorted(code for code, _ in ends) == [0, 2, 2, 2], ends
    assert steps(run) == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_pause_of_a_minute_with_the_real_heartbeat(write, run):
    first = began(write(node="a", flock="without", heartbeat=10.0))
    wait_for(run, 20)
    first.send_signal(signal.SIGSTOP)
    time.sleep(60)
    second = began(write(node="b", flock="without", heartbeat=10.0))
    (run.path / "go").touch()
    first.send_signal(signal.SIGCONT)
    assert end(first)[0] == 1
    assert end(second) == (0, "finished")
    assert steps(run) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_refused_and_left_alone(write, run, tmp_path, kind):
    precious = tmp_path / "authorized_keys"
    precious.write_text("ssh-ed25519 AAAA")
    make = {
        "link": lambda: run.lock_path.symlink_to(precious),
        "pipe": lambda: os.mkfifo(run.lock_path),
        "folder": run.lock_path.mkdir,
    }
    make[kind]()
    code, line = end(write())
    assert code == 2
    assert f"cannot lock {run.lock_path}" in line
    assert "remove it" in line or os.strerror(errno.EISDIR) in line
    assert precious.read_text() == "ssh-ed25519 AAAA"


def test_a_writer_that_is_replaced_while_it_writes_a_file_leaves_it_as_it_is(tmp_path):
    path = tmp_path / "status.json"
    path.write_text("of the other process")

    def fence():  # asked when all is written, and only the name is left to switch
        assert len(list(tmp_path.iterdir())) == 2
        raise LockLost("another process writes here now")

    with pytest.raises(LockLost):
        write_atomically(path, "mine", fence)
    assert path.read_text() == "of the other process"
    assert list(tmp_path.iterdir()) == [path]
