"""Machines that share nothing but a bucket: they train, are killed, and are watched meanwhile."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import processes

from luthier import records
from luthier.checkpoint import Store
from luthier.errors import UnknownReference
from tests import object_stores
from tests.fault_injection.machine import Machine, Started

END_SECONDS = 30.0
"""The documented time in which the processes of a run end after one of them was lost."""


class Lab:
    """A bucket, which acts when an object is on its way: it has arrived, and is not stored yet."""

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.problems: list[str] = []
        self.num_reads: collections.Counter[str] = collections.Counter()
        self.acted = threading.Event()
        self._deciding = threading.Lock()
        self._pattern, self._left, self._is_stored = "", 0, False
        self._act: Callable[[], None] = lambda: None

    def act_at(
        self, pattern: str, act: Callable[[], None], number: int = 1, is_stored: bool = False
    ) -> None:
        """Act once, before the n-th object from now on whose name matches is stored.

        Args:
          pattern: A regular expression.
          act: Called in a thread of the server.
          number: Which of the objects, from 1.
          is_stored: Whether the object is stored after that, as one that was acknowledged to
            nobody.
        """
        with self._deciding:
            self.acted.clear()
            self._pattern, self._left, self._is_stored = pattern, number, is_stored
            self._act = act

    def before_write(self, key: str) -> int | None:
        """Take an object in; see `object_stores.serving`."""
        if key.endswith("/commit.json"):
            step = int(re.search(r"/checkpoints/(\d+)\.", key)[1])
            recorded = max((row["step"] for row in self.rows() if row["kind"] == "step"), default=0)
            if recorded < step:
                self.problems.append(f"the record ends at step {recorded}, before {key}")
        with self._deciding:
            if self._left and re.search(self._pattern, key):
                self._left -= 1
                if not self._left:
                    self._act()
                    self.acted.set()
                    return None if self._is_stored else 503
        return None

    def before_read(self, key: str, num_bytes: int) -> None:
        """Count a request for an object; see `object_stores.serving`."""
        self.num_reads[key] += 1

    def rows(self) -> list[dict]:
        """Return the lines of the record, as they are in the bucket."""
        segments: dict[int, bytes] = {}
        objects = dict(self.objects)
        for key in sorted(objects):
            if match := re.search(r"metrics\.jsonl\.segments/(\d+)-(\d+)-", key):
                start = int(match[1])
                segments[start] = max(objects[key], segments.get(start, b""), key=len)
        data, end = b"", 0
        while end in segments:
            data, end = data + segments[end], end + len(segments[end])
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def run_id(self) -> str:
        """Return the id of the only run; empty where there is none yet."""
        keys = (re.search(r"/quickstart/([^/]+)/config\.json$", key) for key in dict(self.objects))
        return next((match[1] for match in keys if match), "")

    def check_commits(self) -> list[int]:
        """Return the steps of the checkpoints that a reader finds; all of their files are whole."""
        steps, objects = [], dict(self.objects)  # at one moment
        for key, data in objects.items():
            if key.endswith("/commit.json"):
                commit, folder = json.loads(data), key.removesuffix("commit.json")
                steps.append(commit["step"])
                for name, (size, checksum) in commit["files"].items():
                    stored = objects.get(folder + name, b"")
                    assert (len(stored), zlib.crc32(stored)) == (size, checksum), folder + name
        return sorted(steps)


class Reader:
    """Looks at a run by its URL, again and again: whatever it finds must be whole.

    Args:
      lab: The bucket.
      folder: The URL of the folder of runs.
    """

    def __init__(self, lab: Lab, folder: str):
        self.num_looks = 0
        self._lab, self._folder = lab, folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        since = 0.0
        while not self._stopped.wait(0.1):
            try:
                self._lab.check_commits()
                if time.monotonic() - since > 1.0 and (id := self._lab.run_id()):
                    self._look(f"{self._folder}/quickstart/{id}")
                    self.num_looks += 1
                    since = time.monotonic()
            except Exception as error:
                self._lab.problems.append(f"a reader found {error!r}")

    def _look(self, url: str) -> None:
        with Store(f"{url}/checkpoints") as store:
            for step in store.steps():
                # What the policy deletes meanwhile is no damage: it is not found a second time.
                if self._damage(store, step) and (damage := self._damage(store, step)):
                    self._lab.problems.append(f"a reader found step {step} damaged: {damage}")
        with contextlib.suppress(UnknownReference):  # the bucket was emptied for another run
            directory = records.find("runs", url)
            steps = [step for step, _ in losses(_lines(directory.metrics_path))]
            if steps != list(range(1, len(steps) + 1)):
                self._lab.problems.append(f"a reader found the steps {steps}")

    @staticmethod
    def _damage(store: Store, step: int) -> str:
        damage = "; ".join(map(str, store.check(step)))
        return damage if damage and step in store.steps() else ""


def _lines(path: pathlib.Path) -> list[dict]:
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def losses(rows: Sequence[Mapping]) -> list[tuple[int, float]]:
    """Return (step, loss) of every step, in the order of the record."""
    return [(row["step"], row["values"]["loss"]) for row in rows if row["kind"] == "step"]


def kill(started: Started, *, with_launcher: bool = True) -> None:
    """Kill the process of a machine: with its launcher, as if the machine were lost, or alone."""
    pids = [started.pid] if with_launcher else []
    for pid in [*pids, *started.children]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Pod:
    """Machines with a disk each, which is empty at every start, and a process of the run each.

    Args:
      machine: Starts the processes. They share the code and a cache of compiled programs, as the
        machines of a pod share an image.
      folder: For their disks.
      address: The address of the object store.
      overrides: Overrides of all starts.
      keeps_disks: Whether a machine has the disk of the last start again.
    """

    def __init__(
        self,
        machine: Machine,
        folder: pathlib.Path,
        address: str,
        overrides: Sequence[str],
        keeps_disks: bool = False,
    ):
        self._machine, self._folder = machine, folder
        self._environment = object_stores.environment(address)
        self._overrides = overrides
        self._keeps_disks = keeps_disks
        self._num_starts = 0

    def disk(self, index: int) -> pathlib.Path:
        """Return the disk of a machine in the next start."""
        start = 0 if self._keeps_disks else self._num_starts
        return self._folder / f"start-{start}" / f"machine-{index}"

    def start(self, count: int, *arguments: str, devices: int = 1) -> list[Started]:
        """Start on so many machines.

        Args:
          count: Number of machines.
          *arguments: Further arguments of the command.
          devices: Number of devices of each machine.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        started = []
        for index in range(count):
            disk = self.disk(index)
            disk.mkdir(parents=True, exist_ok=self._keeps_disks)
            words = ["train", *processes.TINY, *self._overrides, *arguments]
            words += ["--devices", f"cpu:{devices}"]
            if count > 1:
                words += ["--coordinator", address, "--num-processes", str(count)]
                words += ["--process-id", str(index), "--join-seconds", "120"]
            own = {"HOME": str(disk), "XDG_CACHE_HOME": str(disk / "cache")}
            environment = self._environment | own
            started.append(self._machine.start(disk, words, environment=environment))
        self._num_starts += 1
        return started

    def train(self, count: int, *arguments: str) -> list[Started]:
        """Train to the end on so many machines."""
        started = self.start(count, *arguments)
        codes = [each.wait(600) for each in started]
        assert codes == [0] * count, texts(started)
        return started


