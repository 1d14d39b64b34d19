"""Pods without a shared disk: processes are killed, and others continue on empty disks."""

import pathlib
import re
import shutil
import signal
import sys
import time

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import pods

from tests import object_stores
from tests.fault_injection.machine import Machine

STEPS, EVERY = 70, 5
OVERRIDES = (
    f"training.steps={STEPS}",
    f"checkpoints.every.count={EVERY}",
    "model.block.attention.num_heads=4",
    "model.block.attention.num_kv_heads=4",
)
MESHES = {
    "data": ("parallelism.mesh.data={count}",),
    "fsdp": ("parallelism.mesh.fsdp={count}",),
    "tensor": ("parallelism.mesh.tensor={count}",),
    "slices": ("parallelism.mesh.across_slices.data=2", "parallelism.mesh.fsdp={half}"),
}
# 50 kills. Each case trains an undisturbed run, too.
CASES = (
    ("gs", 2, "data", 7),
    ("s3", 2, "fsdp", 7),
    ("gs", 2, "tensor", 6),
    ("s3", 2, "slices", 6),
    ("s3", 4, "data", 6),
    ("gs", 4, "fsdp", 6),
    ("s3", 4, "tensor", 6),
    ("gs", 4, "slices", 6),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return what starts the processes."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """Return a bucket, and the address of its server; a reader here has a disk of its own, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    with pods.laboratory() as (lab, address):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        yield lab, address


@pytest.mark.parametrize(("scheme", "count", "mesh", "num_kills"), CASES)
def test_kills_cost_a_pod_nothing(
    machine, lab, tmp_path, scheme, count, mesh, num_kills, record_property
):
    lab, address = lab
    words = [word.format(count=count, half=count // 2) for word in MESHES[mesh]]
    pod = pods.Pod(machine, tmp_path / "disks", address, [*OVERRIDES, *words])
    pod.train(count, f"records.directory={scheme}://lab/alone")
    alone = pods.losses(lab.rows())
    assert [step for step, _ in alone] == list(range(1, STEPS + 1))
    lab.objects.clear()

    killer = pods.Killer(lab, f"{scheme} {count} {mesh}")
    home = f"records.directory={scheme}://lab/runs"
    with pods.Reader(lab, f"{scheme}://lab/runs") as reader:
        for _ in range(num_kills - 1):
            killer.disturb(pod, count, home)
        assert max(lab.check_commits(), default=0) < STEPS, "all of these came before the end"
        killer.disturb(pod, count, home, pattern=rf"/checkpoints/{STEPS}\..*/commit\.json$")
        pod.train(count, home)
    assert pods.losses(lab.rows()) == alone, "each step once, bit-identical"
    assert lab.check_commits()[-1] == STEPS
    assert lab.problems == []
    assert reader.num_looks > num_kills
    summary = {
        "kills": killer.num_kills,
        "seconds to the end of the others": round(killer.slowest_seconds, 1),
        "looks by URL": reader.num_looks,
        "starts": sum(row["kind"] == "header" for row in lab.rows()),
    }
    print(f"{scheme} {count} {mesh}: {summary}")
    for name, value in summary.items():
        record_property(name, value)


def tokens(rows):
    return [row["values"]["tokens"] for row in rows if row["kind"] == "step"]


def test_a_run_shrinks_changes_its_mesh_and_grows_back(machine, lab, tmp_path):
    lab, address = lab
    batch = ("training.global_batch_size=12", "evaluations.held_out.global_batch_size=12")
    pod = pods.Pod(machine, tmp_path / "disks", address, [*OVERRIDES, *batch])
    pod.train(4, "records.directory=gs://lab/alone")
    alone = lab.rows()
    lab.objects.clear()

    home = "records.directory=gs://lab/runs"
    killer = pods.Killer(lab, "sizes")
    parts = (
        (4, "parallelism.mesh.data=-1"),
        (2, "parallelism.mesh.data=-1"),  # two of the four machines are left
        (3, "parallelism.mesh.data=-1"),
        (2, "parallelism.mesh.fsdp=2"),
        (4, "parallelism.mesh.tensor=2"),
    )
    run = []
    with pods.Reader(lab, "gs://lab/runs"):
        for part, (count, mesh) in enumerate(parts):
            # Of each part its second checkpoint, of which it is not known whether it was committed.
            saved = max(lab.check_commits(), default=0)
            moment = rf"/checkpoints/{saved + 2 * EVERY}\..*/commit\.json$"
            killer.disturb(pod, count, home, mesh, *run, pattern=moment)
            assert max(lab.check_commits()) >= saved + EVERY, f"part {part} took it further"
            run = ["--run", lab.run_id()]
        before = dict(lab.objects)
        refused = pod.start(3, home, "parallelism.mesh.data=-1", *run, devices=3)
        assert [each.wait(300) for each in refused] == [2] * 3, pods.texts(refused)
        for each in refused:
            (line,) = each.stderr.splitlines()
            assert "training.global_batch_size: 12 rows cannot be divided over 9 devices" in line
        assert lab.objects == before, "a refused start changes nothing"
        pod.train(4, home, "parallelism.mesh.data=-1", *run)
    rows = lab.rows()
    found, expected = pods.losses(rows), pods.losses(alone)
    assert [step for step, _ in found] == list(range(1, STEPS + 1)), "each step once"
    np.testing.assert_allclose(
        [loss for _, loss in found], [loss for _, loss in expected], rtol=1e-5
    )
    assert tokens(rows) == tokens(alone)
    assert lab.problems == []


def last_recorded(lab):
    return max((step for step, _ in pods.losses(lab.rows())), default=0)


class Expected:
    """What the next start must resume from, and whether it may read arrays of the bucket."""

    def __init__(self, lab):
        self._lab = lab
        self.at(0, 0, reads=False)

    def at(self, first, last, reads):
        self._steps, self._reads = (first, last), reads
        self._known = {key for key in self._lab.objects if re.search(r"/checkpoints/.*/d/", key)}
        self._lab.num_reads.clear()

    def check(self):
        headers = [row for row in self._lab.rows() if row["kind"] == "header"]
        assert self._steps[0] <= headers[-1]["step"] <= self._steps[1]
        num_reads = sum(self._lab.num_reads[key] for key in self._known)
        assert bool(num_reads) == self._reads, f"{num_reads} reads of arrays in the bucket"


# Where the arrays are split over all machines, the guardian of a machine is the next one; of two
# slices with the same arrays, it is the counterpart in the other slice.
@pytest.mark.parametrize(("mesh", "pair"), [("fsdp", (1, 2)), ("slices", (1, 3))])
def test_a_lost_machine_is_restored_from_its_guardian(machine, lab, tmp_path, mesh, pair):
    """One of four loses its disk and memory, then a process dies, then two machines are lost."""
    lab, address = lab
    fast = "checkpoints.fast=luthier.checkpoint.HostTier('~/fast',luthier.durations.Steps(2))"
    words = [word.format(count=4, half=2) for word in MESHES[mesh]]
    overrides = [*OVERRIDES, *words, "checkpoints.every.count=30", fast]
    pod = pods.Pod(machine, tmp_path / "disks", address, overrides, keeps_disks=True)
    pod.train(4, "records.directory=gs://lab/alone")
    alone = pods.losses(lab.rows())
    lab.objects.clear()
    assert not list(tmp_path.glob("disks/start-0/machine-*/fast/*")), "the run is over"

    home = "records.directory=gs://lab/runs"
    expected = Expected(lab)
    # Which machines are lost with what is on them, and when; where none is, a process dies.
    for lost, at in (((2,), 13), ((0,), 21), ((), 34), (pair, 41)):
        started = pod.start(4, home)
        while last_recorded(lab) < at and not any(each.ended.is_set() for each in started):
            time.sleep(0.02)
        for index in lost or (3,):
            pods.kill(started[index])
        codes = [each.wait(600) for each in started]
        assert set(codes) <= {75, 1, -signal.SIGKILL}, pods.texts(started)
        expected.check()
        recorded, durable = last_recorded(lab), max(lab.check_commits(), default=0)
        assert durable == (30 if at > 30 else 0)
        for index in lost:
            shutil.rmtree(pod.disk(index))  # another machine takes its place
        if len(lost) > 1:  # a machine and its guardian
            expected.at(durable, durable, reads=True)
        else:
            expected.at(recorded - 3, recorded, reads=False)
    pod.train(4, home)
    expected.check()
    assert pods.losses(lab.rows()) == alone, "each step once, bit-identical"
    assert lab.problems == []
