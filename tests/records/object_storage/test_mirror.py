import pathlib
import time

import pytest

from luthier.errors import RunError
from luthier.records import events
from luthier.records.object_storage import Mirror, mirror, of_environment


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    monkeypatch.setattr(mirror, "PUSH_SECONDS", 3600.0)


@pytest.fixture
def copy(run, bucket):
    """Return what copies the run; its thread has copied once, and sleeps."""
    lines = []
    made = Mirror(run, bucket, lines.append)
    made.lines = lines
    _until(lambda: "status.json" in bucket.list())
    with made._pushing:  # the thread has copied all of it
        pass
    yield made
    made.close()


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
    write = type(bucket).write

    def note(self, key, *given):
        written.append(key)
        return write(self, key, *given)

    monkeypatch.setattr(type(bucket), "write", note)
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
    copy.emit(events.Saved(10))
    _until(lambda: "checkpoints/10/commit.json" in bucket.list())
    copy.emit(events.Notice("nothing to copy"))
    copy.flush()


def test_at_the_end_everything_is_there(run, bucket):
    made = Mirror(run, bucket, print)
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    made.close()
    made.close()
    (name,) = bucket.list("metrics.jsonl.segments/")
    assert bucket.read(name).data == b'{"step": 1}\n{"step": 2}\n'
    assert b'"renewed": 0.0' in bucket.read("writer.json").data


def test_trouble_is_told_once_and_when_it_is_over(copy, bucket, monkeypatch):
    real = copy.push

    def refuse():
        raise RunError("the network is gone")

    monkeypatch.setattr(copy, "push", refuse)
    for _ in range(2):
        copy._due.set()
        _until(lambda: copy.lines)
        _until(lambda: not copy._due.is_set())
    assert copy.lines == ["the network is gone; training goes on, and it is tried again"]
    monkeypatch.setattr(copy, "push", real)
    copy._due.set()
    _until(lambda: len(copy.lines) == 2)
    assert copy.lines[1] == f"{bucket.url} is up to date again"


def test_the_environment_says_where_runs_are_copied():
    told = {"LUTHIER_MIRROR": "gs://lab/runs"}
    run = pathlib.Path("/project/runs/quickstart/ab12")
    trial = pathlib.Path("/project/studies/rates/trials/0007/run")
    assert of_environment(run, {}) is None
    assert of_environment(run, told).url == "gs://lab/runs/quickstart/ab12/"
    assert of_environment(trial, told).url == "gs://lab/runs/rates/trials/0007/run/"
