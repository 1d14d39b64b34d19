from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.checkpoint import Checkpoints, Store
from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint import store as store_lib
from luthier.errors import CheckpointError, LockLost
from luthier.metrics import Selector
from luthier.storage import Lock, list_trash


def state(step, size=64):
    values = np.random.default_rng(step).normal(size=(size, size)).astype(np.float32)
    return {"parameters/w": jnp.asarray(values), "step": jnp.int32(step)}


def data():
    return iter(grain.MapDataset.range(1000).shuffle(seed=1).repeat().to_iter_dataset())


def abstract(arrays):
    return {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays.items()}


def assert_is_state(arrays, step):
    for name, array in state(step, arrays["parameters/w"].shape[0]).items():
        assert np.asarray(arrays[name]).tobytes() == np.asarray(array).tobytes()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "checkpoints", Checkpoints(keep_latest=2)) as store:
        yield store


def saved(store, *steps, metrics=None):
    for step in steps:
        store.save(step, state(step), extra={"step": step}, metrics=metrics)
    store.wait()


def biggest_file(store, step):
    files = (path for path in (store.directory / str(step) / "arrays").rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_an_empty_store(store):
    assert (store.steps(), store.latest(), store.best()) == ([], None, None)
    assert store.newest_whole() == (None, [])
    assert not store.directory.exists()
    with pytest.raises(CheckpointError, match="no checkpoint of step 3; there is no other"):
        store.read_extra(3)


def test_arrays_iterator_and_extra_are_one_whole(store):
    iterator = data()
    for _ in range(7):
        next(iterator)
    store.save(7, state(7), iterator, {"best": [1, None]})
    expected = [next(iterator) for _ in range(3)]
    store.wait()
    restored = data()
    assert_is_state(store.restore(7, abstract(state(7)), restored), 7)
    assert [next(restored) for _ in range(3)] == expected
    assert store.read_extra(7) == {"best": [1, None]}
    assert store.read(7).arrays == {
        "parameters/w": ((64, 64), "float32"),
        "step": ((), "int32"),
    }


def test_extra_is_copied_and_must_be_json(store):
    extra = {"list": [1]}
    store.save(1, state(1), extra=extra)
    extra["list"].append(2)
    store.wait()
    assert store.read_extra(1) == {"list": [1]}
    with pytest.raises(TypeError):
        store.save(2, state(2), extra={"array": jnp.ones(2)})


def test_the_policy_deletes_once_the_new_one_is_committed(store):
    saved(store, 10, 20, 30)
    assert store.steps() == [20, 30]
    assert sorted(path.name for path in store.directory.iterdir()) == ["20", "30"]


def test_keeps_and_finds_the_best(tmp_path):
    policy = Checkpoints(keep_latest=1, keep_best=Selector("held_out", "loss"))
    with Store(tmp_path, policy) as store:
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, float("nan"))):
            saved(store, step, metrics={"held_out/loss": np.float32(loss)})
        assert store.steps() == [2, 4]
        assert store.best() == 2
    assert Store(tmp_path, policy).best() == 2


def test_a_save_is_seen_when_it_is_committed(store):
    store.save(1, state(1))
    committed = store.committed()
    store.wait()
    assert committed + store.committed() == [1]
    assert store.committed() == []


def test_the_same_step_can_be_saved_again(store):
    saved(store, 1)
    store.save(1, state(5), extra={"again": True})
    store.wait()
    assert store.read_extra(1) == {"again": True}
    assert_is_state(store.restore(1, abstract(state(5))), 5)
    assert [path.name for path in store.directory.iterdir()] == ["1"]


def torn(store, step):
    """What a save leaves that is killed before it is committed."""
    shutil.copytree(store.directory / str(store.latest()), store.directory / str(step))
    (store.directory / str(step) / commit_lib.FILE).unlink()
    (store.directory / f"{step}.orbax-checkpoint-tmp" / "arrays").mkdir(parents=True)


def test_torn_saves_are_ignored_cleaned_up_and_replaced(store):
    saved(store, 100)
    torn(store, 150)
    torn(store, 170)
    with Store(store.directory) as resumed:
        assert resumed.latest() == 100
        assert_is_state(resumed.restore(100, abstract(state(100))), 100)
        saved(resumed, 150)
        assert_is_state(resumed.restore(150, abstract(state(150))), 150)
        assert resumed.steps() == [100, 150]
        assert sorted(path.name for path in store.directory.iterdir()) == [".trash", "100", "150"]
        assert trashed(store) == ["150", "170"], "they hold all arrays: nobody knows why unsealed"
        saved(resumed, 160)
        assert trashed(store) == ["170"]


