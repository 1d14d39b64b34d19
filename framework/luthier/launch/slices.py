"""The device groups of a sweep on other machines: a process group for each, from any engine.

The driver runs anywhere, such as a login node. It hands the process groups to the engine, listens,
and the first process of each connects to it. A group that is lost is started again by its engine;
until it is back, its device group is away and its trials go to others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import queue
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from luthier import project
from luthier.errors import BadInput, Problem, RunError
from luthier.launch import jobs, link
from luthier.launch.engine import LIVE, LOGS, Engine, Job, ProcessGroup, Standing
from luthier.records import crash, object_storage
from luthier.storage import read_json
from luthier.study.engines.local import LocalSlice, environment
from luthier.study.engines.messages import Answer, Close, MessageWriter, Refill, Stop, read_messages
from luthier.study.protocol import Back, Event, Lost, SliceInfo, TrialWork, Verdict, Work

CLOSE_SECONDS = 120.0  # for trials to be saved
END_SECONDS = 10.0  # for jobs to end when their workers have
WATCH_SECONDS = 15.0  # between two looks at the queue
MAX_STARTS = 3  # of a worker that dies before it is ready
RESTARTS = 1000
CLOSED = "closed"
DRIVER = "driver.json"
_WORKER = "luthier.launch.worker"
_BOOTSTRAP = "luthier.launch.bootstrap"


@dataclasses.dataclass
class _Seat:
    """A slice, and the worker that is there now.

    Args:
      line: Its connection; None while the slice is away.
      writer: Sends to it.
      num_starts: Workers that came and died before they were ready.
      gone: Why no worker will come any more; nothing while one may.
    """

    line: link.Connection | None = None
    writer: MessageWriter | None = None
    num_starts: int = 0
    gone: str = ""


@dataclasses.dataclass(frozen=True)
class _Received:
    """A message of a connection; None is its end."""

    slice: int
    line: link.Connection
    message: Any


def _without_worker(slice: int, seat: _Seat) -> Lost:
    reason = seat.gone or "it has no worker yet"
    return Lost(slice, reason, counts=False, is_away=True, is_gone=bool(seat.gone))


# Threads: one accepts connections, one per connection reads lines, one asks the queue how jobs
# stand. None of them touches state; each puts what it received into `_inbox`, from which the
# driver's thread takes it in `_take`. The state of a slice is its `_Seat`: the line that counts
# now. Messages of another line than that are of a worker that was superseded, and are dropped.
class Slices:
    """Runs the trials of a study on process groups that an engine starts.

    Args:
      on: The engine; what it gives to one process group is one slice.
      slices: How many process groups.
      memory_bytes: Memory of one device that trials may use; None means what the device has.
      host: The name or address by which workers reach the machine of the driver; None tries all
        that it has.
    """

    def __init__(
        self,
        on: Engine,
        slices: int = 1,
        memory_bytes: int | None = None,
        host: str | None = None,
    ):
        if slices < 1:
            raise BadInput(Problem("slices is less than 1", "engine.slices"))
        self._engine = on
        self._num_slices = slices
        self._memory_bytes = memory_bytes
        self._host = host
        self._seats: list[_Seat] = []
        self._jobs: Sequence[Job] = ()
        self._groups: list[ProcessGroup] = []
        self._inbox: queue.Queue[_Received | Sequence[Standing]] = queue.Queue()
        self._found: list[Event] = []
        self._infos: dict[int, SliceInfo] = {}
        # Ends the watching thread, and stops `_give_up` from reporting workers that are meant to
        # end.
        self._closing = threading.Event()
        self._listening: socket.socket | None = None
        self._place: pathlib.Path | None = None

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start the workers of a study that is kept in `directory`; return the slices.

        This waits for the first worker, as long as its job may be in the queue. Slices without a
        worker count as away.

        Args:
          directory: The directory of the study.

        Returns:
          The device groups, in their order.

        Raises:
          RunError: The engine refuses, or no worker comes any more.
        """
        place = jobs.new_folder(pathlib.Path(directory).absolute())
        self._place = place
        # The order matters: everything that a worker needs (the address, the folder of logs) is
        # there before the jobs are submitted, and threads that accept workers run before the first
        # can connect.
        self._seats = [_Seat() for _ in range(self._num_slices)]
        # Before the jobs are submitted: a job may start at once.
        self._listening, address = link.listen(self._host)
        try:
            address.write(place / DRIVER)
            self._upload_address()
            self._groups = [self._group(index, place) for index in range(self._num_slices)]
            self._begin(self._accept, self._listening, address.secret)
            self._jobs = self._engine.submit(self._groups, str(place))
            command = f"luthier sweep --resume {project.address(directory)}"
            jobs.make_launch(place, self._engine, command, (), self._jobs)
            self._begin(self._watch)
            while not any(seat.line for seat in self._seats):
                if self._closing.is_set():  # from another thread: the study does not start
                    raise RunError(Problem("it was closed before a worker came", "engine"))
                self._take(1.0)
                if all(seat.gone for seat in self._seats):
                    remedy = f"see {place / LOGS}"
                    raise RunError(Problem(self._seats[0].gone, "engine", remedy=remedy))
        except BaseException:
            self.close()
            raise
        # At least one worker has come. The driver is given all slices now, as present, and events
        # for those that are away follow at its first look (`events`). Earlier events are dropped:
        # no trial has been sent yet, so they say only who came and went, which the seats know by
        # now.
        self._found = []
        first = next(iter(self._infos.values()))
        for index, seat in enumerate(self._seats):
            if seat.line is None:
                self._found.append(_without_worker(index, seat))
        # Slices whose workers have not come are taken to be like the first one: they have the same
        # layout.
        named = [
            dataclasses.replace(first, index=index, name=self._groups[index].name)
            for index in range(self._num_slices)
        ]
        return [self._infos.get(index, named[index]) for index in range(self._num_slices)]

    def start(self, slice: int, work: Work) -> None:
        """Start work on a slice.

        Args:
          slice: Number of the device group.
          work: The trials, and how they run.
        """
        self._send(slice, work)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Put one more trial on a free lane of the work that a slice is busy with, or was last.

        Args:
          slice: Number of the device group.
          trial: The trial.
        """
        self._send(slice, Refill(trial))

    def answer(self, slice: int, trial: int, fence: int, verdict: Verdict) -> None:
        """Answer a report of work that `asks`.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
          verdict: Whether the trial continues, is pruned or pauses.
        """
        self._send(slice, Answer(trial, fence, verdict))

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """End a trial at its next step: it is saved, and comes back as nothing.

        Args:
          slice: Number of the device group.
          trial: Number of the trial.
          fence: Number of the attempt, as in the event.
        """
        self._send(slice, Stop(trial, fence))

    def events(self, timeout: float) -> Sequence[Event]:
        """Return new events; wait up to `timeout` seconds for the first.

        A slice for which no worker will come any more is lost for good, until one comes after all.

        Args:
          timeout: The longest time to wait, in seconds.

        Returns:
          The events in order; none where the time has passed.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._take(0.0 if self._found else max(0.0, deadline - time.monotonic()))
            if self._inbox.empty() and (self._found or time.monotonic() >= deadline):
                found, self._found = self._found, []
                return found

    def close(self) -> None:
        """End all workers; trials that run are saved first, so that they can be resumed."""
        self._closing.set()
        if self._place is None or self._listening is None:
            return
        # First of all: the job scripts look for this file before they start a process group again.
        (self._place / CLOSED).touch()
        deadline = time.monotonic() + CLOSE_SECONDS
        for index in range(len(self._seats)):
            self._send(index, Close())
        while any(seat.line for seat in self._seats) and time.monotonic() < deadline:
            with contextlib.suppress(RunError):
                self._take(1.0)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        # Workers that start after this find no driver, and end at once (exit code 0).
        (self._place / DRIVER).unlink(missing_ok=True)
        for seat in self._seats:
            if seat.line is not None:
                seat.line.cut()
        self._end_jobs()

    def _upload_address(self) -> None:
        """Make the driver's address known to machines that share only the study's object store."""
        assert self._place is not None
        study = self._place.parents[1]
        if (home := object_storage.held(study)) is not None:
            home.push((self._place / DRIVER).relative_to(study).as_posix())

    def _end_jobs(self) -> None:
        """Cancel jobs that are still in the queue, and those that do not end."""
        deadline = time.monotonic() + END_SECONDS
        while self._jobs:
            standings = self._engine.standings(self._jobs)
            # A job in the queue would not end by itself before it has run, so as soon as one waits,
            # everything that lives is cancelled. Where all run, they get a few seconds to end by
            # themselves, and the queue records them as finished.
            live = [j for j, s in zip(self._jobs, standings, strict=True) if s.state in LIVE]
            is_waiting = any(standing.state == "waiting" for standing in standings)
            if not live or is_waiting or time.monotonic() >= deadline:
                with contextlib.suppress(RunError):
                    self._engine.cancel(live)
                return
            with contextlib.suppress(RunError):
                self._take(0.5)  # a worker that has just come gets `Close`, too

    def _group(self, index: int, place: pathlib.Path) -> ProcessGroup:
        study, layout = place.parents[1], self._engine.layout
        source = study / "source"
        packages = [n for n in read_json(source / "hashes.json", default={}) if n != "luthier"]
        search = [source] if source.is_dir() else [pathlib.Path.cwd()]
        name = f"{study.name}-{index}"
        # `-P` keeps the working directory off `sys.path`, where an edited package would win over
        # the study's copy; `-u`, because the last lines of a worker that dies are wanted.
        words = ["-P", "-u", "-m", self.worker, "--driver", project.address(place / DRIVER)]
        if url := project.bucket_url(study):
            search = []  # that folder may not exist on the machine of the worker
            words = ["-P", "-u", "-m", _BOOTSTRAP, url, *words]
        words += ["--slice", str(index), "--name", name]
        words += [word for package in packages for word in ("--package", package)]
        if layout.devices is not None:
            words += ["--devices", layout.devices]
        if self._memory_bytes is not None:
            words += ["--memory-bytes", str(self._memory_bytes)]
        inherited = {n: os.environ[n] for n in ("XDG_CACHE_HOME", "PYTHONPATH") if n in os.environ}
        # Only what holds on any machine: not the parent's flags, and no platform, which the
        # worker's own machine decides.
        made = environment(LocalSlice(name, "", ()), inherited, search)
        made = {n: v for n, v in made.items() if n.startswith("JAX_") or n == "PYTHONPATH"}
        del made["JAX_PLATFORMS"]
        return ProcessGroup(name, words, str(place), str(pathlib.Path.cwd()), made, RESTARTS)

    worker = _WORKER
    """The module that a process of a group runs."""

    def _begin(self, function: Any, *arguments: Any) -> None:
        threading.Thread(
            target=function, args=arguments, daemon=True, name="luthier-slices"
        ).start()

    def _accept(self, listening: socket.socket, secret: str) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed
            self._begin(self._hear, connection, secret)

    def _hear(self, connection: socket.socket, secret: str) -> None:
        # In the connection's own thread: somebody who connects and sends nothing must not keep
        # workers waiting.
        greeted = link.greet(connection, secret)
        if greeted is None:
            return
        line, about = greeted
        index = int(about["slice"])
        with contextlib.suppress(OSError, ValueError):
            for message in read_messages(line.received):
                self._inbox.put(_Received(index, line, message))
        line.cut()
        self._inbox.put(_Received(index, line, None))

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            self._inbox.put(self._engine.standings(self._jobs))

    def _take(self, timeout: float) -> None:
        """Take one entry of the inbox, and turn it into events."""
        try:
            received = self._inbox.get(timeout > 0, timeout or None)
        except queue.Empty:
            return
        # The queue's answer, from the watching thread: one standing for each job.
        if not isinstance(received, _Received):
            self._look(received)
            return
        seat = self._seats[received.slice]
        if isinstance(received.message, SliceInfo):
            self._seat(seat, received)
        elif received.line is not seat.line:
            if received.message is None:
                self._count_start(seat, received)
        elif received.message is None:
            reason = f"the connection to its worker ended{self._last_line(received.slice)}"
            self._lose(seat, Lost(received.slice, reason))
        elif isinstance(received.message, Lost):
            self._lose(seat, received.message)
        else:
            self._found.append(received.message)

    def _seat(self, seat: _Seat, received: _Received) -> None:
        if seat.line is not None:  # its end was not received
            self._lose(seat, Lost(received.slice, "another worker came in its place"))
        seat.line, seat.writer = received.line, MessageWriter(received.line.sent)
        seat.num_starts, seat.gone = 0, ""
        self._infos[received.slice] = received.message
        if self._closing.is_set():  # it came after the others got theirs
            self._send(received.slice, Close())
        self._found.append(Back(received.slice))

    def _lose(self, seat: _Seat, lost: Lost) -> None:
        assert seat.line is not None
        seat.line.cut()
        seat.line = seat.writer = None
        # Away in any case: unlike a local worker, the next one must first get through the queue.
        self._found.append(dataclasses.replace(lost, is_away=True))

    def _count_start(self, seat: _Seat, received: _Received) -> None:
        """A worker ended that was not, or is no more, the one of its slice."""
        if seat.line is not None:
            return
        seat.num_starts += 1
        if seat.num_starts >= MAX_STARTS:
            what = f"the worker of slice {self._groups[received.slice].name} does not start"
            self._give_up(received.slice, what + self._last_line(received.slice))

    def _look(self, standings: Sequence[Standing]) -> None:
        """Check the states of jobs: a slice whose job is over gets no more workers."""
        for index, (seat, standing) in enumerate(zip(self._seats, standings, strict=True)):
            is_over = standing.state in ("finished", "failed", "cancelled")
            # While a line is open, its end is the sign. A job that is over without a line is
            # noticed only here.
            if seat.line is None and is_over:
                last = self._last_line(index)
                what = f"job {self._jobs[index].id} is over: {standing.detail}{last}"
                self._give_up(index, f"no worker is left: {what}")

    def _give_up(self, slice: int, why: str) -> None:
        """Report to the driver, once, that no worker will come any more."""
        seat = self._seats[slice]
        if not seat.gone and not self._closing.is_set():
            seat.gone = why
            self._found.append(_without_worker(slice, seat))

    def _send(self, slice: int, message: object) -> None:
        writer = self._seats[slice].writer
        if writer is not None:
            with contextlib.suppress(OSError, ValueError):
                writer.send(message)

    def _last_line(self, slice: int) -> str:
        """Return the last line that any process of a group printed, to be put behind a reason."""
        group = self._groups[slice]
        paths = sorted(
            # Whichever process printed last: which of them failed first is not known here.
            (group.log_path(rank) for rank in range(self._engine.layout.num_processes)),
            key=lambda path: path.stat().st_mtime if path.exists() else 0.0,
        )
        last = crash.last_words(paths[-1])
        return f": {last}" if last else ""