def texts(started: Sequence[Started]) -> str:
    """Return what machines printed and logged, for the message of a test that fails."""
    lines = []
    for index, each in enumerate(started):
        lines += [f"--- machine {index}: {each.code}", each.stdout[-500:], each.stderr[-3000:]]
        logs = each.folder.rglob("processes/*.log")
        lines += [f"{log.name}:\n{log.read_text(errors='replace')[:3000]}" for log in logs]
    return "\n".join(lines)


@contextlib.contextmanager
def laboratory() -> Iterator[tuple[Lab, str]]:
    """Serve an empty bucket `lab`; yield it, and the address of its server."""
    lab = Lab()
    hooks = {"before_write": lab.before_write, "before_read": lab.before_read}
    with object_stores.serving({"lab": lab.objects}, **hooks) as (address, _):
        yield lab, address


# Objects on whose way a process is killed, with the largest number of them that is waited for: a
# part of an array, the state of the data iterator, the file with which Orbax finishes, the commit,
# the record that belongs to it, the lease, a small file of the run, and any. None is further than
# two checkpoints away, so that all kills come before the run has ended.
MOMENTS = (
    (r"/checkpoints/.*/d/", 12),
    (r"/checkpoints/.*/iterator/", 2),
    (r"/checkpoints/.*/commit_success.txt$", 2),
    (r"/checkpoints/.*/commit\.json$", 2),
    (r"/metrics\.jsonl\.segments/", 3),
    (r"/writer\.json$", 3),
    (r"/(config|plan|status)\.json$", 3),
    (r"/", 60),
)


