import pytest

from luthier.errors import RunError
from luthier.records.object_storage import Bucket
from tests import object_stores


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
