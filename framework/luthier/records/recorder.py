"""The recorder passes what a run emits to every sink; no sink can harm another or the run."""

from __future__ import annotations

import atexit
import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from luthier.errors import RunError
from luthier.records import object_storage
from luthier.records.console import Console, ConsoleLog
from luthier.records.directory import RunDirectory
from luthier.records.events import Ended, Evaluation, Event, Image, Notice
from luthier.records.goodput import Goodput, Spans
from luthier.records.media import Histograms, Images, MediaFiles, Samples
from luthier.records.metrics_file import JsonLines, read_evaluations
from luthier.records.status import StatusFile, Watchdog
from luthier.records.weights_and_biases import Wandb


class Sink(Protocol):
    """Receives events. Errors of an `essential` sink stop the run; others are reported once."""

    essential: bool

    def emit(self, event: Event) -> None:
        """Take in an event; must return fast.

        Args:
          event: The event.
        """

    def flush(self) -> None:
        """Make what was taken in durable, where that means something."""

    def close(self) -> None:
        """Let go of everything; emits nothing any more."""


class SinkSettings(Protocol):
    """The settings of a sink in the graph: an element of `Records.sinks`."""

    def open(self, run_directory: RunDirectory, report: Callable[[str], None]) -> Sink | None:
        """Start recording a run, or return None when there is nothing to do.

        It is called where the run is recorded: once, in the process with index 0.

        Args:
          run_directory: The run's directory; its `path`, `configuration` and the like.
          report: Is given one line about anything that the user should know; from any thread.

        Returns:
          The sink, or None.
        """


