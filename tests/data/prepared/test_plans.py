import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from luthier.data import (
    Bytes,
    Concatenate,
    Documents,
    FirstFit,
    Mixture,
    Packed,
    Packing,
    Prepared,
    SplitTokens,
    Stage,
    TrimTokens,
    Unpacked,
    made_plans,
    verify,
)
from luthier.data.prepared import plans, prepared
from tests.data.prepared.test_prepared import TEXTS, assert_same, make

PACKINGS = [Concatenate(), FirstFit(), Unpacked(), SplitTokens(documents_per_group=7), TrimTokens()]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luthier" / "plans"


@pytest.fixture
def directory(tmp_path):
    return make(tmp_path / "corpus")


def kept(directory):
    return sorted(os.listdir(os.path.join(directory, "plans")))


def hide_targets(directory):
    for shard in sorted(os.listdir(directory)):
        if shard.startswith("shard-"):
            os.remove(os.path.join(directory, shard, "targets.npy"))


@pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: type(packing).__name__)
def test_a_second_start_reads_no_targets_and_has_the_same_batches(directory, packing):
    computed = Packed(Documents(TEXTS), Bytes(), 16, packing)
    first = Prepared(directory, 16, packing)
    digest, described = first.rows.digest, first.describe()
    plan = packing.plan(computed.stream.num_targets, 16)
    assert digest == plan_digest(first, packing, plan)
    assert described == pytest.approx(computed.describe())
    hide_targets(directory)
    second = Prepared(directory, 16, packing)
    assert second.rows.digest == digest
    assert second.describe() == described
    assert second.rows.num_examples == computed.rows.num_examples
    for name in ("row_starts", "starts", "lengths", "ids"):
        array = getattr(second.rows.plan, name)
        assert isinstance(array.base, np.memmap)
        assert array.dtype == getattr(plan, name).dtype
        np.testing.assert_array_equal(array, getattr(plan, name))
    assert_same(computed, second)


def plan_digest(node, packing, plan):
    """The digest of rows whose plan is made in memory, as runs have it that began before."""
    return packing.rows(
        node.stream, node.length, node.byte_lengths, node.prefix_bytes, node.fingerprint, plan
    ).digest


def test_the_digests_are_those_of_older_runs(directory):
    # Written before plans were kept: checkpoints hold them.
    digests = {
        Concatenate(): "1c736a01a256669a5f1ce9b1873da264",
        FirstFit(): "d08a1e1523cf2cba90257e8f5ebe7e73",
        TrimTokens(): "1f64dee74557aac7fc7cd800232e3413",
    }
    for packing, digest in digests.items():
        for _ in range(2):
            assert Prepared(directory, 16, packing).rows.digest == digest


@pytest.mark.parametrize("packing", [FirstFit(), SplitTokens()], ids=repr)
def test_what_begins_documents_is_kept_where_bytes_count_too_many(directory, packing, monkeypatch):
    monkeypatch.setattr(Prepared, "prefix_bytes", 1)
    first = Prepared(directory, 16, packing)
    fresh = packing.rows(first.stream, 16, first.byte_lengths, 1, first.fingerprint)
    assert first.rows.opens.any()
    np.testing.assert_array_equal(first.rows.opens, fresh.opens)
    hide_targets(directory)
    rows = np.arange(first.num_rows)
    again = Prepared(directory, 16, packing).rows.gather(rows)
    np.testing.assert_array_equal(again["target_bytes"], fresh.gather(rows)["target_bytes"])


def test_another_length_packing_or_setting_is_another_plan(directory):
    for node in (
        Prepared(directory, 16, FirstFit()),
        Prepared(directory, 16, FirstFit()),
        Prepared(directory, 17, FirstFit()),
        Prepared(directory, 16, Concatenate()),
        Prepared(directory, 16, SplitTokens(documents_per_group=7)),
        Prepared(directory, 16, SplitTokens(documents_per_group=8)),
    ):
        assert node.num_rows
        assert os.path.basename(node.rows.plan.folder) in kept(directory)
    assert len(kept(directory)) == 5


