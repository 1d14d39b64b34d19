from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import threading
import time

import pytest

from luthier.errors import LockLost, RunError
from luthier.storage import Holder, Lock, ProcessIdentity, holder

HOLD = """
import sys, time
from luthier.storage import Lock

lock = Lock(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""

HOLD_WITH_A_CHILD = """
import os, sys, time
from luthier.storage import Lock

lock = Lock(sys.argv[1])
child = os.fork()
if child == 0:
    print("locked", os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def myself():
    return Holder(**dataclasses.asdict(ProcessIdentity.current()))


def dead():
    return dataclasses.replace(myself(), pid=2**22 + 1)


def write_name(path, process):
    path.write_text(json.dumps(dataclasses.asdict(process)))


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def held(start, path, code=HOLD):
    process = start(code, path)
    assert process.stdout.readline().startswith("locked")
    return process


def test_a_second_writer_is_refused_with_one_line_that_names_the_first(path, start):
    process = held(start, path)
    with pytest.raises(RunError) as caught:
        Lock(path)
    message = str(caught.value)
    assert f"process {process.pid} on {os.uname().nodename}" in message
    assert f"kill {process.pid}" in message
    assert "\n" not in message
    assert holder(path).pid == process.pid


def test_a_killed_writers_lock_is_taken_over(path, start):
    process = held(start, path)
    process.kill()
    process.wait()
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.took_over.pid == process.pid
        assert f"took over the lock of process {process.pid}" in lock.notice
        assert holder(path).pid == os.getpid()


def test_a_killed_writers_children_do_not_keep_the_lock(path, start):
    process = start(HOLD_WITH_A_CHILD, path)
    child = int(process.stdout.readline().split()[1])
    try:
        process.kill()
        process.wait()
        with Lock(path) as lock:
            assert lock.took_over.pid == process.pid
    finally:
        os.kill(child, 9)


def test_a_released_lock_is_nobodys(path):
    lock = Lock(path)
    lock.release()
    lock.release()
    assert holder(path) is None
    assert path.read_text() == ""
    with Lock(path) as again:
        assert again.took_over is None
        assert again.notice == ""


def test_the_message_names_the_same_process(path):
    with Lock(path), pytest.raises(RunError, match="already written by this process"):
        Lock(path)


def test_waiting_for_a_lock(path):
    first = Lock(path)
    timer = threading.Timer(0.2, first.release)
    timer.start()
    with Lock(path, patience_seconds=10.0) as second:
        assert second.took_over is None
    timer.join()


def test_a_glance_does_not_refuse_a_writer(path):
    """`holder` may hold a shared lock for a moment, of a file that names a dead process."""
    over = threading.Event()

    def glance():
        while not over.is_set():
            holder(path)

    threads = [threading.Thread(target=glance) for _ in range(2)]
    write_name(path, dead())
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            lock = Lock(path)
            lock.release()
            write_name(path, dead())
    finally:
        over.set()
        for thread in threads:
            thread.join()


def elsewhere(path):
    """Have the file name a holder on another machine, whose flock is not seen here."""
    there = Holder(123, "other-host", boot="another-boot", started="1", since=time.time())
    path.write_text(json.dumps(dataclasses.asdict(there)))
    return there


def test_a_writer_on_another_machine_is_seen_by_its_heartbeat(path):
    elsewhere(path)
    over = threading.Event()

    def heartbeat():
        while not over.wait(0.02):
            os.utime(path)

    thread = threading.Thread(target=heartbeat)
    thread.start()
    try:
        with pytest.raises(RunError, match="process 123 on other-host"):
            Lock(path, heartbeat_seconds=0.3)
        assert holder(path).host == "other-host"
    finally:
        over.set()
        thread.join()


def test_a_silent_writer_on_another_machine_is_taken_over(path):
    there = elsewhere(path)
    with Lock(path, heartbeat_seconds=0.05) as lock:
        assert lock.took_over == there
    there = elsewhere(path)
    os.utime(path, (0, 0))
    assert holder(path) is None
    with Lock(path, heartbeat_seconds=0.05) as lock:
        assert lock.took_over == there


def test_a_writer_on_another_machine_that_removes_its_lock_meanwhile_is_not_waited_for(path):
    elsewhere(path)
    timer = threading.Timer(0.2, path.unlink)
    timer.start()
    with Lock(path, heartbeat_seconds=1.0) as lock:
        assert lock.took_over is None
        assert holder(path).pid == os.getpid()
    timer.join()


def test_the_holder_shows_a_heartbeat(path):
    with Lock(path, heartbeat_seconds=0.02):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 5
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_recycled_process_id_is_not_the_holder(path):
    impostor = dataclasses.replace(myself(), started="1")
    path.write_text(json.dumps(dataclasses.asdict(impostor)))
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.took_over == impostor


def test_a_torn_lock_file_is_free(path):
    path.write_text('{"pid": 12')
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.took_over is None


def test_where_the_file_system_cannot_lock_the_process_decides(path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    copy = path.with_name("copy")
    with Lock(path):
        copy.write_bytes(path.read_bytes())
        assert holder(path).pid == os.getpid()
        assert holder(copy) is None
        with pytest.raises(RunError, match="already written by this process"):
            Lock(path)
    with Lock(path):
        pass
    write_name(path, dead())
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.took_over == dead()


def test_places_that_cannot_be_locked_are_one_line(tmp_path):
    with pytest.raises(RunError, match=r"cannot lock .*: No such file"):
        Lock(tmp_path / "none" / "lock")
    with pytest.raises(RunError, match="cannot lock"):
        Lock("/sys/lock")
    assert holder(tmp_path / "none" / "lock") is None


@pytest.fixture
def claim(path):
    """The file that says whose name is being written into the lock."""
    return path.with_name("lock.claim")


def test_a_claim_whose_owner_was_killed_delays_nobody(path, claim):
    write_name(claim, dead())
    began = time.monotonic()
    with Lock(path):  # heartbeats of ten seconds
        assert holder(path).pid == os.getpid()
    assert time.monotonic() - began < 5
    assert not claim.exists()


@pytest.mark.parametrize("text", [b"", json.dumps({"pid": 1, "host": "other-host"}).encode()])
def test_a_claim_whose_owner_cannot_be_looked_up_is_given_time(path, claim, text):
    """The owner was killed before it wrote its name, or is on another machine."""
    claim.write_bytes(text)
    began = time.monotonic()
    with Lock(path, heartbeat_seconds=0.05):
        assert time.monotonic() - began >= 0.15
    assert not claim.exists()


def test_a_claim_of_a_living_process_is_waited_for_however_long(path, claim):
    write_name(claim, myself())
    written = threading.Event()

    def finish():
        written.set()
        claim.unlink()

    timer = threading.Timer(0.3, finish)
    timer.start()
    with Lock(path, heartbeat_seconds=0.01):
        assert written.is_set()
    timer.join()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_that_is_removed_while_it_is_taken_is_made_again(path, monkeypatch, replaced):
    flock, calls = fcntl.flock, []

    def overtaken(descriptor, operation):
        calls.append(operation)
        if len(calls) == 1:
            path.unlink()
            if replaced:
                path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", overtaken)
    with Lock(path) as lock:
        lock.check()
        assert holder(path).pid == os.getpid()


@pytest.mark.parametrize(
    ("named", "refusal"),
    [
        (True, r"is still held by a child of process 4194305 on .*; end that child process"),
        (False, r"is being written by another process; wait for it"),
    ],
)
def test_a_file_that_is_locked_is_never_taken_whatever_it_names(path, named, refusal):
    """The holder was killed and its child has its descriptor, or its name is not written yet."""
    path.touch()
    if named:
        write_name(path, dead())
    with open(path) as inherited:
        fcntl.flock(inherited, fcntl.LOCK_EX)
        assert (holder(path) is not None) == named
        with pytest.raises(RunError, match=refusal):
            Lock(path, patience_seconds=0.0)
    with Lock(path):
        pass


def test_a_disk_that_fails_while_it_is_locked_is_one_line(path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(RunError, match=r"cannot lock .*: Input/output error"):
        Lock(path)


def test_a_disk_that_is_away_for_a_moment_costs_no_lock(path, monkeypatch):
    """No write is allowed meanwhile, and the heartbeats continue when it is back."""
    opening, is_away, num_refused = os.open, threading.Event(), []

    def refuse(place, *arguments, **options):
        if is_away.is_set() and os.fspath(place) == str(path):
            num_refused.append(1)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opening(place, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with Lock(path, heartbeat_seconds=0.02) as lock:
        is_away.set()
        with pytest.raises(OSError, match="Input/output error") as caught:
            lock.check()
        assert not isinstance(caught.value, LockLost)
        until(lambda: len(num_refused) > 2)  # of heartbeats, too
        is_away.clear()
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0)
        lock.check()


@pytest.mark.parametrize("pid", [0, -1])
def test_ids_of_groups_of_processes_are_of_no_process(path, pid):
    """Signals to them reach somebody: they must not make a damaged lock file look held."""
    assert not ProcessIdentity(pid, os.uname().nodename).alive
    write_name(path, dataclasses.replace(myself(), pid=pid, started=""))
    assert holder(path) is None
    with Lock(path):
        pass
