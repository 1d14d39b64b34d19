"""The engine over this machine's devices: one warm worker process for each device group."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from luthier import environment as environments
from luthier.errors import EXIT_REQUEUE, BadInput, Problem, RunError
from luthier.records import crash
from luthier.storage import read_json
from luthier.study.engines.messages import Answer, Close, MessageWriter, Refill, Stop, read_messages
from luthier.study.protocol import Event, Lost, SliceInfo, TrialWork, Verdict, Work

# The devices of this machine, cut into slices, each seen by one process only.

_FORM = "write kind:number or kind:i,j,...: cpu:8, cuda:4, cuda:0,2, tpu:4"
_COUNTING = "import jax, json; d = jax.local_devices(); print(json.dumps([d[0].platform, len(d)]))"
_KINDS = {"gpu": "cuda"}
# The shape of a process's chips, which libtpu wants beside their numbers.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of one kind.

    Args:
      kind: `cpu`, `cuda`, `rocm` or `tpu`.
      numbers: Which of the machine's, by number; those of the kind `cpu` are virtual.
    """

    kind: str
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read `cpu:8` or `cuda:0,2`.

        Raises:
          BadInput: The text reads otherwise.
        """
        # One number is a count (`cuda:4`), several are a list (`cuda:0,2`).
        found = re.fullmatch(r"(cpu|cuda|gpu|rocm|tpu):(\d+(?:,\d+)*)", text)
        numbers = [int(number) for number in found[2].split(",")] if found else []
        if found and len(numbers) == 1:
            numbers = list(range(numbers[0]))
        if not found or not numbers or len(set(numbers)) < len(numbers):
            raise BadInput(Problem(f"cannot read the devices {text!r}", "devices", remedy=_FORM))
        return cls(_KINDS.get(found[1], found[1]), tuple(numbers))

    @classmethod
    def here(cls) -> Devices:
        """Return the devices that this machine has, as a process of its own counts them.

        Raises:
          RunError: JAX cannot be asked.
        """
        # In a process of its own: once JAX is initialized here, this process would hold the
        # accelerators (most of the GPU memory, all of a TPU) that the workers need.
        process = subprocess.run([sys.executable, "-c", _COUNTING], capture_output=True, text=True)
        try:
            kind, number = json.loads(process.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            lines = process.stderr.strip().splitlines() or ["it printed nothing"]
            what = f"JAX finds no devices: {lines[-1]}"
            raise RunError(Problem(what, "devices", remedy=_FORM)) from None
        return cls(_KINDS.get(kind, kind), tuple(range(number)))


@dataclasses.dataclass(frozen=True)
class LocalSlice:
    """Devices that one worker sees.

    Args:
      name: What people call it.
      kind: Of its devices.
      devices: Their numbers on this machine.
      cores: Cores that its threads run on; all where it is empty.
    """

    name: str
    kind: str
    devices: tuple[int, ...]
    cores: tuple[int, ...] = ()


def cut(devices: Devices, slices: int | Mapping[str, int]) -> list[LocalSlice]:
    """Cut devices into slices.

    Args:
      devices: What there is.
      slices: The number of equal slices, or the number of devices of each slice by its name.

    Raises:
      BadInput: The devices do not suffice, or are not divisible.
    """
    # All problems of the sizes first, then the devices in the order of their numbers.
    there = len(devices.numbers)
    if isinstance(slices, int):
        if slices < 1 or there % slices:
            what = f"{there} devices cannot be split into {slices} equal slices"
            fitting = [n for n in range(1, there + 1) if there % n == 0]
            remedy = f"use one of {', '.join(map(str, fitting))}, or name the size of each slice"
            raise BadInput(Problem(what, "slices", remedy=remedy))
        # Names are the numbers, so that both forms continue alike.
        slices = {str(i): there // slices for i in range(slices)}
    # Slices by name may leave devices over, which stay unused.
    wanted = sum(slices.values())
    empty = [name for name, number in slices.items() if number < 1]
    if empty or not slices or wanted > there:
        what = f"slices of {wanted} devices do not fit {there} devices"
        what = f"slice {empty[0]} has no device" if empty else what
        raise BadInput(
            Problem(what, "slices", remedy="give each at least one, and all at most all")
        )
    # Cores are split evenly between slices, whatever their numbers of devices.
    found, numbers = [], iter(devices.numbers)
    for (name, number), cores in zip(slices.items(), _cores(len(slices)), strict=True):
        own = tuple(next(numbers) for _ in range(number))
        found.append(LocalSlice(name, devices.kind, own, cores))
    return found


def _cores(num_slices: int) -> list[tuple[int, ...]]:
    """Split the cores of this process evenly; too few are used by all slices."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // num_slices
    if num_slices == 1 or not each:
        return [()] * num_slices
    return [tuple(cores[i * each : (i + 1) * each]) for i in range(num_slices)]


