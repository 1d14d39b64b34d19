"""Runs whose home is an object store, which a server on this machine stands in for."""

import json
import re

import pytest

from luthier import records, trainer
from luthier.cli import main
from luthier.errors import BadInput, CheckpointError, LockLost, RunError, UnknownReference
from luthier.records.object_storage import Bucket, HomeLock, home_of
from tests import object_stores
from tests.trainer.conftest import TINY

FAST = 'checkpoints.fast=luthier.checkpoint.FastTier("{}", luthier.durations.Steps(2))'


class Lab(object_stores.Lab):
    """The machines of a bucket with runs."""

    def committed(self):
        keys = (re.search(r"checkpoints/(\d+)\..*/commit.json$", key) for key in self.objects)
        return sorted(int(match[1]) for match in keys if match)


@pytest.fixture
def lab(monkeypatch, tmp_path):
    with Lab(monkeypatch, tmp_path).serving() as lab:
        yield lab


def lines(result):
    """Return (step, loss) of each line of a step, in the order of the file."""
    rows = map(json.loads, (result.directory / "metrics.jsonl").read_text().splitlines())
    return [(row["step"], row["values"]["loss"]) for row in rows if row["kind"] == "step"]


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_run_fails_in_a_save_and_ends_on_another_machine(lab, tiny, finished, scheme):
    graph = tiny(f"{scheme}://lab/runs/")
    lab.refusals[r"checkpoints/10\..*/d/"] = 403
    with pytest.raises(CheckpointError, match=r"step 10 was not saved: .*HTTP 403"):
        trainer.run(graph)
    assert lab.committed() == [5]
    lab.refusals.clear()
    lab.move("second")
    (run,) = records.list_runs(f"{scheme}://lab/runs")
    assert (run.status, run.record.saved_step) == ("failed", 5)
    result = trainer.run(graph)
    assert lines(result) == lines(finished), "each step once, bit-identical"
    assert lab.committed() == [10, 12]
    lab.move("third")
    directory = records.find("runs", f"{scheme}://lab/runs/quickstart/{run.id}")
    assert directory.read_status().status == "finished"
    assert directory.writer() is None
    assert directory.address == f"{scheme}://lab/runs/quickstart/{run.id}"
    assert lines(trainer.run(graph)) == lines(finished), "it is over"
    _, metrics = trainer.evaluate_run(directory.address)
    assert metrics == result.metrics
    source = f"restore=run:{directory.address}"
    warm = trainer.run(tiny("gs://lab/warm", source, "training.steps=1", "seed=1"))
    assert directory.address in (warm.directory / "restored.txt").read_text()


@pytest.fixture
def run(lab):
    """Return the directory of a run that is in the bucket and on the first machine."""
    configuration = records.Configuration(graph='{"a": 1}')
    directory = records.RunDirectory.create("gs://lab/runs", "a", "b", configuration=configuration)
    with directory.lock(is_new=True):
        directory.metrics_path.write_text("one\n")
        (directory.path / "plan.json").write_text("{}")
    return directory


def found(address="gs://lab/runs/a/b"):
    return records.find("runs", address)


def test_a_run_whose_first_upload_is_cut_off_does_not_exist(lab):
    configuration = records.Configuration(graph='{"a": 1}')
    directory = records.RunDirectory.create("gs://lab/runs", "a", "b", configuration=configuration)
    lab.refusals["/status.json"] = 403
    with pytest.raises(RunError, match="refused by the test"):
        directory.lock(is_new=True)
    lab.refusals.clear()
    lab.move("second")
    with pytest.raises(UnknownReference):
        found()


def test_a_killed_writer_loses_nothing_on_its_machine_and_little_elsewhere(run, lab, monkeypatch):
    lock = run.lock()
    with open(run.metrics_path, "a") as file:
        file.write("two\n")
    lock.push()
    with open(run.metrics_path, "a") as file:
        file.write("three\n")
    lock._released.set()  # killed: nothing is uploaded, and the lease stays
    lock._lock.release()
    assert found().metrics_path.read_text() == "one\ntwo\nthree\n", "the copy has more"
    lab.move("second")
    assert found().metrics_path.read_text() == "one\ntwo\n"
    assert found().writer() is not None, "its process is alive, as far as anybody knows"
    monkeypatch.setattr("luthier.storage.ProcessIdentity.alive", property(lambda self: False))
    with found().lock() as lock:
        assert lock.took_over is not None
        with open(found().metrics_path, "a") as file:
            file.write("four\n")
    lab.move("first")
    assert found().metrics_path.read_text() == "one\ntwo\nfour\n", "another machine has written"


def test_files_that_are_cut_or_deleted_are_so_in_the_bucket(run, lab):
    with run.lock():
        run.metrics_path.write_text("two\n")
        (run.path / "plan.json").unlink()
    lab.move("second")
    assert found().metrics_path.read_text() == "two\n"
    assert not (found().path / "plan.json").exists()


