import errno
import io
import itertools
import os
import pathlib
import time
import types

import pytest

from luthier.errors import RunError
from luthier.records import Notice, Saved
from luthier.records.object_storage import KEY, LEASE_SECONDS, Mirror, of_environment


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    monkeypatch.setattr("luthier.records.object_storage.mirror.PUSH_SECONDS", 3600.0)


@pytest.fixture
def copy(run, bucket):
    """Return what copies the run; its thread has copied once, and sleeps."""
    lines = []
    made = Mirror(run, bucket, lines.append)
    made.lines = lines
    _until(lambda: "status.json" in bucket.list())
    with made._uploader._pushing:  # the thread has copied all of it
        pass
    yield made
    made.close()


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _before_writing(monkeypatch, bucket, do):
    """Have something done, given an object's name, before each is written."""
    write = type(bucket).write

    def doing(self, key, *given):
        do(key)
        return write(self, key, *given)

    monkeypatch.setattr(type(bucket), "write", doing)


def test_files_are_copied_whole_and_growing_ones_in_segments(copy, run, bucket):
    (run / "processes").mkdir()
    (run / "processes" / "process-0-of-2.log").write_text("all is well\n")
    (run / "wandb").mkdir()
    (run / "wandb" / "own").write_text("")
    (run / ".config.json.1.tmp").write_text("")
    copy.push()
    names = [name.partition(".segments/")[0] for name in bucket.list()]
    assert names == [
        "config.json",
        "metrics.jsonl",
        "processes/process-0-of-2.log",
        "status.json",
        "writer.json",
    ]
    version = bucket.read("config.json").version
    (run / "status.json").write_text('{"status": "finished"}')
    copy.push()
    assert bucket.read("status.json").data == b'{"status": "finished"}'
    assert bucket.read("config.json").version == version, "what did not change is not written"


def test_checkpoints_are_copied_once_they_are_committed_and_deleted_with_theirs(
    copy, run, bucket, save, monkeypatch
):
    written = []
    _before_writing(monkeypatch, bucket, written.append)
    save(10)
    save(20, is_whole=False)
    bucket.write("checkpoints/10/remains-of-a-killed-copy", b"")
    copy.push()
    assert list(bucket.list("checkpoints/")) == [
        "checkpoints/10/commit.json",
        "checkpoints/10/state/array",
    ]
    saved = [key for key in written if key.startswith("checkpoints/10/")]
    assert saved[-1] == "checkpoints/10/commit.json"
    (run / "checkpoints" / "20" / "commit.json").write_text("{}")
    (run / "checkpoints" / "10" / "commit.json").unlink()
    copy.push()
    assert {name.split("/")[1] for name in bucket.list("checkpoints/")} == {"20"}


def test_a_checkpoint_is_copied_soon_after_it_is_committed(copy, bucket, save):
    save(10)
    copy.emit(Saved(10))
    _until(lambda: "checkpoints/10/commit.json" in bucket.list())
    copy.emit(Notice("nothing to copy"))
    copy.flush()


def test_at_the_end_everything_is_there(run, bucket):
    made = Mirror(run, bucket, print)
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    made.close()
    made.close()
    (name,) = bucket.list("metrics.jsonl.segments/")
    assert bucket.read(name).data == b'{"step": 1}\n{"step": 2}\n'
    assert b'"renewed": 0.0' in bucket.read("writer.json").data


def test_trouble_is_reported_once_and_when_it_is_over(copy, bucket, monkeypatch):
    real = copy.push

    def refuse():
        raise RunError("the network is gone")

    monkeypatch.setattr(copy, "push", refuse)
    for _ in range(2):
        copy._due.set()
        _until(lambda: copy.lines)
        _until(lambda: not copy._due.is_set())
    assert copy.lines == ["the network is gone; training continues, and the copy is retried"]
    monkeypatch.setattr(copy, "push", real)
    copy._due.set()
    _until(lambda: len(copy.lines) == 2)
    assert copy.lines[1] == f"{bucket.url} is up to date again"


def test_a_checkpoint_that_is_committed_meanwhile_waits_for_its_metrics(
    copy, run, bucket, save, monkeypatch
):
    def train(key):
        if key == "status.json":  # metrics.jsonl was copied before it
            (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 20}\n')
            save(20)

    (run / "status.json").write_text('{"status": "running on"}')
    with monkeypatch.context() as patch:
        _before_writing(patch, bucket, train)
        copy.push()
    assert not bucket.list("checkpoints/")
    copy.push()
    assert "checkpoints/20/commit.json" in bucket.list()
    (name,) = bucket.list("metrics.jsonl.segments/")
    assert b'"step": 20' in bucket.read(name).data


