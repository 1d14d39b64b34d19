import json
import threading
import time

import pytest

from luthier.errors import RunError
from luthier.records.object_storage import KEY, Lease


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("luthier.records.object_storage.lease.LEASE_SECONDS", 0.4)
    monkeypatch.setattr("luthier.records.object_storage.lease._LOOK_SECONDS", 0.02)


def _stored_lease(bucket):
    return json.loads(bucket.read(KEY).data)


def test_a_directory_goes_on_with_its_own_copy_at_once(bucket):
    Lease(bucket, "/runs/a")
    start = time.monotonic()
    Lease(bucket, "/runs/a").renew()
    assert time.monotonic() - start < 0.4
    assert _stored_lease(bucket)["directory"] == "/runs/a"


def test_another_one_waits_until_the_former_is_silent(bucket):
    Lease(bucket, "/runs/a")
    start = time.monotonic()
    Lease(bucket, "/runs/b")
    assert 0.2 < time.monotonic() - start < 20
    assert _stored_lease(bucket)["directory"] == "/runs/b"


def test_another_one_is_refused_while_the_former_writes(bucket):
    first = Lease(bucket, "/runs/a")
    done = threading.Event()

    def write():
        while not done.wait(0.05):
            first.renew()

    thread = threading.Thread(target=write)
    thread.start()
    with pytest.raises(RunError) as refusal:
        Lease(bucket, "/runs/b")
    done.set()
    thread.join()
    line = str(refusal.value)
    assert line.startswith(f"{bucket.url} is written by another process, on ")
    assert line.endswith(" in /runs/a; end it, or start a separate run with --new")


def test_what_was_let_go_is_free_at_once(bucket, monkeypatch):
    monkeypatch.setattr("luthier.records.object_storage.lease.LEASE_SECONDS", 60.0)
    Lease(bucket, "/runs/a").release()
    second = Lease(bucket, "/runs/b")
    second.renew()
    assert _stored_lease(bucket)["directory"] == "/runs/b"


def test_whoever_was_taken_over_writes_no_more(bucket):
    first = Lease(bucket, "/runs/a")
    Lease(bucket, "/runs/b")
    with pytest.raises(RunError, match="was taken over by another process on "):
        first.renew()
    first.release()
    assert _stored_lease(bucket)["directory"] == "/runs/b"
    bucket.write(KEY, b"torn")
    with pytest.raises(RunError, match=r"was taken over by another process$"):
        first.renew()