def test_whoever_was_taken_over_writes_nothing_more(run, lab):
    lock = run.lock()
    writer = json.loads(lab.objects["runs/a/b/writer.json"])
    lab.objects["runs/a/b/writer.json"] = json.dumps(writer | {"token": "another"}).encode()
    for write in (run.upload, run.fence):
        with pytest.raises(LockLost, match="gs://lab/runs/a/b/ was taken over by another process"):
            write()
    lock.release()
    assert json.loads(lab.objects["runs/a/b/writer.json"])["token"] == "another"


def test_two_machines_that_make_one_run_are_refused_but_one(run, lab):
    with run.lock(), pytest.raises(RunError, match="already written by this process"):
        HomeLock(run.path, home_of(run.path))
    lab.move("second")
    configuration = records.Configuration(graph="{}")
    made = records.RunDirectory.create("gs://lab/runs", "a", "b", configuration=configuration)
    with pytest.raises(RunError, match="was made by another process just now; rerun"):
        made.lock(is_new=True)
    assert found().read_config() == '{"a": 1}\n', "the first one stays"


def test_records_that_the_store_refuses_stay_here_and_are_reported(run, lab):
    lock = run.lock()
    run.metrics_path.write_text("one\ntwo\n")
    lab.refusals["metrics"] = 403
    with pytest.raises(RunError, match=r"^the last records are in /.* only, and not in gs://lab"):
        lock.release()
    lab.refusals.clear()
    with run.lock():
        assert run.metrics_path.read_text() == "one\ntwo\n"
    lab.move("second")
    assert found().metrics_path.read_text() == "one\ntwo\n"


def test_a_run_that_is_deleted_is_gone_everywhere(run, lab):
    assert len(records.list_runs("gs://lab/runs")) == 1
    lab.objects.clear()
    assert records.list_runs("gs://lab/runs") == []
    with pytest.raises(UnknownReference, match="gs://lab/runs/a/b is not a run"):
        found()


def test_what_is_written_while_it_is_read_is_read_again(run, lab, monkeypatch):
    lock = run.lock()
    lock.push()
    lab.move("second")
    read = Bucket.read
    changes = ["two\n", "two\nthree\n"]

    def push_before(self, key):
        if "metrics.jsonl.segments/" in key and changes:
            run.metrics_path.write_text("one\n" + changes.pop(0))
            lock.push()
        return read(self, key)

    monkeypatch.setattr(Bucket, "read", push_before)
    assert found().metrics_path.read_text() == "one\ntwo\nthree\n"
    run.metrics_path.write_text("one\ntwo\nthree\nfour\n")
    lock.push()
    assert found().metrics_path.read_text() == "one\ntwo\nthree\nfour\n"
    lock.release()


def test_names_in_a_bucket_cannot_lead_out_of_the_working_copy(run, lab, tmp_path):
    lab.objects["runs/a/b/../../x"] = b""
    lab.move("second")
    with pytest.raises(RunError, match="it leads to another folder"):
        found()


@pytest.mark.parametrize("url", ["hdfs://lab/runs", "gs://", "gs://lab/../x"])
def test_other_places_are_refused(url):
    with pytest.raises(BadInput, match="is not a place for records; write a directory, gs://"):
        records.list_runs(url)


@pytest.mark.full
def test_commands_take_urls_of_runs_and_of_folders_of_runs(lab, corpus, capsys, monkeypatch):
    text = f"luthier.data.TextFiles({corpus!r})"
    own = [*TINY, f"data.source:={text}", f"evaluations.held_out.data.source:={text}"]
    command = ["train", "--exp=configs.lm.quickstart", *own, "training.steps=3"]
    assert main([*command, "--job_log_dir=gs://lab/runs"]) == 0
    (key,) = (key for key in lab.objects if key.endswith("/config.json"))
    url = f"gs://lab/{key.removesuffix('/config.json')}"
    id = url.rpartition("/")[2]
    output = capsys.readouterr().out
    assert f"luthier generate {url}" in output
    lab.move("second")
    monkeypatch.setenv("LUTHIER_RUNS", "gs://lab/runs")
    for reading in (["runs"], ["runs", "gs://lab/runs"], ["runs", id], ["runs", url]):
        assert main(reading) == 0
        assert id in capsys.readouterr().out
    assert main(["runs", url, "--log"]) == 0
    assert "finished at step 3" in capsys.readouterr().out
    assert main(["diff", f"run:{url}", f"run:{id}"]) == 0
    capsys.readouterr()
    assert main(["evaluate", url, "--json"]) == 0
    assert "held_out" in capsys.readouterr().out
    assert main(["generate", id, "--prompt", "To be"]) == 0
    assert main(["runs", "gs://lab/runs/quickstart/other"]) == 0
    assert "no runs in gs://lab/runs/quickstart/other/" in capsys.readouterr().out


@pytest.mark.full
def test_a_fast_tier_needs_a_disk(lab, tiny):
    with pytest.raises(CheckpointError, match="a FastTier needs a run on a disk, and this one"):
        trainer.run(tiny("gs://lab/runs", FAST.format("fast")))
    assert lab.objects == {}
