"""Studies whose home is a bucket, on machines that share nothing else and are killed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import processes

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


def begin(folder, *words):
    """Begin a command on a machine of its own: a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    repository = processes.REPOSITORY
    path = os.pathsep.join((str(repository / "framework"), str(repository)))
    environment = processes.environment() | {"PYTHONPATH": path, "HOME": str(folder)}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
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
