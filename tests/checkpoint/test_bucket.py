"""Checkpoints in object stores, which a server on this machine stands in for."""

import json

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.checkpoint import Checkpoints, Store
from luthier.errors import CheckpointError, LockLost
from luthier.metrics import Selector
from tests import object_stores


@pytest.fixture(params=["gs", "s3"])
def lab(request, monkeypatch):
    """Return the URL of a folder of checkpoints, and the objects of its bucket."""
    objects, faults = {}, []
    monkeypatch.setenv("LUTHIER_STORE_SECONDS", "1")
    with object_stores.serving({"lab": objects}, faults=faults) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        request.node.faults = faults
        yield f"{request.param}://lab/runs/a/checkpoints", objects


@pytest.fixture
def faults(lab, request):
    """Return the faults of the store."""
    return request.node.faults


def state(step):
    values = np.random.default_rng(step).normal(size=(64, 64)).astype(np.float32)
    return {"parameters/w": jnp.asarray(values), "step": jnp.int32(step)}


def data():
    return iter(grain.MapDataset.range(1000).shuffle(seed=1).repeat().to_iter_dataset())


def abstract():
    return {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in state(0).items()}


def folders(objects):
    return sorted({key.split("/")[3] for key in objects})


def is_state(arrays, step):
    return all(
        np.asarray(arrays[name]).tobytes() == np.asarray(array).tobytes()
        for name, array in state(step).items()
    )


def test_a_store_saves_restores_and_deletes_without_a_disk(lab, tmp_path, monkeypatch):
    url, objects = lab
    monkeypatch.chdir(tmp_path)
    policy = Checkpoints(keep_latest=2, keep_best=Selector("held_out", "loss"))
    iterator = data()
    with Store(url, policy) as store:
        assert (store.steps(), store.newest_whole()) == ([], (None, []))
        for step, loss in ((10, 1.0), (20, 3.0), (30, 2.0), (40, 2.5)):
            next(iterator)
            store.save(step, state(step), iterator, {"at": step}, {"held_out/loss": loss})
        expected = next(iterator)
        store.wait()
        assert (store.committed(), store.best()) == ([10, 20, 30, 40], 10)
        assert store.steps() == [10, 30, 40]
    assert [name.partition(".")[0] for name in folders(objects)] == ["10", "30", "40"]
    with Store(url, policy) as store:
        assert store.newest_whole() == (40, [])
        restored = data()
        assert is_state(store.restore(40, abstract(), restored), 40)
        assert (next(restored), store.read_extra(40)) == (expected, {"at": 40})
        assert is_state(store.restore(10, abstract()), 10)
    assert list(tmp_path.iterdir()) == []  # nothing went to a folder called `s3:`


def test_every_rule_of_the_policy_keeps_its_checkpoints(lab):
    url, objects = lab
    loss = Selector("held_out", "loss")
    policy = Checkpoints(keep_latest=1, keep_every=20, keep_best=loss)
    with Store(url, policy) as store:
        for step, value in ((10, 2.0), (20, 3.0), (30, 1.0), (40, 2.5), (50, 1.5), (70, 1.0)):
            store.save(step, state(step), metrics={"held_out/loss": value})
        store.wait()
        assert (store.steps(), store.best()) == ([20, 30, 40, 70], 30)
        # A restart from the best one sets aside what came later, for good or not.
        store.cut_back(30)
        assert store.steps() == [20, 30]
        assert {key.split("/")[3].partition(".")[0] for key in objects} == {"20", "30", "40", "70"}
        store.save(60, state(60), metrics={"held_out/loss": 0.5})
        store.wait()
        assert (store.steps(), store.best()) == ([20, 60], 60)
        left = {name.partition(".")[0] for name in folders(objects)}
        assert left == {"20", "60", "70"}, "what was set aside, until a later step is saved"
        store.save(80, state(80))
        store.wait()
    with Store(url, policy) as store:
        assert (store.steps(), store.newest_whole()) == ([20, 60, 80], (80, []))
        assert is_state(store.restore(60, abstract()), 60)
    assert {name.partition(".")[0] for name in folders(objects)} == {"20", "60", "80"}


def test_a_save_without_its_commit_is_never_seen_and_removed(lab):
    url, objects = lab
    with Store(url) as store:
        store.save(10, state(10))
        store.wait()

        def refuse():
            raise LockLost("another process has taken over")

        store.before_commit = refuse
        store.save(20, state(20))
        with pytest.raises(LockLost):
            store.wait()
        assert store.steps() == [10]
    # As a process leaves it that is killed before the last of its objects.
    killed = {key.replace("/10.", "/20."): data for key, data in objects.items()}
    objects.update({key: data for key, data in killed.items() if "commit.json" not in key})
    with Store(url) as store:
        assert (store.steps(), store.newest_whole(), store.unsealed()) == ([10], (10, []), [20])
        store.save(30, state(30))
        store.wait()
        assert [name.partition(".")[0] for name in folders(objects)] == ["10", "30"]