def test_the_lease_is_renewed_between_the_objects_of_a_checkpoint(copy, bucket, save, monkeypatch):
    now, renewed = [0.0], []

    def take_long(key):
        if key == KEY:
            renewed.append(now[0])
        else:
            now[0] += 50.0

    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr("luthier.records.object_storage.lease.time", clock)
    for step in range(1, 5):
        save(step)
    _before_writing(monkeypatch, bucket, take_long)
    copy.push()
    assert now[0] == 8 * 50.0
    silent = [late - early for early, late in itertools.pairwise([*renewed, now[0]])]
    assert max(silent) < LEASE_SECONDS


def test_the_lease_is_renewed_while_one_object_is_waited_for(run, bucket, save, monkeypatch):
    monkeypatch.setattr("luthier.records.object_storage.lease.LEASE_SECONDS", 0.03)
    monkeypatch.setattr("luthier.records.object_storage.mirror._LOOK_SECONDS", 0.01)
    save(10)
    waited = []

    def wait(key):
        if key == "checkpoints/10/state/array":
            before = bucket.read(KEY).version
            _until(lambda: bucket.read(KEY).version != before)
            waited.append(key)

    _before_writing(monkeypatch, bucket, wait)
    made = Mirror(run, bucket, print)
    made.close()
    assert waited == ["checkpoints/10/state/array"]
    assert b'"renewed": 0.0' in bucket.read(KEY).data


def test_whoever_was_taken_over_commits_no_checkpoint(copy, bucket, save, monkeypatch):
    save(10)
    mine = bucket.read(KEY).data

    def take_over(key):
        if key == "checkpoints/10/state/array":
            other = b'{"host": "elsewhere", "directory": "/runs/b", "renewed": 0.0}'
            bucket.write(KEY, other)

    with monkeypatch.context() as patch:
        _before_writing(patch, bucket, take_over)
        with pytest.raises(RunError, match="was taken over by another process on elsewhere"):
            copy.push()
    assert list(bucket.list("checkpoints/")) == ["checkpoints/10/state/array"]
    bucket.write(KEY, mine)


def _refuse(monkeypatch, refused, *, names_it):
    """Have the operating system refuse a file or a folder."""

    def refusing(real):
        def doing(path, *given, **named):
            if os.fspath(path) == str(refused):
                name = (str(path),) if names_it else ()
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), *name)
            return real(path, *given, **named)

        return doing

    for module, name in ((io, "open"), (os, "scandir"), (os, "listdir")):
        monkeypatch.setattr(module, name, refusing(getattr(module, name)))


@pytest.mark.parametrize(
    ("name", "names_it"),
    [
        ("status.json", True),
        ("status.json", False),  # as `read` does
        ("metrics.jsonl", False),
        ("checkpoints", True),
        ("checkpoints/20/state", True),
        ("checkpoints/20/state/array", False),
    ],
)
def test_an_unreadable_file_is_reported_and_tried_again(
    copy, run, bucket, save, monkeypatch, name, names_it
):
    save(10)
    copy.push()
    (run / "status.json").write_text('{"status": "running on"}')
    save(20)
    with monkeypatch.context() as patch:
        _refuse(patch, run / name, names_it=names_it)
        copy._due.set()
        _until(lambda: copy.lines)
        with pytest.raises(RunError):
            copy.push()
    reason = f"cannot read {run / name}: {os.strerror(errno.ESTALE)}"
    assert copy.lines == [f"{reason}; training continues, and the copy is retried"]
    assert "checkpoints/10/commit.json" in bucket.list(), "what was not seen is not deleted"
    assert "checkpoints/20/commit.json" not in bucket.list()
    copy._due.set()
    _until(lambda: len(copy.lines) == 2)
    assert copy.lines[1] == f"{bucket.url} is up to date again"
    assert "checkpoints/20/commit.json" in bucket.list()


def test_the_environment_says_where_runs_are_copied():
    environment = {"LUTHIER_MIRROR": "gs://lab/runs"}
    run = pathlib.Path("/project/runs/quickstart/ab12")
    trial = pathlib.Path("/project/studies/rates/trials/0007/run")
    assert of_environment(run, {}) is None
    assert of_environment(run, environment).url == "gs://lab/runs/quickstart/ab12/"
    assert of_environment(trial, environment).url == "gs://lab/runs/rates/trials/0007/run/"
