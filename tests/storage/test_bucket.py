import pytest

from luthier.errors import RunError, StoreError, StoreUnavailable
from luthier.records.object_storage import Bucket
from luthier.storage import bucket as buckets
from tests import object_stores
from tests.object_stores import EXPIRED, Fault


@pytest.fixture(params=["file", "gs", "s3"])
def bucket(request, tmp_path, monkeypatch):
    """Return a folder of each kind of store; those in the network are emulated."""
    if request.param == "file":
        yield Bucket(f"file://{tmp_path}/lab/runs/")
        return
    with object_stores.serving({"lab": {}}) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        yield Bucket(f"{request.param}://lab/runs")


def test_objects_are_written_read_listed_and_deleted(bucket):
    assert bucket.read("a/b.txt").data is None
    assert bucket.write("a/b.txt", b"one")
    assert bucket.write("a/b.txt", b"two")
    assert bucket.write("c.txt", b"")
    assert bucket.read("a/b.txt").data == b"two"
    assert bucket.read("c.txt").data == b""
    assert list(bucket.list()) == ["a/b.txt", "c.txt"]
    assert list(bucket.list("a/")) == ["a/b.txt"]
    assert (bucket / "a").read("b.txt").data == b"two"
    bucket.delete("a/b.txt")
    bucket.delete("a/b.txt")
    assert list(bucket.list()) == ["c.txt"]


def test_of_two_writers_who_read_the_same_one_wins(bucket):
    absent = bucket.read("lock")
    assert bucket.write("lock", b"mine", absent)
    assert not bucket.write("lock", b"yours", absent)
    first = bucket.read("lock")
    assert first.data == b"mine"
    assert bucket.write("lock", b"mine again", first)
    assert not bucket.write("lock", b"yours", first)
    assert bucket.read("lock").data == b"mine again"


def test_what_is_no_url_of_a_store_is_refused():
    with pytest.raises(RunError) as refusal:
        Bucket("lab/runs")
    assert str(refusal.value) == (
        "'lab/runs' is not the URL of an object store; write gs://..., s3://..., file://..."
    )


def test_a_store_that_refuses_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as refusal:
        Bucket(f"file://{tmp_path}/file/below").write("a", b"")
    line = str(refusal.value)
    assert line.startswith(f"file://{tmp_path}/file/below/a: ")
    assert line.endswith("; check the network and your credentials")
    assert "\n" not in line


@pytest.fixture(params=["gs", "s3"])
def trouble(request, monkeypatch):
    """Return a folder of an emulated store, and the list of its faults."""
    faults = []
    with object_stores.serving({"lab": {}}, faults=faults) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        yield Bucket(f"{request.param}://lab/runs", patience_seconds=1), faults


def test_trouble_that_passes_is_waited_for_and_otherwise_a_requeue(trouble):
    bucket, faults = trouble
    faults.append(Fault(status=503, times=1))
    assert bucket.write("a", b"one")
    faults[:] = [Fault(status=429)]
    with pytest.raises(StoreUnavailable) as refused:
        bucket.read("a")
    assert refused.value.exit_code == 75
    assert str(refused.value).startswith(f"{bucket.url}a: ABORTED: ")
    assert "(HTTP 429)" in str(refused.value)
    assert str(refused.value).endswith(
        "; wait until the store responds again, or check the network"
    )
    faults.clear()
    assert bucket.read("a").data == b"one"


def test_a_refusal_that_stays_is_bad_input_with_its_remedy(trouble):
    bucket, faults = trouble
    status, body = EXPIRED[bucket.url[:2]]
    for fault, remedy in (
        (Fault(status=403), "; check that your credentials may list, read, write and delete"),
        (Fault(status=status, body=body), "; renew your credentials"),
    ):
        faults[:] = [fault]
        for ask in (lambda: bucket.read("a"), lambda: bucket.write("a", b""), bucket.list):
            with pytest.raises(StoreError) as refused:
                ask()
            assert refused.value.exit_code == 2
            assert remedy in str(refused.value)
            assert "\n" not in str(refused.value)


def test_a_condition_that_fails_without_another_writer_is_no_lost_race(trouble, monkeypatch):
    bucket, faults = trouble
    monkeypatch.setattr(buckets.time, "sleep", lambda seconds: None)
    first = bucket.read("lock")
    faults.append(Fault("(PUT|POST) ", status=412, times=2))
    assert bucket.write("lock", b"mine", first)
    # Its answer is lost, and the second attempt finds the object of the first.
    faults[:] = [Fault("(PUT|POST) ", resets="answer", times=1)]
    assert bucket.write("lock", b"mine again", bucket.read("lock"))
    assert not bucket.write("lock", b"yours", first)
    faults[:] = [Fault("(PUT|POST) ", status=412)]
    with pytest.raises(StoreError, match="refuses to replace the object that it returns; use a s"):
        bucket.write("lock", b"never", bucket.read("lock"))


def test_half_an_upload_is_found_out(trouble):
    bucket, faults = trouble
    faults.append(Fault("(PUT|POST) ", lost_bytes=3))
    for data in (b"abc", b"0123456789"):
        bucket.write("a", data)
        with pytest.raises(StoreUnavailable, match="runs/a was stored incompletely"):
            bucket.check_arrival("a", data)
    faults.clear()
    for data in (b"", b"abc"):
        bucket.write("a", data)
        bucket.check_arrival("a", data)


def test_the_patience_with_a_store_is_a_number_of_seconds():
    assert buckets.most_patience_seconds({}) == 300
    assert buckets.most_patience_seconds({"LUTHIER_STORE_SECONDS": "2.5"}) == 2.5
    with pytest.raises(RunError, match="LUTHIER_STORE_SECONDS=soon is not a number of seconds"):
        buckets.most_patience_seconds({"LUTHIER_STORE_SECONDS": "soon"})
