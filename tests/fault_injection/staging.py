"""What a injection has at hand: a folder with text, runs in it, and what they left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from machine import REPOSITORY, Machine, Started

sys.path.append(str(REPOSITORY))  # of `tools/inject_faults.py`, too

from tests import object_stores

STEPS = 60
EVERY = 10
LINE = "To be, or not to be, that is the question.\n"
SLOW_SECONDS = 0.05


@dataclasses.dataclass
class Outcome:
    """What a injection came to.

    Args:
      detected: How the fault was found, in a few words.
      seconds: From the fault to the end of the run, or to the line that tells of it.
      lost: Steps that were trained again.
      restart: How the restarted run compares with the undisturbed one.
    """

    detected: str
    seconds: float
    lost: int
    restart: str


class Stage:
    """A folder in which an experiment runs and is disturbed.

    Args:
      machine: Starts the processes.
      folder: The folder, made here.
      processes: How many processes a run has.
    """

    def __init__(self, machine: Machine, folder: pathlib.Path, processes: int = 1):
        self.machine = machine
        self.folder = folder
        self.processes = processes
        self.runs = "runs/drilled/*"  # directories of runs, below the folder
        (folder / "text").mkdir(parents=True)
        (folder / "text" / "a.txt").write_text(LINE * 100)
        (folder / "pyproject.toml").write_text('[tool.luthier]\npackages = ["drilled"]\n')

    def words(self, *overrides: str) -> list[str]:
        """Return the command line, with what `overrides` change."""
        several = ["--processes", str(self.processes), "--devices", f"cpu:{self.processes}"]
        return ["train", "drilled", *overrides, *(several if self.processes > 1 else [])]

    def start(self, *overrides: str, **how: Any) -> Started:
        """Begin to train."""
        return self.machine.start(self.folder, self.words(*overrides), **how)

    def train(self, *overrides: str, code: int = 0, seconds: float = 300, **how: Any) -> Started:
        """Train to the end, and look at the exit code."""
        started = self.start(*overrides, **how)
        found = started.wait(seconds)
        assert found == code, f"exit code {found}, not {code}:\n{started.stderr}\n{started.stdout}"
        return started

    # Disturbing.

    def slow(self, seconds: float = SLOW_SECONDS) -> None:
        """Let every batch take a while, so that there is time for a fault."""
        (self.folder / "slow").write_text(str(seconds))

    def hurry(self) -> None:
        """Let batches come as fast as they can again."""
        (self.folder / "slow").unlink(missing_ok=True)

    def until(
        self, is_so: Callable[[], Any], started: Started | None = None, seconds: float = 300
    ) -> None:
        """Wait until something is so; it fails when the process that should do it has ended."""
        deadline = time.monotonic() + seconds
        while not is_so():
            ended = started is not None and started.ended.is_set()
            if ended and not is_so():
                assert started is not None
                raise AssertionError(f"it ended with {started.code}:\n{started.stderr}")
            assert time.monotonic() < deadline, f"not so after {seconds} s"
            time.sleep(0.01)

    def until_step(self, step: int, started: Started) -> None:
        """Wait until a step is recorded."""
        self.until(lambda: self.last_step() >= step, started)

    def until_saved(self, step: int, started: Started) -> None:
        """Wait until a checkpoint is committed, of this step or a later one."""
        self.until(lambda: max(self.saved(), default=0) >= step, started)

    # What is there.

    @property
    def run(self) -> pathlib.Path:
        """The directory of the only run."""
        (found,) = self.folder.glob(self.runs)
        return found

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the whole lines of the metrics file that are of a kind."""
        rows = []
        for path in self.folder.glob(f"{self.runs}/metrics.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    continue
        return [row for row in rows if row.get("kind") == kind]

    def last_step(self) -> int:
        """Return the last step that is recorded, by a look at the end of the file."""
        last = 0
        for path in self.folder.glob(f"{self.runs}/metrics.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 8192))
                for line in file.read().split(b"\n")[1:-1]:
                    if b'"step"' in line:
                        last = max(last, json.loads(line)["step"])
        return last

    def losses(self) -> list[tuple[int, float]]:
        """Return step and loss of every recorded step, in the order of the file."""
        return [(row["step"], row["values"]["loss"]) for row in self.rows("step")]

    def notices(self) -> str:
        """Return all notices, a line each."""
        return "\n".join(row["text"] for row in self.rows("notice"))

    def saved(self) -> list[int]:
        """Return the steps of the committed checkpoints."""
        paths = self.folder.glob(f"{self.runs}/checkpoints/*/commit.json")
        return sorted(int(path.parent.name) for path in paths if path.parent.name.isdecimal())

    def began(self) -> int:
        """Return the step that the last restart went on from."""
        return self.rows("header")[-1]["step"]

    def status(self) -> dict[str, Any]:
        """Return what status.json says."""
        return json.loads((self.run / "status.json").read_text())

    def parameters(self) -> dict[str, np.ndarray]:
        """Return all arrays of the newest checkpoint."""
        return arrays_of(self.run / "checkpoints")


class BucketStage(Stage):
    """A folder in which an experiment runs whose home is a bucket, on a server that can fail.

    Args:
      machine: Starts the processes.
      folder: The folder, made here.
      scheme: `gs` or `s3`.
      processes: How many processes a run has.
    """

    def __init__(self, machine: Machine, folder: pathlib.Path, scheme: str, processes: int = 1):
        super().__init__(machine, folder, processes)
        self.scheme = scheme
        self.runs = f"cache/luthier/buckets/{scheme}/lab/{self.runs}"
        self.objects: dict[str, bytes] = {}
        self.faults: list[object_stores.Fault] = []
        self._environment: dict[str, str] = {}

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the bucket, to this process, too."""
        with object_stores.serving({"lab": self.objects}, faults=self.faults) as (address, _):
            self._environment = object_stores.environment(address)
            before = {name: os.environ.get(name) for name in self._environment}
            os.environ.update(self._environment)
            try:
                yield
            finally:
                for name, value in before.items():
                    os.environ.pop(name)
                    if value is not None:
                        os.environ[name] = value

    def words(self, *overrides: str) -> list[str]:
        """Return the command line, with the run in the bucket."""
        return super().words(f"records.directory={self.scheme}://lab/runs", *overrides)

    def start(self, *overrides: str, **how: Any) -> Started:
        """Begin to train."""
        environment = {
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "1",
            **self._environment,
            **how.pop("environment", {}),
        }
        return super().start(*overrides, environment=environment, **how)

    @contextlib.contextmanager
    def fault(self, **what: Any) -> Iterator[object_stores.Fault]:
        """Make trouble as long as the block lasts."""
        fault = object_stores.Fault(**what)
        self.faults.append(fault)
        try:
            yield fault
        finally:
            self.faults.remove(fault)

    def move(self) -> None:
        """Go on with another machine, whose disk is empty."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def saved(self) -> list[int]:
        """Return the steps of the committed checkpoints, all of whose objects are there."""
        steps, objects = [], dict(self.objects)
        for key, data in objects.items():
            if match := re.search(r"/checkpoints/(\d+)\.[^/]*/commit\.json$", key):
                steps.append(int(match[1]))
                for name, (size, _) in json.loads(data)["files"].items():
                    assert len(objects[key.removesuffix("commit.json") + name]) == size
        return sorted(steps)

    def losses(self) -> list[tuple[int, float]]:
        """Return step and loss of every step that is recorded in the bucket."""
        segments: dict[int, bytes] = {}
        for key in self.objects:
            if match := re.search(r"metrics\.jsonl\.segments/(\d+)-", key):
                start = int(match[1])
                segments[start] = max(self.objects[key], segments.get(start, b""), key=len)
        data = b""
        while len(data) in segments:
            data += segments[len(data)]
        rows = map(json.loads, data.splitlines())
        return [(row["step"], row["values"]["loss"]) for row in rows if row["kind"] == "step"]

    def parameters(self) -> dict[str, np.ndarray]:
        """Return all arrays of the newest checkpoint in the bucket."""
        (id,) = {key.split("/")[2] for key in self.objects}
        return arrays_of(f"{self.scheme}://lab/runs/drilled/{id}/checkpoints")


def arrays_of(checkpoints: pathlib.Path | str) -> Mapping[str, np.ndarray]:
    """Return all arrays of the newest checkpoint of a run, read to the last bit."""
    import jax

    from luthier.checkpoint import Store

    with Store(checkpoints) as store:
        step = store.latest()
        assert step is not None
        assert store.check(step) == []
        abstract = {
            name: jax.ShapeDtypeStruct(shape, dtype)
            for name, (shape, dtype) in store.read(step).arrays.items()
        }
        return {name: np.asarray(array) for name, array in store.load(step, abstract).items()}


@dataclasses.dataclass
class Truth:
    """What an undisturbed run came to.

    Args:
      losses: Step and loss of every step.
      arrays: The state at the end.
    """

    losses: list[tuple[int, float]]
    arrays: Mapping[str, np.ndarray]


class Truths:
    """Undisturbed runs, each trained when it is first asked for.

    Args:
      machine: Starts the processes.
      folder: Where they are.
    """

    def __init__(self, machine: Machine, folder: pathlib.Path):
        self._machine = machine
        self._folder = folder
        self._known: dict[tuple[int, tuple[str, ...]], Truth] = {}

    def of(self, processes: int, *overrides: str) -> Truth:
        """Return what the run of so many processes comes to when nothing disturbs it."""
        key = (processes, overrides)
        if key not in self._known:
            stage = Stage(self._machine, self._folder / f"truth-{len(self._known)}", processes)
            stage.train(*overrides)
            self._known[key] = Truth(stage.losses(), stage.parameters())
        return self._known[key]


def compare(stage: Stage, truth: Truth) -> str:
    """Return how a run agrees with the undisturbed one; it fails when it does not to the last bit.

    Every step stands in the record once, in order.
    """
    found = stage.losses()
    steps = [step for step, _ in found]
    assert steps == [step for step, _ in truth.losses], f"each step once: {steps}"
    assert found == truth.losses, "bit-identical losses"
    arrays = stage.parameters()
    assert set(arrays) == set(truth.arrays)
    for name, array in arrays.items():
        assert array.tobytes() == truth.arrays[name].tobytes(), name
    return "bit-identical"
