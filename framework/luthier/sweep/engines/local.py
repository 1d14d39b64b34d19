"""The engine over this machine's devices: one warm worker process for each slice."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from luthier.errors import EXIT_REQUEUE, Problem, RunError
from luthier.records import crash
from luthier.records.files import read_json
from luthier.sweep.engines.devices import Devices, Slice, cut, environment
from luthier.sweep.engines.pipes import Answer, Close, Refill, Stop, Writer, messages
from luthier.sweep.protocol import Event, Lost, SliceInfo, TrialWork, Work

START_SECONDS = 300.0  # for a worker to import and find its devices
CLOSE_SECONDS = 120.0  # for trials to be saved
MAX_STARTS = 3  # of a worker that dies before it is ready
_MODULE = "luthier.sweep.engines.worker"
# Of the real-time signals, `signal.Signals` knows the first and the last only, and raises for the
# others.
_SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}


class Local:
    """Runs trials on this machine's devices, cut into slices.

    Args:
      slices: The number of equal slices, or the number of devices of each slice by its name.
      devices: What is cut: `cpu:8` (virtual devices), `cuda:4`, `cuda:0,2`, `tpu:4`; None takes
        all that this machine has, and on a machine of CPUs as many virtual ones as slices.
      memory_bytes: Memory of one device that trials may use; None means what the device has.
    """

    def __init__(
        self,
        slices: int | Mapping[str, int] = 1,
        devices: str | None = None,
        memory_bytes: int | None = None,
    ):
        self._slices = slices
        self._devices = devices
        self._memory_bytes = memory_bytes
        self._workers: list[_Worker] = []
        self._events: queue.Queue[Event | SliceInfo] = queue.Queue()

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start the workers of a study that is kept in `directory`; return the slices.

        Workers look for modules in `directory/source` first, where there is a copy of the source
        that the study runs. What they print is kept in `directory/workers`.

        Raises:
          BadInput: The devices cannot be cut so.
          RunError: A worker does not start.
        """
        slices = cut(self._all_devices(), self._slices)
        self._workers = [
            _Worker(index, slice, pathlib.Path(directory), self._memory_bytes, self._events)
            for index, slice in enumerate(slices)
        ]
        try:
            for worker in self._workers:
                worker.start()
            return [worker.wait_until_ready() for worker in self._workers]
        except BaseException:
            self.close()
            raise

    def start(self, slice: int, work: Work) -> None:
        """Begin work on a slice."""
        self._workers[slice].send(work)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Put one more trial on a free lane of the work that a slice is busy with, or was last."""
        self._workers[slice].send(Refill(trial))

    def answer(self, slice: int, trial: int, fence: int, go_on: bool) -> None:
        """Answer a report of work that `asks`."""
        self._workers[slice].send(Answer(trial, fence, go_on))

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """End a trial at its next step: it is saved, and comes back as nothing."""
        self._workers[slice].send(Stop(trial, fence))

    def events(self, timeout: float) -> Sequence[Event]:
        """Return what happened; wait up to `timeout` seconds for the first event.

        A slice whose worker died again and again before it was ready is lost for good.
        """
        found: list[Event] = []
        deadline = time.monotonic() + timeout
        while True:
            try:
                wait = 0.0 if found else max(0.0, deadline - time.monotonic())
                event = self._events.get(wait > 0, wait or None)
            except queue.Empty:
                return found
            if isinstance(event, Lost):
                try:
                    self._workers[event.slice].start_again(event)
                except RunError as error:
                    reason = str(error)
                    event = dataclasses.replace(event, reason=reason, counts=False, is_gone=True)
            if not isinstance(event, SliceInfo):
                found.append(event)

    def close(self) -> None:
        """End all workers; trials that run are saved first, so that they can go on later."""
        for worker in self._workers:
            worker.ask_to_close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.close(max(1.0, deadline - time.monotonic()))
        self._workers = []

    def _all_devices(self) -> Devices:
        if self._devices is not None:
            return Devices.parse(self._devices)
        found = Devices.here()
        wanted = self._slices if isinstance(self._slices, int) else sum(self._slices.values())
        if found.kind == "cpu" and wanted > len(found.numbers):
            return Devices("cpu", tuple(range(wanted)))
        return found


class _Worker:
    """The process of one slice, started again when it dies.

    Args:
      index: The slice's number.
      slice: What it sees.
      directory: The study's folder.
      memory_bytes: Memory of one device that trials may use; None means what the device has.
      events: Where what it says goes.
    """

    def __init__(
        self,
        index: int,
        slice: Slice,
        directory: pathlib.Path,
        memory_bytes: int | None,
        events: queue.Queue[Event | SliceInfo],
    ):
        self._index = index
        self._slice = slice
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._events = events
        self._ready: queue.Queue[SliceInfo | Lost] = queue.Queue()
        self._was_ready = False
        self._process: subprocess.Popen[bytes]
        self._writer: Writer
        self._reader: threading.Thread
        self._num_starts = 0  # since it was ready
        self._log_offset = 0  # what stands before it in the log is not about what runs now
        self._closing = False

    @property
    def log_path(self) -> pathlib.Path:
        """What the worker printed."""
        return self._directory / "workers" / f"{self._slice.name}.log"

    def start(self) -> None:
        """Start the process.

        Raises:
          RunError: The machine has no room for it: no processes, threads, memory or files are left.
        """
        try:
            self._start()
        except (OSError, RuntimeError) as error:  # RuntimeError: "can't start new thread"
            raise self._broken(str(error)) from error

    def _start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        source = self._directory / "source"
        packages = [n for n in read_json(source / "hashes.json", default={}) if n != "luthier"]
        search = [source.absolute()] if source.is_dir() else [pathlib.Path.cwd()]
        command = [sys.executable, "-P", "-u", "-m", _MODULE, "--slice", str(self._index)]
        command += ["--name", self._slice.name, "--cores", ",".join(map(str, self._slice.cores))]
        command += [word for name in packages for word in ("--package", name)]
        if self._memory_bytes is not None:
            command += ["--memory-bytes", str(self._memory_bytes)]
        self._mark_log()
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment(self._slice, os.environ, search),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the driver, which has the trials saved
            )
        assert self._process.stdin is not None
        self._writer = Writer(self._process.stdin)
        reader = threading.Thread(target=self._read, daemon=True, name="luthier-engine")
        try:
            reader.start()
        except RuntimeError:
            self._process.kill()
            self._process.communicate()
            raise
        self._reader = reader

    def start_again(self, lost: Lost) -> None:
        """Start a new process in the place of one that died.

        Raises:
          RunError: It died too often before it was ready, or the machine has no room for another.
        """
        self._num_starts += 1
        if self._num_starts >= MAX_STARTS:
            raise self._broken(lost.reason)
        with contextlib.suppress(OSError):
            self._writer.close()
        self.start()

    def wait_until_ready(self) -> SliceInfo:
        """Return what the worker says of its slice.

        Raises:
          RunError: It died, or says nothing.
        """
        while True:
            try:
                told = self._ready.get(timeout=START_SECONDS)
            except queue.Empty:
                raise self._broken(f"it says nothing for {START_SECONDS:.0f} s") from None
            if isinstance(told, SliceInfo):
                return told
            if self._process.wait() >= 0:  # by itself: it would do so again
                raise self._broken(told.reason)
            self.start_again(told)

    def send(self, message: object) -> None:
        """Send a message; one to a worker that just died is lost, as `Lost` will tell."""
        if isinstance(message, Work):
            self._mark_log()
        with contextlib.suppress(OSError, ValueError):
            self._writer.send(message)

    def ask_to_close(self) -> None:
        """Have it save what runs, and end."""
        self._closing = True
        if hasattr(self, "_writer"):
            self.send(Close())

    def close(self, seconds: float) -> None:
        """Wait for its end; kill it when it takes longer than `seconds`."""
        if not hasattr(self, "_reader"):
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        with contextlib.suppress(OSError):
            self._writer.close()

    def _read(self) -> None:
        process, is_ready = self._process, False
        assert process.stdout is not None
        with process.stdout:
            for message in messages(process.stdout):
                if isinstance(message, SliceInfo):
                    is_ready = True
                    # A worker that was ready may die of its trial, as often as the driver lets it.
                    self._num_starts = 0
                    if not self._was_ready:
                        self._was_ready = True
                        self._ready.put(message)
                else:
                    self._events.put(message)
        code = process.wait()
        # No trial is to blame for a worker that never was ready, or that left after a fault of its
        # devices.
        lost = Lost(self._index, self._reason(code), counts=is_ready and code != EXIT_REQUEUE)
        if self._closing:
            return
        (self._events if self._was_ready else self._ready).put(lost)

    def _reason(self, code: int) -> str:
        if code < 0:
            name = _SIGNAL_NAMES.get(-code, f"signal {-code}")
            what = f"its worker was ended by {name}"
        else:
            what = f"its worker ended with exit code {code}"
        last = crash.last_words(self.log_path, self._log_offset)
        return f"{what}: {last}" if last else what

    def _mark_log(self) -> None:
        with contextlib.suppress(OSError):
            self._log_offset = self.log_path.stat().st_size

    def _broken(self, reason: str) -> RunError:
        what = f"the worker of slice {self._slice.name} does not start: {reason}"
        return RunError(Problem(what, "engine", remedy=f"see {self.log_path}"))
