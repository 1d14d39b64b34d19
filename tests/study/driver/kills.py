"""A study in processes of its own, which are killed while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from luthier.study.driver import read_journal

HERE = pathlib.Path(__file__).parent.parent
WORKER = b"luthier.study.engines.worker"


class Driven:
    """A study that is driven by a process.

    Args:
      directory: The folder of studies.
      sampler: Its sampler.
      slices: Worker processes.
      trials: Of its budget.
      step_seconds: How long a step of a trial takes.
      scheduler: Its scheduler by rungs, by its short name; empty for none.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        sampler: str,
        slices: int,
        trials: int = 32,
        step_seconds: float = 0.02,
        scheduler: str = "",
    ):
        self.path = directory / "toy"
        self._words = [str(directory), sampler, str(trials), str(slices), str(step_seconds)]
        self._words += [scheduler] if scheduler else []
        self._process = None

    def begin(self) -> None:
        """Begin, or go on."""
        command = [sys.executable, "-m", "simulated_engine", "drive", *self._words]
        self._process = subprocess.Popen(
            command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the process that was begun last; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to the driver."""
        self._process.send_signal(number)

    def output(self, seconds: float = 300.0) -> str:
        """Wait for the driver's end; return what it printed."""
        return self._process.communicate(timeout=seconds)[0].decode()

    def kill_driver(self) -> None:
        self._process.kill()
        self._process.communicate()

    def kill_worker(self, chance: random.Random) -> None:
        """Kill one of the workers, if there are any."""
        for file in sorted(self.path.glob("worker-*.pid"), key=lambda _: chance.random())[:1]:
            with contextlib.suppress(OSError, ValueError):
                pid = int(file.read_text())
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"simulated_engine" in command:
                    os.kill(pid, signal.SIGKILL)

    def finish(self) -> None:
        """Go on to the end."""
        while True:
            if not self.is_running():
                output = self._process.communicate()[0].decode()
                if self._process.returncode == 0:
                    return
                assert self._process.returncode == -signal.SIGKILL, output
                self.begin()
            time.sleep(0.02)

    def journal_size(self) -> int:
        path = self.path / "journal.jsonl"
        return path.stat().st_size if path.exists() else 0

    def wait_for_progress(self) -> None:
        """Return when this process has written to the journal, or ended."""
        size = self.journal_size()
        while self.journal_size() == size and self.is_running():
            time.sleep(0.01)

    def outcome(self) -> list[tuple[int, str, dict]]:
        """Return (trial, graph, result) of all trials."""
        found = []
        for path in sorted((self.path / "trials").iterdir()):
            result = json.loads((path / "result.json").read_text())
            for name in ("slice", "fence"):  # where it ran, and how often it was begun
                del result[name]
            found.append((int(path.name), (path / "config.json").read_text(), result))
        return found

    def counts(self) -> dict[str, list[int]]:
        """Return the trials that were asked and that ended, as often as the journal says."""
        lines = list(read_journal(self.path / "journal.jsonl"))
        return {
            "asked": [t for line in lines if line["kind"] == "asked" for t in line["trials"]],
            "ended": [line["trial"] for line in lines if line["kind"] == "ended"],
            "told": [line["setting"] for line in lines if line["kind"] == "told"],
        }


class Trained(Driven):
    """A study of real training, which the command line drives in a project's folder.

    Args:
      project: The folder; there is a module `injection` in it, with a study.
      sampler: Its sampler.
      slices: Worker processes.
      trials: Of its budget.
      overrides: Of the study.
    """

    def __init__(
        self,
        project: pathlib.Path,
        sampler: str,
        slices: int,
        trials: int,
        overrides: Sequence[str] = (),
    ):
        self.path = project / "studies" / "injection"
        self._project = project
        self._new = ["injection", "--sampler", sampler, "--trials", str(trials)]
        self._new += ["--devices", f"cpu:{slices}", "--slices", str(slices), *overrides]
        self._process = None

    def begin(self) -> None:
        """Begin, or go on."""
        is_there = (self.path / "study.json").exists()
        words = ["--resume", str(self.path)] if is_there else self._new
        self._process = subprocess.Popen(
            [sys.executable, "-m", "luthier", "sweep", *words],
            cwd=self._project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def kill_worker(self, chance: random.Random, number: int = signal.SIGKILL) -> None:
        """Kill one of the workers, if there are any."""
        for pid in sorted(self._workers(), key=lambda _: chance.random())[:1]:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _workers(self) -> list[int]:
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self._process.pid and WORKER in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def outcome(self) -> list[tuple[int, str, dict]]:
        """Return (trial, graph, result) of all trials, without what a clock measured."""
        found = super().outcome()
        for _, _, result in found:
            del result["result"]["facts"]["step_seconds"]
        return found


def disturb(driven: Driven, kills: int, seed: int, longest: float) -> int:
    """Kill driver, worker or both at random moments; return how many kills there were."""
    chance, done = random.Random(seed), 0
    driven.begin()
    while done < kills:
        if chance.random() < 0.7:
            driven.wait_for_progress()
        deadline = time.monotonic() + chance.uniform(0.0, longest)
        while time.monotonic() < deadline and driven.is_running():
            time.sleep(0.005)
        if not driven.is_running():
            break
        whom = chance.choice(("driver", "worker", "both"))
        if whom != "driver":
            driven.kill_worker(chance)
        if whom != "worker":
            driven.kill_driver()
            if driven.journal_size() and chance.random() < 0.5:
                with open(driven.path / "journal.jsonl", "ab") as file:
                    file.write(b'{"kind":"ended","trial":3,"outc')
            driven.begin()
        done += 1
    driven.finish()
    return done