def test_an_edited_manifest_is_another_plan(directory):
    before = Prepared(directory, 16, FirstFit()).rows.plan.folder
    path = os.path.join(directory, "manifest.json")
    with open(path, "r+") as file:
        content = json.load(file)
        file.seek(0)
        json.dump({**content, "digest": "another"}, file)
        file.truncate()
    after = Prepared(directory, 16, FirstFit()).rows
    assert after.plan.folder != before
    assert after.plan.facts.corpus == "another16"


def test_another_revision_or_format_is_another_plan(directory, monkeypatch):
    before = Prepared(directory, 16, FirstFit()).rows.plan.folder
    monkeypatch.setattr(FirstFit, "REVISION", 2)
    second = Prepared(directory, 16, FirstFit()).rows.plan.folder
    monkeypatch.setattr(plans, "FORMAT", 2)
    assert len({before, second, Prepared(directory, 16, FirstFit()).rows.plan.folder}) == 3


def tear(path):
    os.truncate(path, os.path.getsize(path) - 8)


def lengthen(path):
    with open(path, "ab") as file:
        file.write(bytes(8))


def hollow(path):
    size = os.path.getsize(path)
    os.truncate(path, 128)
    os.truncate(path, size)


def swap(path):
    np.save(path, np.load(path).astype(np.float64))


def edit(path):
    with open(os.path.join(os.path.dirname(path), "plan.json"), "r+") as file:
        content = file.read().replace('"documents": 62', '"documents": 61')
        file.seek(0)
        file.write(content)


def cut_header(path):
    os.truncate(os.path.join(os.path.dirname(path), "plan.json"), 40)


@pytest.mark.parametrize(
    "damage", [tear, lengthen, hollow, swap, edit, cut_header, os.remove], ids=lambda f: f.__name__
)
def test_a_damaged_plan_is_made_anew(directory, damage):
    whole = Prepared(directory, 16, FirstFit())
    folder, digest = whole.rows.plan.folder, whole.rows.digest
    path = os.path.join(folder, "starts.npy")
    starts = np.array(whole.rows.plan.starts)
    del whole
    damage(path)
    node = Prepared(directory, 16, FirstFit())
    of = plans.identity(node.manifest, node._shards, 16, FirstFit())
    assert plans.find(directory, of) is None
    again = Prepared(directory, 16, FirstFit())
    assert again.rows.digest == digest
    assert again.rows.plan.folder == folder
    np.testing.assert_array_equal(np.load(path), starts)
    assert len(kept(directory)) == 1
    assert plans.find(directory, of) is not None


def test_a_folder_that_cannot_be_written_leaves_plans_in_the_cache(directory, cache):
    with open(os.path.join(directory, "plans"), "w"):
        pass  # a file where the folder would be: as true for root as for anybody
    first = Prepared(directory, 16, FirstFit())
    assert first.rows.plan.folder == str(cache / os.listdir(cache)[0])
    hide_targets(directory)
    assert_same(
        Packed(Documents(TEXTS), Bytes(), 16, FirstFit()), Prepared(directory, 16, FirstFit())
    )


