"""Studies whose home is a bucket, on machines that share nothing else and are killed."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import own_disks
import processes

from luthier.storage import ProcessIdentity
from tests import object_stores

STEPS, EVERY = 40, 10
TINY = (
    *(word for word in processes.TINY if "=" in word),
    f"training.steps={STEPS}",
    f"checkpoints.every.count={EVERY}",
    "evaluations.held_out.every.count=20",
)
SWEEP = (
    *("configs.lm.quickstart", *TINY, "directory=gs://lab/studies", "storage=None"),
    *("--name", "bucket", "--space", "optimizer.weight_decay=choice(0.0,0.3)"),
    *("--objective", "held_out/loss", "--sampler", "grid", "--trials", "3"),
    *("--slices", "1", "--devices", "cpu:1"),
)
URL = "gs://lab/studies/bucket"


class Lab:
    """A bucket, and a process that is killed when an object is written there."""

    def __init__(self):
        self.objects, self.moment, self.victim = {}, None, None
        self._deciding = threading.Lock()

    def before_write(self, key):
        with self._deciding:
            if self.moment and re.search(self.moment, key):
                self.moment = None
                os.kill(self.victim.pid, signal.SIGKILL)
        return None


def begin(folder, *words, **variables):
    """Begin a command on a machine of its own: a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    repository = processes.REPOSITORY
    path = os.pathsep.join((str(repository / "framework"), str(repository)))
    environment = processes.environment() | {"PYTHONPATH": path, "HOME": str(folder)}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu", **variables}
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "luthier", *words],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(process, folder):
    code = process.wait(timeout=600)
    return code, (folder / "output").read_text(errors="replace")


def growing(objects, name):
    """Return the lines of a growing file, as they are in the bucket."""
    segments = {}
    for key, data in objects.items():
        if match := re.fullmatch(rf"{name}\.segments/(\d+)-(\d+)-.*", key):
            start = int(match[1])
            segments[start] = max(data, segments.get(start, b""), key=len)
    text = b""
    while len(text) in segments:
        text += segments[len(text)]
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_goes_on_where_its_machine_was_lost(tmp_path, monkeypatch):
    lab = Lab()
    with object_stores.serving({"lab": lab.objects}, before_write=lab.before_write) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        lab.moment = r"trials/0001/run/checkpoints/30\..*/d/"
        lab.victim = begin(tmp_path / "first", "sweep", *SWEEP)
        code, output = finish(lab.victim, tmp_path / "first")
        assert code == -signal.SIGKILL, output[-3000:]
        resume = ("sweep", "--resume", URL, "--trust", "gs://lab/studies")
        code, output = finish(begin(tmp_path / "second", *resume), tmp_path / "second")
        assert code == 0, output[-3000:]
        assert f"`luthier sweep show {URL}` lists the trials" in output
        code, output = finish(begin(tmp_path / "third", "sweep", "show", URL), tmp_path / "third")
        assert "bucket: 3 of 3 trials ended" in output
        again = ("sweep", "rerun", f"{URL}/1", "--trust", URL)
        code, output = finish(begin(tmp_path / "third", *again), tmp_path / "third")
        assert code == 0, output[-3000:]
        assert "recorded numbers are equal, bit for bit" in output
    journal = growing(lab.objects, "studies/bucket/journal.jsonl")
    ended = [line["trial"] for line in journal if line["kind"] == "ended"]
    assert sorted(ended) == [0, 1, 2]
    leases = [line["trial"] for line in journal if line["kind"] == "leased"]
    # Trial 0 may still have been closing beside it.
    assert leases.count(1) == 2, "it was lost, and runs again"
    assert leases.count(0) <= 2
    assert leases.count(2) == 1
    for trial in range(3):
        rows = growing(lab.objects, f"studies/bucket/trials/000{trial}/run/metrics.jsonl")
        steps = [row["step"] for row in rows if row["kind"] == "step"]
        assert steps == list(range(1, STEPS + 1)), "each step once"
    assert not any("/source/" in key for key in lab.objects)