def test_a_step_that_is_saved_again_replaces_the_former(lab):
    url, objects = lab
    with Store(url) as store:
        store.save(10, state(1))
        store.wait()
        former = dict(objects)
        store.save(10, state(2))
        store.wait()
        assert len(folders(objects)) == 1
    # A kill between the commit and the deletion leaves both; the clock of the second machine may
    # have been behind.
    objects.update(former)
    with Store(url) as store:
        assert is_state(store.restore(10, abstract()), 2)
        store.cut_back(10)
        assert len(folders(objects)) == 1


def test_damage_falls_back_and_is_set_aside_until_a_later_save(lab):
    url, objects = lab
    with Store(url) as store:
        for step in (10, 20):
            store.save(step, state(step))
        store.wait()
    largest = max((key for key in objects if "/20." in key), key=lambda key: len(objects[key]))
    objects[largest] = objects[largest][:-1]
    with Store(url) as store:
        step, (problem,) = store.newest_whole()
        assert step == 10
        assert "bytes, not" in problem.what
        store.cut_back(10)
        assert store.steps() == [10]
        trashed = next(key for key in objects if key.endswith("/trashed.json"))
        assert "is damaged" in json.loads(objects[trashed])["reason"]
        store.save(30, state(30))
        store.wait()
        assert [name.partition(".")[0] for name in folders(objects)] == ["10", "30"]


@pytest.mark.parametrize("file", ["/d/", "manifest.ocdbt", "commit_success.txt", "commit.json"])
def test_half_an_upload_is_not_committed(lab, faults, file):
    url, _ = lab
    with Store(url) as store:
        store.save(10, state(10))
        store.wait()
        faults.append(object_stores.Fault(f"(PUT|POST) .*{file}", lost_bytes=7, times=1))
        store.save(20, state(20))
        with pytest.raises(CheckpointError, match=r"was stored incompletely; .*step 10$") as failed:
            store.wait()
        assert failed.value.exit_code == 75
        assert store.steps() == [10]
    with Store(url) as store:
        store.save(20, state(20))
        store.wait()
        assert store.steps() == [10, 20]
        assert is_state(store.restore(20, abstract()), 20)


@pytest.mark.full
def test_a_store_that_is_away_is_waited_for_and_named(lab, faults):
    url, objects = lab
    with Store(url) as store:
        store.save(10, state(10))
        store.wait()
        faults.append(object_stores.Fault(status=503, times=1))
        store.save(20, state(20))
        store.wait()
        assert store.committed() == [10, 20]
        faults[:] = [object_stores.Fault("(PUT|POST) .*commit.json", status=503)]
        store.save(30, state(30))
        with pytest.raises(CheckpointError) as failed:
            store.wait()
    line = str(failed.value)
    assert failed.value.exit_code == 75
    assert line.startswith(f"step 30 was not saved: {url}/30.")
    assert line.endswith("rerun the command: it continues from step 20")
    faults.clear()
    with Store(url) as store:
        store.save(30, state(30))
        store.wait()
    assert [name.partition(".")[0] for name in folders(objects)] == ["20", "30"]


def test_an_answer_that_is_lost_does_not_cost_the_checkpoint(lab, faults):
    url, _ = lab
    with Store(url) as store:
        faults.append(object_stores.Fault("(PUT|POST) .*commit.json", resets="answer", times=1))
        store.save(10, state(10))
        store.wait()
        assert store.steps() == [10]


def test_a_checkpoint_that_is_not_listed_yet_is_kept(lab, faults):
    url, _ = lab
    with Store(url) as store:
        store.save(10, state(10))
        store.wait()
        faults.append(object_stores.Fault("GET $", hidden="commit.json"))
        assert store.steps() == [10]
    with Store(url) as store:
        store.save(20, state(20))
        store.wait()
        assert store.steps() == [10, 20]


def test_a_bucket_that_refuses_is_one_line(monkeypatch):
    with object_stores.serving({"lab": {}}) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        with Store("gs://other/run") as store, pytest.raises(CheckpointError) as refusal:
            store.save(1, state(1))
    assert "no access for you" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_other_urls_are_refused():
    with pytest.raises(CheckpointError, match="hdfs://lab/run is neither a directory nor"):
        Store("hdfs://lab/run")