# A sink that is not essential is dropped at its first error instead of being tried again at each
# step.
class Recorder:
    """Hands events to sinks, from the thread that trains.

    Args:
      sinks: In the order in which they are given events, and closed.
      goodput: The run's stopwatch; its summary becomes part of the summary of `Ended`.
      media: Where images are kept; None drops them.
    """

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        goodput: Goodput | None = None,
        media: MediaFiles | None = None,
    ):
        self.goodput = Goodput() if goodput is None else goodput
        self._media = media
        self._sinks = list(sinks)
        self._reports: deque[str] = deque()
        self._closed = False
        # For programs that forget to close, such as notebooks: what waits in memory is written at
        # exit.
        atexit.register(self._close_at_exit)

    def add(self, sink: Sink) -> None:
        """Hand events to one more sink from now on.

        Args:
          sink: The sink.
        """
        self._sinks.append(sink)

    def report(self, text: str) -> None:
        """Queue one line, emitted as a `Notice` at the next opportunity; thread-safe.

        Args:
          text: The line.
        """
        # Sinks report from their own threads, but events must reach all sinks in one order, from
        # the thread that trains. A deque's append is atomic, so no lock is needed, also not in a
        # signal handler.
        self._reports.append(text)

    def emit(self, event: Event) -> None:
        """Hand an event to every sink.

        Args:
          event: The event.

        Raises:
          RunError: The run can no longer be recorded; every sink was given the event.
          TypeError: A value of a step or an evaluation is not a number.
          ValueError: The pixels of an image are not an image.
        """
        if isinstance(event, Ended):
            # Filled in here, because the stopwatch runs until the very end of the run.
            # An entry of the event wins over one of the stopwatch with the same name.
            summary = {**self.goodput.summary(), **event.summary}
            event = dataclasses.replace(event, summary=summary)
        stored = self._stored(event) if isinstance(event, Image) else event
        if stored is not None:
            self._deliver(stored)
        self._deliver_reports()

    def notice(self, text: str) -> None:
        """Emit a notice of one line.

        Args:
          text: The line.
        """
        self.emit(Notice(text))

    def flush(self) -> None:
        """Return when everything emitted is on disk; called before a checkpoint is committed.

        Raises:
          RunError: The disk refuses.
        """
        self._each("flush", lambda sink: sink.flush())
        self._deliver_reports()

    def close(self) -> None:
        """Close every sink in order; a second call does nothing.

        Raises:
          RunError: Not everything emitted is on disk.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        failure: Exception | None = None
        while self._sinks:
            # Removed before it is closed, so that the reports of one that is closing go to those
            # that are left.
            sink = self._sinks.pop(0)
            try:
                sink.close()
            except Exception as error:
                if sink.essential:
                    failure = failure or error
                else:
                    self.report(_ended(sink, error))
            self._deliver_reports()
        if failure is not None:
            raise failure

    def _stored(self, image: Image) -> Image | None:
        """Write an image's file before its line; report and drop it if that fails."""
        if self._media is None or image.pixels is None:
            return None
        try:
            return self._media.keep(image)
        except RunError as error:
            self.report(f"the image {image.name} of step {image.step} is lost: {error}")
            return None

    def _deliver(self, event: Event) -> None:
        self._each("emit", lambda sink: sink.emit(event))

    def _deliver_reports(self) -> None:
        while self._reports:
            try:
                self._deliver(Notice(self._reports.popleft()))
            except RunError:
                if not self._closed:
                    raise

    def _each(self, verb: str, call) -> None:
        failure: Exception | None = None
        # Every sink is given the event before an error is raised: the console shows the last step,
        # also where the disk is full.
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:
                if sink.essential:
                    failure = failure or error
                    continue
                self._sinks.remove(sink)
                self.report(_ended(sink, error))
        if failure is not None:
            raise failure

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except Exception as error:
            # The interpreter is going down: an exception raised here would be printed as a
            # traceback that nobody can catch.
            print(f"luthier: {error}", file=sys.stderr)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _ended(sink: Sink, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"{type(sink).__name__} stopped recording: {reason}; training continues"


@dataclasses.dataclass(frozen=True)
class Records:
    """Settings of the records of a run; the JSON lines and `console.log` are always written.

    Args:
      directory: Root directory of the runs, or the URL of a folder in an object store, `gs://...`
        or `s3://...`. The default, `runs`, is in the folder of the project (of the nearest
        pyproject.toml with `[tool.luthier]`, or beside `configs` or `sweeps`); other relative paths
        are in the working directory.
      console: Console output while training; None shows nothing.
      wandb: The mirror in Weights & Biases; None makes none.
      histograms: Distributions of parameters; None shows none.
      samples: Text that a language model generates, at the end and during training; None shows
        none.
      images: Images of the training data; None shows none.
      watchdog: Limits after which a run counts as hanging and is ended; None waits forever.
      sinks: Additional sinks that record a run: your own classes, or those of installed
        distributions.
    """

    directory: str = "runs"
    console: Console | None = Console()
    wandb: Wandb | None = None
    histograms: Histograms | None = None
    samples: Samples | None = Samples()
    images: Images | None = None
    watchdog: Watchdog | None = Watchdog()
    sinks: Sequence[SinkSettings] = ()

    def open(self, run_directory: RunDirectory | None) -> Recorder:
        """Return a recorder for a run.

        Args:
          run_directory: The run's directory, locked and cut back by the caller; None records
            nothing and only shows.

        Returns:
          The recorder.

        Raises:
          RunError: The directory cannot be written.
        """
        # Without a directory (a notebook, an evaluation) only the console is left.
        media = None if run_directory is None else MediaFiles(run_directory.path)
        recorder = Recorder(media=media)
        report = recorder.report
        earlier: list[Evaluation] = []
        if run_directory is not None:
            fence = run_directory.fence
            # The order is that of closing: the record first, and the mirrors, which follow it,
            # afterwards.
            recorder.add(JsonLines(run_directory.metrics_path, report, fence=fence))
            recorder.add(Spans(run_directory.goodput_path, recorder.goodput, report, fence=fence))
            recorder.add(StatusFile(run_directory.status_path, report, fence=fence))
            mirror = self.wandb.open(run_directory, report) if self.wandb is not None else None
            if mirror is not None:
                recorder.add(mirror)
            for settings in self.sinks:
                self._add(recorder, settings, run_directory)
            earlier = list(read_evaluations(run_directory.metrics_path))
            # Behind the others, whose reports it takes in, and before the copy, which includes it.
            try:
                log = ConsoleLog(run_directory.console_path, self.console or Console(), fence)
                log.recall(earlier)
                recorder.add(log)
            except RunError as error:
                report(str(error))
            copy = object_storage.of_environment(run_directory.path)
            if (home := object_storage.held(run_directory.path)) is not None:
                # The lock uploads until it is released, after what is written when this recorder
                # is closed; and it is what a mirror is for.
                home.start(report)
            elif copy is not None:
                recorder.add(object_storage.Mirror(run_directory.path, copy, report))
        # Last, so that it shows what the others report while they are closed.
        if self.console is not None:
            console = self.console.open()
            console.recall(earlier)
            recorder.add(console)
        return recorder

    def _add(self, recorder: Recorder, settings: SinkSettings, run_directory: RunDirectory) -> None:
        # Whatever is wrong with somebody else's sink, the run and its own records continue.
        try:
            sink = settings.open(run_directory, recorder.report)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            recorder.report(f"{type(settings).__name__} records nothing: {reason}")
        else:
            if sink is not None:
                recorder.add(sink)