class Groups:
    """A study on four device groups, whose driver and workers are killed.

    Args:
      folder: Where machines and disks are.
      lab: The bucket.
    """

    def __init__(self, folder, lab):
        self._folder, self._lab, self._chance = folder, lab, random.Random(3)
        self._number, self._driver = 0, None
        self.disks = folder / "disks"
        self.disks.mkdir()

    def begin(self, reference):
        """Begin a driver on a machine with an empty disk."""
        self._number += 1
        self._machine = self._folder / f"machine-{self._number}"
        self._machine.mkdir()
        (self._machine / "pyproject.toml").write_text('[tool.luthier]\npackages = ["own_disks"]\n')
        repository = processes.REPOSITORY
        paths = (repository / "framework", repository, repository / "tests" / "end_to_end")
        there = any(key.endswith("groups/study.json") for key in self._lab.objects)
        more = ("--resume", "gs://lab/studies/groups", "--trust", "gs://lab/studies")
        self._driver = begin(
            self._machine,
            *("sweep", f"own_disks:{reference}", *(more if there else ())),
            **{own_disks.DISKS: str(self.disks)},
            PYTHONPATH=os.pathsep.join(map(str, paths)),
        )

    @property
    def output(self):
        return (self._machine / "output").read_text(errors="replace")

    def is_running(self):
        return self._driver.poll() is None

    def code(self):
        return self._driver.wait(timeout=900)

    def kill_driver(self):
        """Kill the driver, and what runs on the machines of its groups: they are lost, too."""
        self._driver.kill()
        self._driver.wait()
        self.end_jobs()

    def jobs(self):
        """Return the ids of the scripts that the drivers started."""
        for file in self._folder.glob("machine-*/cache/luthier/buckets/gs/**/launch/*/jobs.json"):
            for job in json.loads(file.read_text())["jobs"]:
                if ProcessIdentity(**json.loads(job["place"])).alive:
                    yield int(job["id"])

    def end_jobs(self, most=None):
        """Kill the scripts of groups, with their processes."""
        for number in list(self.jobs())[:most]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(number, signal.SIGKILL)

    def kill_worker(self):
        """Kill a process of a group; return whether there was one."""
        for file in sorted(self.disks.glob("*/pid"), key=lambda _: self._chance.random()):
            command = pathlib.Path(f"/proc/{file.read_text()}/cmdline")
            with contextlib.suppress(OSError):
                if b"luthier.launch.worker" in command.read_bytes():
                    os.kill(int(file.read_text()), signal.SIGKILL)
                    return True
        return False

    def _num_lines(self, kind):
        """Return how many lines of a kind the driver has in the journal of its machine."""
        folder = self._machine / "cache/luthier/buckets/gs/lab/studies/groups"
        with contextlib.suppress(FileNotFoundError):
            return (folder / "journal.jsonl").read_text().count(f'"kind":"{kind}"')
        return 0

    def remove_group(self):
        """End the scripts of one group for good, once the driver has opened all groups."""
        self.kill_driver()
        journal = growing(self._lab.objects, "studies/groups/journal.jsonl")
        known = sum(line["kind"] == "opened" for line in journal)
        self.begin("four")
        while self.is_running() and self._num_lines("opened") <= known:
            time.sleep(0.5)
        self.end_jobs(most=1)

    def disturb(self, reference, kills):
        """Kill a process again and again; return how many were killed before the study ended."""
        done = 0
        while done < kills and self.is_running():
            # At random moments, and not more often than trials end, which there are few more of.
            before = self._num_lines("ended")
            deadline = time.monotonic() + self._chance.uniform(5.0, 40.0)
            while time.monotonic() < deadline and self._num_lines("ended") == before:
                time.sleep(0.5)
            time.sleep(self._chance.uniform(0.0, 3.0))
            if self._chance.random() < 0.35:
                self.kill_driver()
                self.begin(reference)
                done += 1
            else:
                done += self.kill_worker()
        return done


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_groups_without_a_shared_disk_lose_no_trial_whatever_is_killed(tmp_path, monkeypatch):
    lab = Lab()
    with object_stores.serving({"lab": lab.objects}) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        groups = Groups(tmp_path, lab)
        try:
            groups.begin("four")
            done = groups.disturb("four", 8)
            groups.remove_group()
            done += 1 + groups.disturb("three", 6)  # and later drivers have one less
            groups.kill_driver()
            groups.begin("five")  # a group is added
            done += 1 + groups.disturb("five", 4)
            while groups.is_running():
                time.sleep(1.0)
            assert groups.code() == 0, groups.output[-3000:]
        finally:
            groups.kill_driver()
        assert done >= 20
        journal = growing(lab.objects, "studies/groups/journal.jsonl")
        every = list(range(own_disks.NUM_TRIALS))
        asked = [trial for line in journal if line["kind"] == "asked" for trial in line["trials"]]
        ended = {line["trial"]: line for line in journal if line["kind"] == "ended"}
        assert asked == every
        assert sorted(line["trial"] for line in journal if line["kind"] == "ended") == every
        assert {line["outcome"] for line in ended.values()} == {"complete"}
        for trial in every:
            rows = growing(lab.objects, f"studies/groups/trials/{trial:04d}/run/metrics.jsonl")
            steps = [row["step"] for row in rows if row["kind"] == "step"]
            assert steps == list(range(1, own_disks.STEPS + 1)), "each step once"
        sizes = {}
        for trial in every:
            result = json.loads(lab.objects[f"studies/groups/trials/{trial:04d}/result.json"])
            sizes.setdefault(result["result"]["mode"]["slice"]["devices"], []).append(trial)
        assert set(sizes) == {1, 2}
        for trial in (*sizes[1][:2], sizes[2][0]):
            folder = tmp_path / f"again-{trial}"
            url = f"gs://lab/studies/groups/{trial}"
            again = begin(folder, "sweep", "rerun", url, "--trust", "gs://lab/studies")
            code, output = finish(again, folder)
            assert code == 0, output[-3000:]
            assert "recorded numbers are equal, bit for bit" in output