def trashed(store):
    return sorted(entry.path.name for entry in list_trash(store.directory))


def test_cut_back_moves_what_is_later_and_torn_aside_until_something_later_is_saved(tmp_path):
    with Store(tmp_path, Checkpoints(keep_latest=9)) as store:
        saved(store, 100, 150, 200)
        torn(store, 250)
        store.cut_back(150)
        assert store.steps() == [100, 150]
        assert trashed(store) == ["200", "250"]
        saved(store, 190, 200)
        assert trashed(store) == ["200", "250"]
        saved(store, 201)
        assert trashed(store) == ["250"]


@pytest.mark.parametrize("damage", [flip, os.remove, lambda path: os.truncate(path, 3)])
def test_damage_names_the_step_and_the_others(store, damage):
    saved(store, 10, 20)
    damage(biggest_file(store, 20))
    with pytest.raises(CheckpointError, match=r"20 is damaged: arrays/.*other checkpoints: 10"):
        store.restore(20, abstract(state(20)))
    step, problems = store.newest_whole()
    assert step == 10
    assert "20 is damaged" in str(problems[0])
    assert_is_state(store.restore(10, abstract(state(10))), 10)


def test_what_was_found_whole_is_not_read_again_and_only_once(store, monkeypatch):
    saved(store, 10, 20)
    looked, check = [], commit_lib.check

    def count(directory, commit):
        looked.append(directory.name)
        return check(directory, commit)

    monkeypatch.setattr(commit_lib, "check", count)
    assert store.newest_whole() == (20, [])
    assert_is_state(store.restore(20, abstract(state(20))), 20)
    assert looked == ["20"]
    flip(biggest_file(store, 20))
    with pytest.raises(CheckpointError, match="20 is damaged"):
        store.restore(20, abstract(state(20)))
    assert store.newest_whole()[0] == 10
    flip(biggest_file(store, 10))  # nobody vouched for another step
    store.trust(20)
    with pytest.raises(CheckpointError, match="10 is damaged"):
        store.restore(10, abstract(state(10)))


def test_a_damaged_commit_file_is_damage_too(store):
    saved(store, 10, 20)
    flip(store.directory / "20" / commit_lib.FILE)
    with pytest.raises(CheckpointError, match=r"20 is damaged: commit.json.*other checkpoints: 10"):
        store.restore(20, abstract(state(20)))
    assert store.newest_whole()[0] == 10


def test_what_does_not_fit_is_listed_at_once(store):
    saved(store, 1)
    wanted = abstract({"parameters/w": jnp.ones((64, 63)), "parameters/new": jnp.ones(1)})
    with pytest.raises(CheckpointError) as error:
        store.restore(1, wanted, data())
    assert len(error.value.problems) == 4
    for word in ("float32[64, 63]", "parameters/new", "step int32[]", "data iterator"):
        assert word in str(error.value)


def test_part_of_it_can_be_restored(store):
    saved(store, 1)
    wanted = abstract({"parameters/w": state(1)["parameters/w"]})
    assert set(store.restore(1, wanted, partial=True)) == {"parameters/w"}


def test_another_grain_is_a_notice(store, monkeypatch):
    saved(store, 1)
    assert store.notices(1) == []
    others = {**store.read(1).versions, "grain": "9.9"}
    monkeypatch.setattr("luthier.checkpoint.store.installed_versions", lambda: others)
    (notice,) = store.notices(1)
    assert "grain" in notice
    assert "9.9" in notice


def test_a_full_disk_is_one_line_and_keeps_the_former(store, monkeypatch):
    saved(store, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("luthier.checkpoint.commit.write", full)
        store.save(2, state(2))
        message = "step 2 was not saved: the disk is full; .*continues from step 1"
        with pytest.raises(CheckpointError, match=message):
            store.wait()
    assert [path.name for path in store.directory.iterdir()] == ["1"]
    saved(store, 2)
    assert store.steps() == [1, 2]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (27, r"File too large; raise the limit on file sizes \(`ulimit -f`\) and rerun"),
        (28, "the disk is full; free some space and rerun"),
        (30, "Read-only file system; make it writable and rerun"),
        (5, "Input/output error; check the directory and rerun"),
    ],
)
def test_what_the_system_refuses_tensorstore_is_one_line(store, monkeypatch, number, message):
    saved(store, 1)

    def refuse(*_):
        text = f"Failed writing: \"d/1\": Failed to write 9 bytes [os_error_code='{number}']"
        raise ExceptionGroup("save", [ValueError(text)]) from ValueError(text)

    monkeypatch.setattr("luthier.checkpoint.commit.write", refuse)
    store.save(2, state(2))
    with pytest.raises(CheckpointError, match=f"step 2 was not saved: {message} the command: it"):
        store.wait()
    assert store.steps() == [1]