def environment(
    slice: LocalSlice, inherited: Mapping[str, str], search: Sequence[str | os.PathLike[str]] = ()
) -> dict[str, str]:
    """Return the environment of a slice's worker.

    It sees the slice's devices alone, keeps what it compiles on the disk for all workers, and
    inherits no Weights & Biases service: what that records would end with this process's name.

    Args:
      slice: What it works on.
      inherited: The environment of this process.
      search: Folders that its modules are looked for in, before others.

    Raises:
      BadInput: The slice has a device that this process itself may not see.
    """
    made = {name: value for name, value in inherited.items() if name != "WANDB_SERVICE"}
    # With one platform named, JAX raises where it cannot use it, instead of taking the CPU.
    made["JAX_PLATFORMS"] = slice.kind
    if slice.kind == "cpu":
        count = "--xla_force_host_platform_device_count"
        # A count that stands there is of another process; this worker has the devices of its slice.
        flags = [f for f in made.get("XLA_FLAGS", "").split() if not f.startswith(count)]
        made["XLA_FLAGS"] = " ".join([*flags, f"{count}={len(slice.devices)}"])
        # It would overrule the flag.
        made.pop("JAX_NUM_CPU_DEVICES", None)
        if slice.cores:
            made["OMP_NUM_THREADS"] = str(len(slice.cores))
    elif slice.kind == "cuda":
        made["CUDA_VISIBLE_DEVICES"] = _among(slice, "CUDA_VISIBLE_DEVICES", made)
    elif slice.kind == "rocm":
        # Where both are set, HIP selects among what ROCR leaves, so its numbers are JAX's.
        variable = f"{'HIP' if made.get('HIP_VISIBLE_DEVICES') else 'ROCR'}_VISIBLE_DEVICES"
        made[variable] = _among(slice, variable, made)
    elif slice.kind == "tpu":
        # libtpu otherwise takes all chips of the host, and locks them against other processes.
        chips = _among(slice, "TPU_VISIBLE_CHIPS", made)
        made |= {"TPU_VISIBLE_CHIPS": chips, "TPU_PROCESS_BOUNDS": "1,1,1"}
        # A row is the one shape that every number of chips has; libtpu checks it against the chips.
        bounds = _TPU_BOUNDS.get(len(slice.devices), f"1,{len(slice.devices)},1")
        made["TPU_CHIPS_PER_PROCESS_BOUNDS"] = bounds
    made |= environments.large_pages(made)
    made |= environments.kept_programs(made, shortest=0)
    # By default JAX keeps only programs that took long to compile; trials repeat the short ones,
    # too. Set here as well, because `kept_programs` returns nothing where the user has chosen the
    # cache's folder.
    made["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    made["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    paths = [*map(str, search), *filter(None, [made.get("PYTHONPATH")])]
    if paths:
        made["PYTHONPATH"] = os.pathsep.join(paths)
    return made


def _among(slice: LocalSlice, variable: str, inherited: Mapping[str, str]) -> str:
    """Return the names of the slice's devices among those that this process may see."""
    # The parent's own selection may name devices in any order, also by UUID (as SLURM does):
    # numbers here count among those.
    visible = inherited.get(variable)
    if not visible:
        return ",".join(map(str, slice.devices))
    names = visible.split(",")
    absent = [number for number in slice.devices if number >= len(names)]
    if absent:
        what = f"slice {slice.name} has device {absent[0]}, and {variable}={visible} shows "
        remedy = f"use devices below {len(names)}, or set {variable} to more of them"
        raise BadInput(Problem(f"{what}{len(names)}", "devices", remedy=remedy))
    return ",".join(names[number] for number in slice.devices)


# The engine over this machine's devices: one warm worker process for each slice.

START_SECONDS = 300.0  # for a worker to import and find its devices
CLOSE_SECONDS = 120.0  # for trials to be saved
MAX_STARTS = 3  # of a worker that dies before it is ready
_MODULE = "luthier.study.engines.worker"
# Of the real-time signals, `signal.Signals` knows the first and the last only, and raises for the
# others.
_SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}