class Killer:
    """Kills one process of a pod at random moments of its uploads.

    Args:
      lab: The bucket.
      seed: Seed of the moments and of the victims.
    """

    def __init__(self, lab: Lab, seed: str):
        self.num_kills, self.slowest_seconds = 0, 0.0
        self._lab, self._random = lab, random.Random(seed)
        self._moments = list(MOMENTS)

    def disturb(self, pod: Pod, count: int, *arguments: str, pattern: str = "") -> None:
        """Start a pod, kill one of its processes, and look at how the others end.

        Args:
          pod: The pod.
          count: Number of machines.
          *arguments: Further arguments of the command.
          pattern: The name of the object that is on its way then; empty for any moment.
        """
        number = 1
        if not pattern:
            # Each kind once before any comes again, so that few kills see most of them.
            if not self._moments:
                self._moments = list(MOMENTS)
            pattern, most = self._moments.pop(self._random.randrange(len(self._moments)))
            number = self._random.randint(1, most)
        is_stored, with_launcher = self._random.random() < 0.5, self._random.random() < 0.75
        started: list[Started] = []
        ready, killed_at = threading.Event(), [0.0]

        def act() -> None:
            ready.wait()
            kill(started[victim], with_launcher=with_launcher)
            killed_at[0] = time.monotonic()

        self._lab.act_at(pattern, act, number, is_stored)
        victim = self._random.randrange(count)
        started += pod.start(count, *arguments)
        ready.set()
        codes = [each.wait(600) for each in started]
        what = f"process {victim} was killed at {number} x {pattern}\n{texts(started)}"
        assert self._lab.acted.is_set(), what
        own = codes.pop(victim)
        assert own == (-signal.SIGKILL if with_launcher else 1), what
        # 1 where nothing was saved since the start: the same loss would end it again and again.
        assert set(codes) in ({75}, {1}), what
        codes.insert(victim, own)
        for index, each in enumerate(started):
            if index == victim and with_launcher:
                continue
            lines = each.stderr.splitlines()
            assert len(lines) == 1, f"{lines}: one line, whatever JAX and Gloo have logged; {what}"
            line = lines[0]
            # Gloo, which connects CPUs, may notice it first. It ends the process, and does not know
            # whom it has lost; where it ends process 0, the others have lost that one.
            who = rf"(process ({victim}|0)|another process) of {count}( \(the coordinator\))?"
            how = "ended, is stopped, or cannot be reached"
            if index == victim:
                who, how = f"process {victim} of {count}", r"ended \(signal 9\)"
            assert re.match(f"luthier: {who} {how}", line), what
            if "; the run is saved at step " in line:  # or it was not yet, or not even open
                assert "; resume it with: luthier train " in line, what
        seconds = max(each.ended_at for each in started) - killed_at[0]
        assert seconds < END_SECONDS, what
        self.slowest_seconds = max(self.slowest_seconds, seconds)
        self.num_kills += 1
