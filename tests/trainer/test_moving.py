"""Runs that are moved between disks and object stores, which a server here stands in for."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import checkpoint, records, trainer
from luthier.cli import main
from luthier.errors import CheckpointError, RunError, UnknownReference
from tests import object_stores
from tests.trainer import test_bucket_runs


def arrays():
    return {"parameters/w": jnp.arange(4096, dtype=jnp.float32).reshape(64, 64)}


class Lab:
    """A bucket, and a disk."""

    def __init__(self, disk):
        self.objects, self.refused, self.disk = {}, "", disk
        self.at_each_write, self.kill = lambda: None, lambda key: None

    def before_write(self, key):
        self.at_each_write()
        return 403 if self.refused and re.search(self.refused, key) else self.kill(key)

    def folder(self, kind, name="runs"):
        return str(self.disk / name) if kind == "disk" else f"{kind}://lab/{name}"


@pytest.fixture
def lab(monkeypatch, tmp_path):
    lab = Lab(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with object_stores.serving({"lab": lab.objects}, before_write=lab.before_write) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        yield lab


def make(folder, text="one\n"):
    """Return the directory of a run with two checkpoints."""
    configuration = records.Configuration(graph='{"a": 1}')
    directory = records.RunDirectory.create(folder, "a", "b", configuration=configuration)
    with directory.lock(is_new=True):
        directory.metrics_path.write_text(text)
        (directory.path / "wandb.json").write_text('{"id": "w1"}')
        (directory.path / "media").mkdir()
        (directory.path / "media" / "x.png").write_bytes(b"image" * 300_000)
        (directory.path / "profile").mkdir()
        (directory.path / "profile" / "trace").write_text("of this machine")
        with checkpoint.Store(directory.checkpoints_path) as store:
            for step in (10, 20):
                store.save(step, arrays(), extra={"at": step})
    return directory


def check(directory, text="one\n"):
    """Check that a run is whole."""
    assert directory.read_config() == '{"a": 1}\n'
    assert directory.metrics_path.read_text() == text
    assert json.loads((directory.path / "wandb.json").read_text()) == {"id": "w1"}
    assert (directory.path / "media" / "x.png").read_bytes() == b"image" * 300_000
    assert directory.writer() is None
    with checkpoint.Store(directory.checkpoints_path) as store:
        assert (store.steps(), store.newest_whole()) == ([10, 20], (20, []))
        abstract = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays().items()}
        restored = store.restore(20, abstract)
        assert np.array_equal(restored["parameters/w"], arrays()["parameters/w"])


def runs_in(*folders):
    return [run.directory.address for folder in folders for run in records.list_runs(folder)]


# Objects that the store refuses, so that a move ends there, and the next attempt takes it up.
BEFORE = {
    "gs": [
        "more/a/b/moving.json$",
        "more/a/b/checkpoints/10/.*/d/",
        "more/a/b/metrics.jsonl.segments/",
        "more/a/b/media/x.png.pieces/index.json$",
        "more/a/b/checkpoints/20/commit.json$",
        "more/a/b/moves.json$",
        "more/a/b/config.json$",
    ],
    "disk": ["runs/a/b/moved_to.json$"],
}
BEFORE["s3"] = BEFORE["gs"]
ATTEMPTED = [("disk", "gs"), ("s3", "disk"), pytest.param("gs", "s3", marks=pytest.mark.full)]


@pytest.mark.parametrize(("here", "there"), ATTEMPTED)
def test_a_run_is_at_one_place_at_every_moment(lab, here, there):
    source, destination = lab.folder(here), lab.folder(there, "more")
    make(source)
    seen = []
    lab.at_each_write = lambda: seen.append(len(runs_in(source, destination)))
    for lab.refused in BEFORE[there]:
        with pytest.raises(RunError, match="HTTP 403"):
            trainer.move_run("b", destination, root=source)
        assert runs_in(source, destination) == [f"{source}/a/b"]
        check(records.find(source, "b"))
    lab.refused = ""
    if here != "disk":  # from here on it is at the new place
        lab.refused = "config.moved.json$"
        with pytest.raises(RunError, match="HTTP 403"):
            trainer.move_run("b", destination, root=source)
        assert runs_in(source, destination) == [f"{destination}/a/b"]
        lab.refused = ""
    trainer.move_run("b", destination, root=source)
    assert runs_in(source, destination) == [f"{destination}/a/b"]
    assert set(seen) == {1}
    check(records.find("runs", f"{destination}/a/b"))


@pytest.mark.parametrize(("here", "there"), [("disk", "s3"), ("gs", "disk"), ("disk", "disk")])
def test_a_former_place_leads_to_the_new_one_and_takes_the_run_back(lab, here, there):
    source, destination = lab.folder(here), lab.folder(there, "more")
    make(source)
    moved = trainer.move_run("b", destination, root=source)
    new, former = f"{destination}/a/b", f"{source}/a/b"
    assert (moved.directory.address, moved.source, moved.steps) == (new, former, [10, 20])
    for reference in (former, "b", "a/b"):
        assert records.find(source, reference).address == new
    with pytest.raises(RunError, match=f"the run a/b is in {destination} already"):
        trainer.move_run("b", destination, root=source)
    with records.find(destination, "b").lock():
        records.find(destination, "b").metrics_path.write_text("one\ntwo\n")
    back = trainer.move_run("b", source, root=destination)
    assert runs_in(source, destination) == [back.directory.address] == [former]
    check(back.directory, "one\ntwo\n")
    assert records.find(destination, "b").address == former
    moves = json.loads((back.directory.path / "moves.json").read_text())
    assert [move["destination"] for move in moves] == [new, former]


def test_the_former_files_are_set_aside(lab):
    source = make(lab.folder("disk")).path
    moved = trainer.move_run("b", "gs://lab/runs")
    assert moved.left == ["profile"]
    assert sorted(path.name for path in source.iterdir()) == [".trash", "lock", "moved_to.json"]
    aside = pathlib.Path(moved.set_aside)
    assert aside.parent.resolve() == source / ".trash"
    assert (aside / "reason.txt").read_text() == "the run was moved to gs://lab/runs/a/b\n"
    # By hand, a rename brings it back.
    for path in aside.iterdir():
        path.rename(source / path.name)
    (source / "moved_to.json").unlink()
    check(records.RunDirectory.open(source))
    again = trainer.move_run("gs://lab/runs/a/b", "s3://lab/more")
    assert again.set_aside == "gs://lab/runs/a/b"
    assert "runs/a/b/config.json" not in lab.objects
    assert lab.objects["runs/a/b/config.moved.json"] == b'{"a": 1}\n'


def test_a_run_is_not_moved_where_it_could_be_lost(lab, capsys):
    make("runs")
    url = "gs://lab/runs"

    def refusal(*arguments):
        assert main(["runs", "b", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    with records.find("runs", "b").lock():
        assert "runs/a/b is already written by this process" in refusal("--move", url)
    for arguments, line in {
        ("--move", "hdfs://lab"): "'hdfs://lab' is not a place for records; write a directory",
        ("--move", f"{url}/a/b/"): f"is the place of one run, not a folder of runs; write {url}",
        ("--move", "runs"): "the run a/b is in runs already",
        ("--move", ""): "--move needs a run and a folder",
        ("--move", url, "--log"): "--log and --move cannot be combined",
        ("--move", "file.txt"): "/file.txt is not a folder; choose another folder",
    }.items():
        pathlib.Path("file.txt").write_text("")
        assert line in refusal(*arguments)
    assert main(["runs", "--move", url]) == 2
    assert (
        "--move needs a run and a folder; write `luthier runs ID --move DIR`"
        in capsys.readouterr().err
    )
    assert lab.objects == {}
    make(url, "another\n")
    assert f"there is a run at {url}/a/b; choose another folder" in refusal("--move", url)
    make("other", "another\n")
    assert "/other/a/b; choose another folder" in refusal("--move", "other")
    lab.objects["more/a/b/thesis.pdf"] = b"years of work"
    assert "is not empty, and not a place that a run was moved from" in refusal(
        "--move", "s3://lab/more"
    )
    array = next(pathlib.Path("runs/a/b/checkpoints/10").rglob("d/*"))
    array.write_bytes(array.read_bytes()[:-1])
    assert "checkpoints/10 is damaged: " in refusal("--move", "s3://lab/whole")
    assert runs_in("runs", "s3://lab/whole") == ["runs/a/b"]
    assert records.find("runs", "b").read_config() == '{"a": 1}\n'


def test_a_run_that_is_gone_from_its_new_place_is_named(lab):
    make("runs")
    trainer.move_run("b", "gs://lab/runs")
    lab.objects.clear()
    what = "runs/a/b was moved to gs://lab/runs/a/b, which is not a run any more"
    for reference in ("b", "runs/a/b"):
        with pytest.raises(UnknownReference, match=what):
            records.find("runs", reference)


@pytest.mark.full
def test_a_moved_run_is_resumed_by_its_command_with_the_new_folder(
    lab, tiny, finished, capsys, monkeypatch
):
    # As with real sizes: manifests are small, and what they refer to is not.
    monkeypatch.setattr("luthier.checkpoint.copies._SMALL_BYTES", 1000)
    lab.refused = r"checkpoints/10\..*/d/"
    with pytest.raises(CheckpointError, match="HTTP 403"):
        trainer.run(tiny("s3://lab/runs"))
    lab.refused = ""
    (run,) = records.list_runs("s3://lab/runs")
    disk, url = str(lab.disk / "runs"), f"gs://lab/more/quickstart/{run.id}"
    assert main(["runs", run.id, "--directory", "s3://lab/runs", "--move", disk]) == 0
    capsys.readouterr()
    assert main(["runs", run.id, "--directory", disk, "--move", "gs://lab/more"]) == 0
    output = capsys.readouterr().out
    assert f"moved quickstart/{run.id} to {url}\ncopied and compared " in output
    assert "files and 1 checkpoint, " in output
    assert "use the same command with records.directory=gs://lab/more\n" in output
    for place in ("s3://lab/runs", disk):
        with pytest.raises(RunError, match=f"was moved to {url}; set records.directory=gs://lab"):
            trainer.run(tiny(place))
    result = trainer.run(tiny("gs://lab/more"))
    assert test_bucket_runs.lines(result) == test_bucket_runs.lines(finished), "bit-identical"
    with checkpoint.Store(f"{url}/checkpoints") as store:
        assert store.steps() == [10, 12], "what was moved is deleted as the policy has it"
    former = f"{disk}/quickstart/{run.id}"
    for source in (former, f"{former}/checkpoints", f"s3://lab/runs/quickstart/{run.id}"):
        warm = trainer.run(tiny("warm", f"restore=run:{source}", "training.steps=1", "seed=1"))
        assert url in (warm.directory / "restored.txt").read_text()
    separate = trainer.run(tiny(disk), new=True).directory
    assert separate.name == f"{run.id}-2"
    # A move that was killed before the run was at the new place is void if the run is resumed here.
    note = separate / "moved_to.json"
    (move, *_) = json.loads((pathlib.Path(former) / note.name).read_text())
    destination = "gs://lab/never/quickstart/x"
    note.write_text(json.dumps([move | {"source": str(separate), "destination": destination}]))
    trainer.run(tiny(disk), run=separate.name)
    assert not note.exists()


KILLS = [
    ("disk", "gs", [r"checkpoints/20/.*/d/", "moves.json$", "more/a/b/config.json$"]),
    ("s3", "gs", ["moving.json$", "checkpoints/20/commit.json$", "config.moved.json$"]),
    ("gs", "disk", ["moved_to.json$", "config.moved.json$"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("here", "there", "moments"), KILLS)
def test_a_move_that_is_killed_is_taken_up_again(lab, monkeypatch, here, there, moments):
    source, destination = lab.folder(here), lab.folder(there, "more")
    make(source)
    command = [sys.executable, "-m", "luthier", "runs", "b", "--directory", source]
    command += ["--move", destination]
    killed = []

    def kill(key):
        if killed and not killed[0] and re.search(killed[1], key):
            killed[0] = True
            os.kill(mover.pid, signal.SIGKILL)
            return 503
        return None

    lab.kill = kill
    monkeypatch.setenv("XDG_CACHE_HOME", str(lab.disk / "reader"))
    for moment in moments:
        killed[:] = [False, moment]
        own = os.environ | {"XDG_CACHE_HOME": str(lab.disk / "cache")}
        mover = subprocess.Popen(command, env=own, cwd=lab.disk)
        assert mover.wait() == -signal.SIGKILL
        (place,) = runs_in(source, destination)
        assert records.find("runs", place).metrics_path.read_text() == "one\n"
    killed.clear()
    assert main(command[3:]) == 0
    assert runs_in(source, destination) == [f"{destination}/a/b"]
    check(records.find("runs", f"{destination}/a/b"))
    assert main(command[3:]) == 2