def test_where_nothing_can_be_written_plans_are_in_memory(directory, cache):
    for path in (os.path.join(directory, "plans"), str(cache)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w"):
            pass
    node = Prepared(directory, 16, FirstFit())
    assert node.rows.plan.folder == ""
    assert node.num_documents == len(TEXTS)
    assert_same(Packed(Documents(TEXTS), Bytes(), 16, FirstFit()), node)


def test_a_full_disk_leaves_nothing_behind(directory, cache, monkeypatch):
    save = np.save

    def full(file, array, **settings):
        if file.name.startswith(directory) and file.name.endswith("lengths.npy"):
            raise OSError(28, "No space left on device")
        save(file, array, **settings)

    monkeypatch.setattr(np, "save", full)
    node = Prepared(directory, 16, FirstFit())
    assert node.rows.plan.folder.startswith(str(cache))
    assert kept(directory) == []


def test_two_that_make_one_plan_at_once_both_have_it(directory):
    nodes = [Prepared(directory, 16, FirstFit()) for _ in range(4)]
    barrier, found = threading.Barrier(4, timeout=60), []

    def start(node):
        of = plans.identity(node.manifest, node._shards, 16, node.packing)
        rows = node._pack()
        barrier.wait()
        found.append(plans.keep(directory, of, rows, len(TEXTS)))

    threads = [threading.Thread(target=start, args=[node]) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    computed = Packed(Documents(TEXTS), Bytes(), 16, FirstFit()).rows.plan
    assert len(found) == 4
    for plan in found:
        np.testing.assert_array_equal(plan.starts, computed.starts)
    assert len(kept(directory)) == 1
    assert Prepared(directory, 16, FirstFit()).rows.plan.folder


START = """
import sys, time
from luthier.data import FirstFit, Prepared
node = Prepared(sys.argv[1], 16, FirstFit())
print("ready", flush=True)
sys.stdin.readline()
print(node.rows.digest, node.rows.plan.folder)
"""


@pytest.mark.slow
def test_two_processes_that_begin_at_once_have_one_plan(directory):
    command = [sys.executable, "-c", START, directory]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        outputs = []
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            outputs.append(process.communicate()[0].split())
    assert outputs[0] == outputs[1]
    rows = Prepared(directory, 16, FirstFit()).rows
    assert outputs[0] == [rows.digest, rows.plan.folder]
    assert len(kept(directory)) == 1


def test_what_a_killed_process_left_is_removed_after_a_day(directory):
    root = os.path.join(directory, "plans")
    for name, age in (("old", 2), ("new", 0)):
        path = os.path.join(root, f"0.partial-{name}")
        os.makedirs(path)
        os.utime(path, (time.time() - age * 86400,) * 2)
    assert Prepared(directory, 16, FirstFit()).num_rows
    assert [name for name in kept(directory) if "partial" in name] == ["0.partial-new"]


@dataclasses.dataclass(frozen=True)
class Own(FirstFit):
    """A packing of a user's, who says no revision: its code may change from run to run."""


def test_plans_of_a_packing_without_a_revision_of_its_own_are_not_kept(directory):
    assert not plans.is_kept(Own())
    assert Packing.REVISION == 0
    node = Prepared(directory, 16, Own())
    assert_same(Packed(Documents(TEXTS), Bytes(), 16, Own()), node)
    assert node.describe()["documents"] == len(TEXTS)
    assert not os.path.exists(os.path.join(directory, "plans"))


def test_a_checkpoint_of_before_continues(directory, monkeypatch):
    monkeypatch.setattr(plans, "is_kept", lambda packing: False)
    old = Prepared(directory, 16, FirstFit()).iterator(global_batch_size=4, seed=1)
    next(old)
    state = old.get_state()
    wanted = next(old)
    monkeypatch.undo()
    for _ in range(2):
        new = Prepared(directory, 16, FirstFit()).iterator(global_batch_size=4, seed=1)
        new.set_state(state)
        np.testing.assert_array_equal(next(new)["inputs"], wanted["inputs"])


def test_plans_are_no_part_of_what_is_verified_and_shards_are_prepared_again(directory):
    assert Prepared(directory, 16, FirstFit()).num_rows
    hollow(os.path.join(directory, "plans", kept(directory)[0], "starts.npy"))
    assert verify(directory)["documents"] == len(TEXTS)
    assert make(directory) == directory


def test_a_slow_plan_is_reported(directory, monkeypatch):
    node = Prepared(directory, 16, FirstFit())
    mixture = Mixture({"a": node}, [Stage({"a": 1.0})])
    assert node.num_rows
    assert made_plans(mixture) == []
    folder = node.rows.plan.folder
    rows = f"{directory}: {node.num_rows} rows of 62 documents were packed in 1.5 s; the plan is "
    assert prepared._notices(node, node.rows.plan, 1.5) == [f"{rows}kept in {folder}"]
    unkept = dataclasses.replace(node.rows.plan, folder="")
    assert prepared._notices(node, unkept, 1.5) == [
        f"{rows}not kept, since no folder can be written"
    ]
    monkeypatch.setattr(prepared, "REPORTED_SECONDS", 0.0)
    again = Prepared(directory, 17, FirstFit())
    assert again.num_rows
    assert len(made_plans(dataclasses.replace(mixture, components={"a": again}))) == 1
    assert made_plans(Prepared(directory, 17, FirstFit())) == []
