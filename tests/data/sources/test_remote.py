import os
import subprocess
import sys
import time

import pytest

from luthier.data import Field, JsonRecords, TextFiles
from luthier.data.sources import matching_files, read_file, remote
from luthier.errors import DataError
from tests.object_stores import environment, serving

OBJECTS = {
    "c4/en/part-00000": b"a first text",
    "c4/en/part-00001": b"the next",
    "c4/en/deep/part-2": b"deep",
    "c4/lines.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
    "c4x": b"not in the folder",
}


@pytest.fixture(scope="module")
def stores():
    """The requests of two stores; a native library reads the environment of the first one."""
    before = dict(os.environ)
    with serving({"bucket": OBJECTS, "empty": {}}) as (address, requests):
        os.environ.update(environment(address))
        yield requests
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remote._copied.cache_clear()
    return tmp_path / "luthier" / "remote"


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("c4/en/part-*", ["c4/en/part-00000", "c4/en/part-00001"]),
        ("c4/en/part-0000[1-9]", ["c4/en/part-00001"]),
        ("c4/**/part-*", ["c4/en/deep/part-2", "c4/en/part-00000", "c4/en/part-00001"]),
        ("c4/*", ["c4/lines.jsonl"]),
        ("c4/en/part-00001", ["c4/en/part-00001"]),
        ("**", sorted(OBJECTS)),
    ],
)
def test_patterns(scheme, pattern, found, stores):
    root = f"{scheme}://bucket/"
    assert matching_files(root + pattern) == tuple(root + name for name in found)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_objects_are_copied_once(scheme, stores, cache):
    path = f"{scheme}://bucket/c4/en/part-00000"
    assert read_file(path) == b"a first text"
    copy = remote.local_copy(path)
    assert copy.startswith(f"{cache}/{scheme}/bucket/c4/en/part-00000@")
    del stores[:]
    remote._copied.cache_clear()
    assert remote.local_copy(path) == copy  # in another process
    assert len(stores) == 1  # which asks for the version of the object alone
    remote.local_copy(path)
    assert len(stores) == 1
    assert os.listdir(os.path.dirname(copy)) == [os.path.basename(copy)]


def test_a_local_path_stays(tmp_path):
    assert remote.local_copy(f"{tmp_path}/none") == f"{tmp_path}/none"
    assert not remote.is_remote("/gs://bucket")


def test_sources_read_objects(stores):
    texts = TextFiles("gs://bucket/c4/en/part-*")
    assert [texts[0], texts[1]] == [b"a first text", b"the next"]
    assert texts.name(1) == "gs://bucket/c4/en/part-00001"
    lines = Field(JsonRecords("s3://bucket/c4/*.jsonl"))
    assert [lines[0], lines[1]] == [b"one", b"two"]
    assert lines.name(1) == "s3://bucket/c4/lines.jsonl:2"


def test_what_is_missing(stores):
    with pytest.raises(DataError) as error:
        remote.local_copy("gs://bucket/c4/none")
    assert str(error.value) == "gs://bucket/c4/none: there is no such object; check its name"
    with pytest.raises(DataError) as error:
        matching_files("gs://empty/c4/*")
    what = "no object matches 'gs://empty/c4/*'"
    assert str(error.value) == f"{what}; check the pattern, and whether you may list the bucket"
    with pytest.raises(DataError) as error:
        remote.local_copy("gs://other/c4")
    why = "gs://other/c4: cannot be read: no access for you; check the network and your credentials"
    assert str(error.value) == f"{why}, or name a copy on this machine"


def test_a_copy_that_cannot_be_written(stores, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/file")
    with pytest.raises(DataError, match=r"cannot be copied to .*: Not a directory; make room"):
        remote.local_copy("gs://bucket/c4x")


def test_a_store_that_does_not_answer(monkeypatch):
    class Silent:
        def result(self, timeout):
            raise TimeoutError

    with pytest.raises(DataError) as error:
        remote._reached("gs://b/k", Silent)
    assert str(error.value) == (
        "gs://b/k: cannot be read: no answer in 12 s; check the network and your credentials, or "
        "name a copy on this machine"
    )


def test_other_messages_are_kept(capfd):
    with remote._without_native_logs():
        os.write(2, b"E1122 03:26:17.267487 20324 auth.cc:188] no credentials\nsomething else\n")
    assert capfd.readouterr().err == "something else\n"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_without_a_network_there_is_one_line_soon(scheme, tmp_path):
    code = f"""
from luthier.data import TFRecord
try:
    len(TFRecord("{scheme}://no-such-bucket.invalid/c4/*"))
except Exception as error:
    print(error)
"""
    closed = "http://127.0.0.1:9"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment(closed), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{scheme}://no-such-bucket.invalid/c4/*: cannot be read: ")
    assert line.endswith("; check the network and your credentials, or name a copy on this machine")
    assert time.monotonic() - start < 30


def test_offline_the_newest_copy_stands_for_an_object(stores, cache):
    path = "gs://bucket/c4/lines.jsonl"
    with remote.offline(), pytest.raises(DataError, match=r"lines\.jsonl: there is no copy"):
        read_file(path)
    asked = len(stores)
    with remote.offline(), pytest.raises(DataError, match="object store"):
        matching_files("gs://bucket/c4/*")
    assert read_file(path) == OBJECTS["c4/lines.jsonl"]
    assert len(stores) > asked
    older = cache / "gs" / "bucket" / "c4" / "lines.jsonl@0"
    older.write_bytes(b"older")
    os.utime(older, (1, 1))
    asked = len(stores)
    with remote.offline():
        assert read_file(path) == OBJECTS["c4/lines.jsonl"]
    assert len(stores) == asked


@pytest.mark.full
def test_a_slow_line_copies_a_large_object_in_pieces(monkeypatch):
    """The time limit is one on progress: the whole object takes longer than it on this line."""
    content = bytes(range(256)) * 1600
    monkeypatch.setattr(remote, "_COPY_SECONDS", 1.5)
    with serving({"slow": {"shard": content, "empty": b""}}, 200_000) as (address, requests):
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        copy = remote.local_copy("gs://slow/shard")
        assert len(requests) > 4
        with open(remote.local_copy("gs://slow/empty"), "rb") as file:
            assert file.read() == b""
    with open(copy, "rb") as file:
        assert file.read() == content
