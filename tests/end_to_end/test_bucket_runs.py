"""Runs whose home is a bucket, on machines that share nothing else and are killed in saves."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import processes

from tests import object_stores

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


class Lab:
    """A bucket, and processes that are killed before an object arrives there."""

    def __init__(self):
        self.objects, self.moment, self.killing = {}, None, ()
        self.killed, self._deciding = threading.Event(), threading.Lock()
        self.problems = []

    def before_write(self, key):
        if key.endswith("/commit.json"):
            step = int(re.search(r"/checkpoints/(\d+)\.", key)[1])
            recorded = max((row["step"] for row in self.rows() if row["kind"] == "step"), default=0)
            if recorded < step:
                self.problems.append(f"the record ends at step {recorded}, before {key}")
        with self._deciding:
            if self.moment and re.search(self.moment, key) and not self.killed.is_set():
                for process in self.killing:
                    kill(process.pid)
                self.killed.set()
                return 503  # what is on its way may arrive or not: here it does not
        return None

    def rows(self):
        """Return the lines of the record, as they are in the bucket."""
        segments = {}
        for key in sorted(self.objects):
            if match := re.search(r"metrics\.jsonl\.segments/(\d+)-(\d+)-", key):
                segments[int(match[1])] = max(
                    self.objects[key], segments.get(int(match[1]), b""), key=len
                )
        data, end = b"", 0
        while end in segments:
            data, end = data + segments[end], end + len(segments[end])
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def check_commits(self):
        """Return the steps of the checkpoints that a reader finds; all of their files are there."""
        steps = []
        for key, data in dict(self.objects).items():
            if key.endswith("/commit.json"):
                commit, folder = json.loads(data), key.removesuffix("commit.json")
                steps.append(commit["step"])
                for name, (size, _) in commit["files"].items():
                    assert len(self.objects[folder + name]) == size
        return sorted(steps)


def kill(pid):
    """Kill a process, and the one that it started: a launcher, and its process of the run."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)


def start(folder, index, count, address, *overrides):
    """Start a process of a run, on a machine of its own: a folder that may not exist yet."""
    folder.mkdir(parents=True)
    command = processes.command(*OVERRIDES, *overrides, "--devices", "cpu:1")
    if count > 1:
        command += ["--coordinator", address, "--num-processes", str(count)]
        command += ["--process-id", str(index)]
    repository = processes.REPOSITORY
    path = os.pathsep.join((str(repository / "framework"), str(repository)))
    environment = processes.environment() | {"PYTHONPATH": path, "HOME": str(folder)}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def train(folder, count, *overrides, lab=None, victims=()):
    """Train in as many processes; return their exit codes and what they printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    machines = [folder / str(index) for index in range(count)]
    started = [start(at, i, count, address, *overrides) for i, at in enumerate(machines)]
    if lab is not None:
        lab.killing = [started[index] for index in victims]
    codes = [process.wait(timeout=300) for process in started]
    return codes, "\n".join((at / "output").read_text(errors="replace") for at in machines)


def losses(rows):
    return [(row["step"], row["values"]["loss"]) for row in rows if row["kind"] == "step"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("scheme", "count"), [("gs", 1), ("s3", 1), ("gs", 2), ("s3", 2)])
def test_a_run_that_is_killed_in_its_saves_ends_as_if_it_were_not(
    tmp_path, monkeypatch, scheme, count
):
    lab = Lab()
    with object_stores.serving({"lab": lab.objects}, before_write=lab.before_write) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        home = f"records.directory={scheme}://lab/runs"
        codes, output = train(tmp_path / "alone", count, f"records.directory={scheme}://lab/alone")
        assert codes == [0] * count, output[-3000:]
        alone = losses(lab.rows())
        assert [step for step, _ in alone] == list(range(1, STEPS + 1))
        lab.objects.clear()
        for number, moment in enumerate(MOMENTS):
            lab.moment, lab.killing = moment, ()
            lab.killed.clear()
            victim = number % count  # each machine in its turn; the others end by themselves
            codes, output = train(tmp_path / str(number), count, home, lab=lab, victims=[victim])
            assert codes[victim] == -signal.SIGKILL, output[-3000:]
            assert lab.killed.is_set()
            lab.check_commits()
        lab.moment, lab.killing = None, ()
        lab.killed.clear()
        codes, output = train(tmp_path / "last", count, home)
        assert codes == [0] * count, output[-3000:]
    assert losses(lab.rows()) == alone, "each step once, bit-identical"
    assert lab.check_commits()[-1] == STEPS
    assert lab.problems == []