def test_our_own_bugs_are_not_blamed_on_the_disk(store, monkeypatch):
    monkeypatch.setattr("luthier.checkpoint.commit.write", lambda *_: 1 / 0)
    store.save(1, state(1))
    with pytest.raises(ZeroDivisionError):
        store.wait()


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        Store(tmp_path / "file" / "checkpoints") as store,
        pytest.raises(CheckpointError, match=r"step 1 was not saved: .*starts again"),
    ):
        store.save(1, state(1))


SAVER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_store
from luthier.checkpoint import Checkpoints, Store
with Store(sys.argv[2], Checkpoints(keep_latest=2)) as store:
    step = (store.latest() or 0) + 1
    store.cut_back(step - 1)
    iterator = test_store.data()
    iterator.set_state({"next_index": step - 1})
    while True:
        next(iterator)
        store.save(step, test_store.state(step, 512), iterator, {"step": step})
        print(step, flush=True)
        step += 1
"""


def kill_while_saving(directory, seconds):
    """Kill a process that saves all the time; return the last step that it began to save."""
    command = [sys.executable, "-c", SAVER, os.path.dirname(__file__), str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    lines = [process.stdout.readline() for _ in range(2)]
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return int(lines[-1])


def check_after_kill(directory, begun):
    store = Store(directory)
    latest = store.latest()
    assert latest is not None
    assert latest >= begun - 1
    assert store.newest_whole() == (latest, [])
    iterator = data()
    assert_is_state(store.restore(latest, abstract(state(latest, 512)), iterator), latest)
    expected = data()
    expected.set_state({"next_index": latest})
    assert next(iterator) == next(expected)
    assert store.read_extra(latest) == {"step": latest}


@pytest.mark.full
def test_kill_while_saving(tmp_path):
    begun = kill_while_saving(tmp_path, 0.1 + random.random() / 5)
    check_after_kill(tmp_path, begun)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_kills_while_saving(tmp_path, seed):
    for kill in range(3):
        begun = kill_while_saving(tmp_path, random.Random(f"{seed} {kill}").random())
        check_after_kill(tmp_path, begun)


@pytest.mark.parametrize("when", ["before the save", "before its commit"])
def test_nothing_is_committed_after_another_process_has_taken_over(store, tmp_path, when):
    path, left = tmp_path / "lock", [1 if when == "before the save" else 2]
    others = []
    with Lock(path) as lock:

        def fence():
            if left[0] == 1 and not others:
                path.unlink()
                others.append(Lock(path))
            left[0] -= 1
            lock.check()

        saved(store, 1)
        store.fence = fence
        with pytest.raises(LockLost, match=r"another process \(.*\) has taken over"):
            saved(store, 2)
        with pytest.raises(LockLost):
            saved(store, 3)
    others[0].release()
    with Store(store.directory) as other:
        assert (other.steps(), other.newest_whole()) == ([1], (1, []))


def test_current_names_what_decides():
    assert set(store_lib.installed_versions()) == {
        *("flax", "grain", "jax", "jaxlib", "luthier", "numpy", "optax", "orbax-checkpoint"),
    }
    assert "unknown" not in store_lib.installed_versions().values()


def test_the_same_versions_are_no_notice():
    assert store_lib.version_notices(store_lib.installed_versions()) == []


@pytest.mark.parametrize("package", ["grain", "orbax-checkpoint"])
def test_another_version_is_a_notice(package):
    (notice,) = store_lib.version_notices({**store_lib.installed_versions(), package: "0.0.1"})
    assert f"{package} 0.0.1" in notice
    assert store_lib.installed_versions()[package] in notice


def test_packages_that_are_no_longer_recorded_are_passed_over():
    assert store_lib.version_notices({"gone": "1"}) == []
