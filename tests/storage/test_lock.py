from __future__ import annotations

import dataclasses
import json
import os
import threading
import time

import pytest

from luthier.errors import RunError
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
    dead = dataclasses.replace(myself(), pid=2**22 + 1)
    over = threading.Event()

    def glance():
        while not over.is_set():
            holder(path)

    threads = [threading.Thread(target=glance) for _ in range(2)]
    path.write_text(json.dumps(dataclasses.asdict(dead)))
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            lock = Lock(path)
            lock.release()
            path.write_text(json.dumps(dataclasses.asdict(dead)))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def elsewhere(path):
    """Have the file name a holder on another machine, whose flock is not seen here."""
    there = Holder(123, "other-host", boot="another-boot", started="1", since=time.time())
    path.write_text(json.dumps(dataclasses.asdict(there)))
    return there


def test_a_writer_on_another_machine_is_seen_by_its_pulse(path):
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


def test_the_holder_shows_a_pulse(path):
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
    dead = dataclasses.replace(myself(), pid=2**22 + 1)
    path.write_text(json.dumps(dataclasses.asdict(dead)))
    assert holder(path) is None
    with Lock(path) as lock:
        assert lock.took_over == dead


def test_places_that_cannot_be_locked_are_one_line(tmp_path):
    with pytest.raises(RunError, match=r"cannot lock .*: No such file"):
        Lock(tmp_path / "none" / "lock")
    with pytest.raises(RunError, match="cannot lock"):
        Lock("/sys/lock")
    assert holder(tmp_path / "none" / "lock") is None
