"""Runs whose home is a bucket, on machines that share nothing else and are killed in saves."""

import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import pods

from tests.fault_injection.machine import Machine

STEPS, EVERY = 60, 10
OVERRIDES = (f"training.steps={STEPS}", f"checkpoints.every.count={EVERY}")
# Each is the object that a process is killed for, which does not arrive: an array, the file with
# which Orbax finishes, the commit, the record that belongs to a commit, and the deletion's
# beginning, which is the commit of the checkpoint after it.
MOMENTS = (
    r"/checkpoints/20\..*/d/",
    r"/checkpoints/30\..*/commit_success.txt",
    r"/checkpoints/30\..*/commit.json",
    r"/metrics.jsonl.segments/",
    r"/checkpoints/50\..*/arrays/_METADATA",
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return what starts the processes."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("scheme", "count"), [("gs", 1), ("s3", 1), ("gs", 2), ("s3", 2)])
def test_a_run_that_is_killed_in_its_saves_ends_as_if_it_were_not(machine, tmp_path, scheme, count):
    with pods.laboratory() as (lab, address):
        pod = pods.Pod(machine, tmp_path, address, OVERRIDES)
        home = f"records.directory={scheme}://lab/runs"
        pod.train(count, f"records.directory={scheme}://lab/alone")
        alone = pods.losses(lab.rows())
        assert [step for step, _ in alone] == list(range(1, STEPS + 1))
        lab.objects.clear()
        for number, moment in enumerate(MOMENTS):
            victim = number % count  # each machine in its turn; the others end by themselves
            started = []
            lab.act_at(moment, lambda s=started, v=victim: pods.kill(s[v]))
            started += pod.start(count, home)
            codes = [each.wait(300) for each in started]
            assert codes[victim] == -signal.SIGKILL, pods.texts(started)
            assert lab.acted.is_set()
            lab.check_commits()
        pod.train(count, home)
    assert pods.losses(lab.rows()) == alone, "each step once, bit-identical"
    assert lab.check_commits()[-1] == STEPS
    assert lab.problems == []
