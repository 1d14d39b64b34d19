from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil

import pytest

from luthier.errors import RunError
from luthier.records import (
    Configuration,
    JsonLines,
    RunDirectory,
    Source,
    Status,
    Step,
    new_id,
    read_metrics,
)


def test_a_directory_is_made_whole(run, tmp_path):
    assert run.path == tmp_path / "runs" / "demo" / "abc123"
    assert (run.name, run.id) == ("demo", "abc123")
    assert sorted(path.name for path in run.path.iterdir()) == [
        "config.history.json",
        "config.json",
        "config.txt",
        "config.values.json",
        "status.json",
    ]
    assert json.loads(run.read_config()) == {"dim": 8}
    assert run.read_values() == {"model": {"dim": 8}, "seed": 0}
    assert (run.path / "config.txt").read_text() == "dim = 8\n"
    assert run.read_status() == Status()
    assert not run.started
    assert os.listdir(run.path.parent) == ["abc123"]
    assert RunDirectory.open(run.path) == run


def test_ids_are_new_and_sort(tmp_path, configuration):
    ids = [new_id() for _ in range(20)]
    assert len(set(ids)) == 20
    run = RunDirectory.create(tmp_path, "demo", configuration=configuration)
    assert run.id[:15] >= ids[0][:15]


def test_a_run_is_not_made_twice(run, tmp_path, configuration):
    before = run.read_config()
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.create(
            tmp_path / "runs", "demo", "abc123", configuration=Configuration(graph="{}")
        )
    assert run.read_config() == before


def test_a_killed_maker_does_not_stop_the_next(tmp_path, configuration):
    """In a container every process may have the same number."""
    left = tmp_path / "demo" / f".x.{os.getpid()}.tmp"
    left.mkdir(parents=True)
    run = RunDirectory.create(tmp_path, "demo", "x", configuration=configuration)
    assert run.read_config()
    assert left.is_dir(), "it may be another's, who is at work"


def test_two_makers_at_once_make_one(tmp_path, configuration, monkeypatch):
    """The loser finds the winner's directory in its way, and leaves it alone."""
    real = RunDirectory.locate
    path = tmp_path / "demo" / "x"

    def locate(root, name, id):
        monkeypatch.setattr(RunDirectory, "locate", staticmethod(real))
        monkeypatch.setattr("pathlib.Path.exists", lambda self: False)
        RunDirectory.create(tmp_path, "demo", "x", configuration=configuration)
        return path

    monkeypatch.setattr(RunDirectory, "locate", staticmethod(locate))
    with pytest.raises(RunError, match="cannot create"):
        RunDirectory.create(tmp_path, "demo", "x", configuration=Configuration(graph="{}"))
    assert json.loads((path / "config.json").read_text()) == {"dim": 8}
    assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "with space", "a\n"])
def test_what_cannot_name_a_directory_is_refused(tmp_path, configuration, name):
    with pytest.raises(RunError, match="cannot be the name of a run"):
        RunDirectory.create(tmp_path / "runs", name, configuration=configuration)
    with pytest.raises(RunError, match="cannot be the id of a run"):
        RunDirectory.create(tmp_path / "runs", "demo", name, configuration=configuration)
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, configuration):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", "/sys/runs"):
        with pytest.raises(RunError) as caught:
            RunDirectory.create(root, "demo", configuration=configuration)
        assert "records.directory=PATH" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the superuser")
def test_a_read_only_directory_is_one_line(tmp_path, configuration):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(RunError, match=r"Permission denied.*records\.directory=PATH"):
            RunDirectory.create(tmp_path, "demo", configuration=configuration)
        assert os.listdir(tmp_path) == []
    finally:
        tmp_path.chmod(0o755)


def test_what_is_no_run_is_not_opened(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="is not a run's directory; `luthier runs`"):
            RunDirectory.open(path)


def test_a_changed_configuration_keeps_the_earlier_one(run, configuration):
    run.write_configuration(configuration)
    assert not (run.path / "config.1.json").exists()
    for number in (1, 2):
        changed = Configuration(graph=json.dumps({"dim": 8 * number + 8}), text="dim = 8")
        run.write_configuration(changed)
    assert json.loads(run.read_config()) == {"dim": 24}
    assert json.loads((run.path / "config.1.json").read_text()) == {"dim": 8}
    assert json.loads((run.path / "config.2.json").read_text()) == {"dim": 16}
    assert (run.path / "config.history.1.json").exists()
    assert not (run.path / "config.1.txt").exists()


def test_source_and_plan_are_written(run):
    source = Source({"jax": "1"}, "3.11", "linux", {"patch_sha256": "0" * 64}, {}, patch="diff")
    run.write_source(source)
    run.write_plan({"parameters": 8})
    record = run.read_source()
    assert record["versions"] == {"jax": "1"}
    assert (run.path / record["git"]["patch"]).read_text() == "diff"
    assert run.read_plan() == {"parameters": 8}


def test_nothing_written_reads_as_nothing(run):
    assert run.read_source() == {}
    assert run.read_plan() is None


def test_a_run_whose_process_is_gone_is_not_running(run):
    run.write_status(Status(status="running", step=3))
    status = run.read_status()
    assert (status.status, status.step) == ("interrupted", 3)
    with run.lock():
        assert run.read_status().status == "running"
        assert run.writer().pid == os.getpid()
    assert run.writer() is None
    assert run.started


def test_cut_back(run):
    assert run.cut_back(None).dropped == 0
    sink = JsonLines(run.metrics_path)
    for step in (1, 2, 3):
        sink.emit(Step(step, {}))
    sink.close()
    assert run.cut_back(2).dropped == 1
    assert run.cut_back(None).dropped == 2


def test_where_the_record_cannot_be_copied_it_is_not_cut(run, monkeypatch):
    """The copy is what a resumed run could be taken back to."""
    sink = JsonLines(run.metrics_path)
    for step in (1, 2, 3):
        sink.emit(Step(step, {}))
    sink.close()
    before = sorted(os.listdir(run.path))

    def fill(source, target):
        pathlib.Path(target).write_bytes(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fill)
    with pytest.raises(RunError, match=r"cannot copy .*metrics\.jsonl: No space left on device"):
        run.cut_back(2)
    assert [row["step"] for row in read_metrics(run.metrics_path)] == [1, 2, 3]
    assert sorted(os.listdir(run.path)) == before


def test_a_configuration_that_cannot_be_read_is_one_line(run):
    run.config_path.write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"config\.json is damaged: "):
        run.read_config()
    run.config_path.unlink()
    with pytest.raises(RunError, match=r"cannot read .*config\.json: No such file"):
        run.read_config()


def test_what_cannot_be_kept_is_not_replaced(run, configuration):
    """A folder stands in the place of one of the files: all of them stay as they were."""
    (run.path / "config.txt").unlink()
    (run.path / "config.txt").mkdir()
    with pytest.raises(RunError, match=r"cannot read .*config\.txt: Is a directory"):
        run.write_configuration(Configuration(graph='{"dim": 9}', text="dim = 9"))
    assert json.loads(run.read_config()) == {"dim": 8}
    assert not (run.path / "config.1.json").exists()


def test_a_run_is_the_same_one_by_whatever_path(run, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(run.path)
    monkeypatch.chdir(run.path)
    assert {run, RunDirectory("."), RunDirectory(tmp_path / "link")} == {run}
    assert run != run.path