class Local:
    """Runs trials on this machine's devices, cut into slices.

    Args:
      slices: The number of equal slices, or the number of devices of each slice by its name.
      devices: The devices to divide: `cpu:8` (virtual devices), `cuda:4`, `cuda:0,2`, `tpu:4`; None
        takes all devices of this machine, and on a machine with CPUs only as many virtual devices
        as slices.
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

        Args:
          directory: The directory of the study.

        Returns:
          The device groups, in their order.

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
            # All are started before any is waited for: imports take seconds, and side by side no
            # longer.
            return [worker.wait_until_ready() for worker in self._workers]
        except BaseException:
            self.close()
            raise

    def start(self, slice: int, work: Work) -> None:
        """Start work on a slice.

        Args:
          slice: Number of the device group.
          work: The trials, and how they run.
        """
        self._workers[slice].send(work)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Put one more trial on a free lane of the work that a slice is busy with, or was last.

        Args:
          slice: Number of the device group.
          trial: The trial.
        """
        self._workers[slice].send(Refill(trial))

    def answer(self, slice: int, trial: int, fence: int, verdict: Verdict) -> None:
        """Answer a report of work that `asks`.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
          verdict: Whether the trial continues, is pruned or pauses.
        """
        self._workers[slice].send(Answer(trial, fence, verdict))

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """End a trial at its next step: it is saved, and comes back as nothing.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
        """
        self._workers[slice].send(Stop(trial, fence))

    def events(self, timeout: float) -> Sequence[Event]:
        """Return new events; wait up to `timeout` seconds for the first.

        A slice whose worker died again and again before it was ready is lost for good.

        Args:
          timeout: The longest time to wait, in seconds.

        Returns:
          The events in order; none where the time has passed.
        """
        found: list[Event] = []
        deadline = time.monotonic() + timeout
        while True:
            try:
                wait = 0.0 if found else max(0.0, deadline - time.monotonic())
                event = self._events.get(wait > 0, wait or None)
            except queue.Empty:
                return found
            # Restarted in the thread of the driver and not in the reader's, so that workers are
            # started and closed by one thread only. The event is passed on in any case: its trials
            # must be queued again.
            if isinstance(event, Lost):
                try:
                    self._workers[event.slice].start_again(event)
                except RunError as error:
                    reason = str(error)
                    event = dataclasses.replace(event, reason=reason, counts=False, is_gone=True)
            if not isinstance(event, SliceInfo):
                found.append(event)

    def close(self) -> None:
        """End all workers; trials that run are saved first, so that they can be resumed."""
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
      events: The queue of its messages.
    """

    def __init__(
        self,
        index: int,
        slice: LocalSlice,
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
        self._writer: MessageWriter
        self._reader: threading.Thread
        self._num_starts = 0  # since it was ready
        self._log_offset = 0  # what stands before it in the log is not about what runs now
        self._closing = False

    @property
    def log_path(self) -> pathlib.Path:
        """The file with the worker's output."""
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
        # An engine that is used by itself has no copy: modules come from the working directory
        # then, which `-P` below leaves out.
        search = [source.absolute()] if source.is_dir() else [pathlib.Path.cwd()]
        # `-P` keeps the working directory off `sys.path`: an edited package there would win over
        # the copy of the source that the study runs. PYTHONPATH names that copy.
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
        self._writer = MessageWriter(self._process.stdin)
        reader = threading.Thread(target=self._read, daemon=True, name="luthier-engine")
        try:
            reader.start()
        except RuntimeError:
            # Ended at once: without a reader nobody would learn of its end, and `close` passes over
            # a worker that never had one.
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
        """Return the description that the worker sends of its slice.

        Raises:
          RunError: It died, or did not answer.
        """
        while True:
            try:
                answer = self._ready.get(timeout=START_SECONDS)
            except queue.Empty:
                raise self._broken(f"it did not answer for {START_SECONDS:.0f} s") from None
            if isinstance(answer, SliceInfo):
                return answer
            # A worker that was ended by a signal (the kernel's OOM killer, somebody's kill) is
            # started again; one that ended by itself has a cause that would not go away.
            if self._process.wait() >= 0:  # by itself: it would do so again
                raise self._broken(answer.reason)
            self.start_again(answer)

    def send(self, message: object) -> None:
        """Send a message; one to a worker that just died is lost, and `Lost` will follow."""
        if isinstance(message, Work):
            self._mark_log()
        with contextlib.suppress(OSError, ValueError):
            self._writer.send(message)

    def ask_to_close(self) -> None:
        """Ask the worker to save running trials, and to end."""
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
            for message in read_messages(process.stdout):
                if isinstance(message, SliceInfo):
                    is_ready = True
                    # A worker that was ready may die of its trial, as often as the driver lets it.
                    self._num_starts = 0
                    if not self._was_ready:
                        self._was_ready = True
                        self._ready.put(message)
                else:
                    self._events.put(message)
        # After the stream has ended: everything that the worker sent before it died is queued in
        # front of `Lost`, so that a result that was sent is not taken for lost.
        code = process.wait()
        # No trial is to blame for a worker that never was ready, or that left after a fault of its
        # devices.
        lost = Lost(self._index, self._reason(code), counts=is_ready and code != EXIT_REQUEUE)
        # An end that was asked for is no loss: after `close` the driver looks for results itself
        # (`Driver.run`).
        if self._closing:
            return
        # Until it was ready for the first time, `open` waits for it, and the driver does not poll
        # events.
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
