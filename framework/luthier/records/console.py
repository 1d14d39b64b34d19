"""The console of a run while it trains: a header, a live line, evaluations and notices above it.

In a terminal the live line is redrawn in place, in a notebook it is one output that is updated, and
in a pipe or a log file it becomes a plain line now and then. rich is imported when a console opens.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TextIO

from luthier.records import events
from luthier.records.events import LEARNING_RATE, LOSS, MFU, TOKENS_PER_SECOND
from luthier.records.redaction import redact
from luthier.storage import run_error, unfenced
from luthier.terminal import Printable, cell, format_bytes, printable

_LEAST_BAR = 6
_ENTROPIES = (("unigram", "unigram_entropy"), ("bigram", "bigram_entropy"))
_ENTROPY_LABELS = {key: f"{name} nats per byte" for name, key in _ENTROPIES}
_MOST_SETS = 4
# Notes of the header that are not shown: other numbers about the memory, for people who compare
# the prediction with the measurement. `luthier runs ID` shows both.
_IN_RUNS = ("plan", "state")
_NO_ROWS = (*_IN_RUNS, "project")  # the project has its row below that of the run
_NATS_OF = {"nats_per_byte": 1.0, "bits_per_byte": math.log(2.0)}


@dataclasses.dataclass(frozen=True)
class Console:
    """Settings of the console output while training.

    Args:
      plain_every_seconds: Minimum time between two lines where lines cannot be redrawn.
      plain_every_steps: Minimum number of steps between two such lines, instead of seconds.
      width: Columns to use; None asks the terminal (80 in a pipe).
    """

    RANGES: ClassVar[dict[str, str]] = {
        "plain_every_seconds": "0 <= x",
        "plain_every_steps": "1 <= x",
        "width": "1 <= x",
    }
    READ_WHEN: ClassVar[dict[str, str]] = {"plain_every_seconds": "plain_every_steps is None"}

    plain_every_seconds: float = 15.0
    plain_every_steps: int | None = None
    width: int | None = None

    def open(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> ConsoleSink:
        """Return the sink that shows a run on `stream`, or on the standard output.

        Args:
          stream: The stream; None means the standard output.
          clock: Returns the time in seconds.

        Returns:
          The sink.
        """
        return ConsoleSink(self, stream, clock)


def format_count(value: float) -> str:
    """Return a count in at most five characters: `950`, `12.3k`, `124M`, `1.24B`.

    Args:
      value: The count.

    Returns:
      The text.

    Example:
      >>> from luthier import records
      >>> [records.format_count(value) for value in (950, 12_300, 124e6, 1.24e9)]
      ['950', '12.3k', '124M', '1.24B']
    """
    for size, suffix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return _three_digits(value / size) + suffix
    return str(int(value)) if value == int(value) else _three_digits(value)


def format_seconds(value: float) -> str:
    """Return a time span: `0:00:42`, `12:03:04`, `2d 03:04:05`.

    Args:
      value: The time span in seconds.

    Returns:
      The text, without fractions of a second.

    Example:
      >>> from luthier import records
      >>> records.format_seconds(42.7), records.format_seconds(2 * 86_400 + 11_045)
      ('0:00:42', '2d 03:04:05')
    """
    minutes, seconds = divmod(int(max(0.0, value)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{days}d {clock}" if days else clock[1:] if hours < 10 else clock


def _three_digits(value: float) -> str:
    return (
        f"{value:.2f}"
        if abs(value) < 9.995
        else f"{value:.1f}"
        if abs(value) < 99.95
        else f"{value:.0f}"
    )


def _number(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.4g}"


def _entropies(facts: Mapping[str, Any], scale: float = 1.0) -> str:
    shown = [f"{name} {facts[key] / scale:.4f}" for name, key in _ENTROPIES if facts.get(key)]
    return ", ".join(shown)


def _fact(key: str, value: Any) -> str:
    if value is None or value == "":  # another data set has this fact
        return ""
    if key in _ENTROPY_LABELS:
        return f"{value:.4f}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format_bytes(value) if key == "bytes" else format_count(value)
    return str(value)


def _data_rows(header: events.Header) -> list[tuple[str, str]]:
    """Return the descriptions of the data sets, a column for each and a row for each fact."""
    sets = {"training": header.data, **header.evaluations}
    rows: list[tuple[str, str]] = []
    # A few sets beside each other, so that the lines are not too long.
    names = [name for name, facts in sets.items() if facts]
    for start in range(0, len(names), _MOST_SETS):
        shown = names[start : start + _MOST_SETS]
        # A mapping holds the parts of a mixture, which `luthier data inspect` shows.
        keys = dict.fromkeys(
            key
            for name in shown
            for key, value in sets[name].items()
            if value is not None and not isinstance(value, Mapping | list | tuple)
        )
        table = [shown]
        table += [[_fact(key, sets[name].get(key)) for name in shown] for key in keys]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        labels = (_ENTROPY_LABELS.get(key, key.replace("_", " ")) for key in keys)
        rows += zip(["data", *(f"  {label}" for label in labels)], lines, strict=True)
    return rows


def header_rows(header: events.Header) -> list[tuple[str, str]]:
    """Return the header's facts as pairs of label and text; what is not known is left out.

    Args:
      header: The facts that a run begins with.

    Returns:
      (label, text) in the order in which they are printed, without control characters.
    """
    # Axes of size one say nothing. Texts pass through `cell`: names of experiments and paths come
    # from records, and may hold control characters.
    memory, flops = header.memory_bytes_per_device, header.flops_per_step
    rows = [
        ("run", header.run_directory),
        ("project", str(header.notes.get("project", ""))),
        ("steps", f"{header.total_steps:,}" if header.total_steps else ""),
        ("resumed at step", f"{header.step:,}" if header.step else ""),
        ("parameters", "" if header.parameters is None else f"{header.parameters:,}"),
        ("devices", header.devices),
        ("mesh", " ".join(f"{axis}={size}" for axis, size in header.mesh.items() if size != 1)),
        (
            "memory per device",
            "" if memory is None else f"{format_bytes(memory)} (state and gradients)",
        ),
        ("FLOPs per step", "" if flops is None else format_count(flops).replace("B", "G")),
        *_data_rows(header),
        *((str(name), str(text)) for name, text in header.notes.items() if name not in _NO_ROWS),
    ]
    return [(cell(label), cell(text)) for label, text in rows if text.strip()]


class _Pace:
    """Steps per second over the last while."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=64)

    def mark(self, now: float, step: int) -> None:
        # Half a second apart at least, so that 64 marks cover a while also where steps take
        # milliseconds.
        if not self._marks or now - self._marks[-1][0] >= 0.5 or len(self._marks) < 2:
            self._marks.append((now, step))

    def left(self, step: int, total: int | None) -> float | None:
        """Return the seconds left, or None while nobody knows."""
        if total is None or len(self._marks) < 2:
            return None
        # The rate over the last marks and not since the start, so that compiling and evaluations do
        # not count for ever.
        (first, begin), (last, end) = self._marks[0], self._marks[-1]
        return (total - step) * (last - first) / (end - begin) if end > begin else None


# Every event comes through here, thousands of steps a second for tiny models, so a step only notes
# its values: formatting and drawing happen when a line is due.
class ConsoleSink:
    """Shows a run. See `Console`.

    Args:
      settings: The settings.
      stream: Where; None is the standard output.
      clock: Returns seconds; monotonic.
    """

    # A terminal that is closed must not end a run.
    essential = False

    def __init__(
        self,
        settings: Console,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        from rich.console import Console as RichConsole

        self._settings = settings
        self._clock = clock
        # A file is never a terminal, whatever the environment (FORCE_COLOR, a notebook) suggests.
        is_file = stream is not None and not stream.isatty()
        self._is_screen = stream is None
        kind: dict[str, Any] = {"force_terminal": False, "force_jupyter": False} if is_file else {}
        self._console = RichConsole(file=stream, width=settings.width, highlight=False, **kind)
        self._header: events.Header | None = None
        self._step: events.Step | None = None
        self._pace = _Pace()
        self._best: dict[tuple[str, str], float] = {}
        self._smooth: dict[str, float] = {}
        self._next_at = -math.inf
        self._plain: tuple[float, int] | None = None  # when and at which step the last line was
        self._shown_step = -1
        # Three ways to show the line, chosen once: in place in a terminal, as one updated output in
        # a notebook, or as lines now and then (a pipe, a log file, a terminal without control
        # codes).
        self._live: _LiveLine | None = None
        if self._console.is_jupyter:
            self._live = _NotebookLine()
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = _TerminalLine(self._console)

    def emit(self, event: events.Event) -> None:
        """Show an event; most steps only take note of it, so that they cost next to nothing.

        Args:
          event: The event.
        """
        try:
            self._show(event)
        except OSError:  # a terminal that is closed: nobody is there to read
            raise
        except Exception as error:
            # The recorder drops a sink that fails, and reports it to the others. Without this line
            # nothing at all would be on the screen while the run continues.
            if self._is_screen:
                what = f"luthier: cannot show the run any more: {type(error).__name__}: {error}"
                print(f"{what}; it is recorded as before", file=sys.stderr)
            raise

    def recall(self, evaluations: Iterable[events.Evaluation]) -> None:
        """Take note of evaluations of a run's earlier processes, for which values are the best.

        Args:
          evaluations: In their order.
        """
        for event in evaluations:
            for name, value in event.values.items():
                self._is_best(event, name, value)

    def _show(self, event: events.Event) -> None:
        if isinstance(event, events.Step):
            self._take_step(event)
        elif isinstance(event, events.Header):
            self._header = event
            self._show_header(event)
        elif isinstance(event, events.Evaluation):
            self._show_evaluation(event)
        elif isinstance(event, events.Sample):
            self._print(f"sample at step {event.step:,}:")
            lines = printable(event.text).splitlines()
            self._print("\n".join("  | " + line for line in lines), "italic")
        elif isinstance(event, events.Notice):
            self._print(f"note: {event.text}", "yellow")
        elif isinstance(event, events.Ended):
            self._show_end(event)

    def flush(self) -> None:
        """Do nothing; what is shown is shown."""

    def close(self) -> None:
        """Put the terminal back as it was."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _take_step(self, step: events.Step) -> None:
        now = self._clock()
        self._step = step
        for name in (TOKENS_PER_SECOND, MFU):
            if name in step.values:
                value = step.values[name]
                # A moving average, because single steps vary too much to be read; the loss is shown
                # as it is.
                self._smooth[name] = value + 0.9 * (self._smooth.get(name, value) - value)
        self._pace.mark(now, step.step)
        if self._live is None:
            self._maybe_plain(now, step.step)
        elif now >= self._next_at:
            # A terminal over a slow connection may take long to take a line.
            begin = time.perf_counter()
            self._live.show(self._line(self._console.width, bar=True))
            # Drawing takes at most a fiftieth of the time.
            self._next_at = now + max(0.1, 50 * (time.perf_counter() - begin))

    def _maybe_plain(self, now: float, step: int) -> None:
        # The first and the last step always get a line, so that even a short log shows where the
        # run began and ended.
        every = self._settings.plain_every_steps
        if self._plain is None:
            due = True
        elif every is not None:
            due = step // every > self._plain[1] // every
        else:
            due = now - self._plain[0] >= self._settings.plain_every_seconds
        total = self._header.total_steps if self._header else None
        if due or (total is not None and step >= total):
            self._plain = (now, step)
            self._show_plain()

    def _show_plain(self) -> None:
        if self._step is not None and self._shown_step != self._step.step:
            self._shown_step = self._step.step
            self._print(self._line(10_000, bar=False))

    def _line(self, width: int, bar: bool) -> str:
        """Return the line about the last step: what fits, the most important first."""
        assert self._step is not None
        step, values = self._step.step, self._step.values
        total = self._header.total_steps if self._header else None
        head = f"step {step:,}/{total:,}" if total else f"step {step:,}"
        left = self._pace.left(step, total)
        # Each part with a rank; what does not fit goes by rank, the head and the loss last.
        parts = {"head": (0, head)}
        if bar and total:
            parts["bar"] = (4, "━" * _LEAST_BAR)
        if LOSS in values:
            parts[LOSS] = (0, f"loss {_number(values[LOSS])}")
        if LEARNING_RATE in values:
            parts[LEARNING_RATE] = (5, f"lr {values[LEARNING_RATE]:.1e}")
        if TOKENS_PER_SECOND in self._smooth:
            parts[TOKENS_PER_SECOND] = (2, f"{format_count(self._smooth[TOKENS_PER_SECOND])} tok/s")
        if MFU in self._smooth:
            parts[MFU] = (3, f"MFU {100 * self._smooth[MFU]:.1f}%")
        if left is not None:
            parts["left"] = (1, f"{format_seconds(left)} left")
        # The number of a part is its rank: the largest goes first where the line is too long. Of
        # two with one rank `max` takes the earlier, so that the loss outlives the head.
        # One column stays free, since terminals may wrap a line that fills the last one.
        while len(parts) > 1 and _width(parts) >= width:
            del parts[max(parts, key=lambda name: parts[name][0])]
        if total and "bar" in parts:
            # Short on a wide terminal, too: it stands between the step and its loss.
            room = min(40, width - 1 - _width(parts) + _LEAST_BAR)
            parts["bar"] = (4, _bar(room, step / total))
        return "  ".join(text for _, text in parts.values())

    def _show_evaluation(self, event: events.Evaluation) -> None:
        if self._live is None:
            # One line, which a search in a log finds whole.
            self._print(self._evaluation_line(event))
            return
        improved = {
            name for name, value in event.values.items() if self._is_best(event, name, value)
        }
        table = []
        for name, value in event.values.items():
            best = self._best.get((event.name, name))
            table.append((name, _number(value), "" if best is None else _number(best)))
        name_width, value_width, best_width = (
            max((len(row[column]) for row in table), default=0) for column in range(3)
        )
        self._print(f"eval {event.name} at step {event.step:,}", "bold")
        for name, shown, best_shown in table:
            line = f"  {name.ljust(name_width)}  {shown.rjust(value_width)}"
            line += f"  best {best_shown.rjust(best_width)}" if best_shown else ""
            self._print(line, "bold" if name in improved else "")

    def _evaluation_line(self, event: events.Evaluation) -> str:
        facts = self._header.evaluations.get(event.name, {}) if self._header else {}
        parts = []
        for name, value in event.values.items():
            text = f"{name} {_number(value)}"
            entropies = _entropies(facts, _NATS_OF[name]) if name in _NATS_OF else ""
            text += f" ({entropies})" if entropies else ""
            parts.append(text + (" best" if self._is_best(event, name, value) else ""))
        return f"eval {event.name} at step {event.step:,}: " + "  ".join(parts)

    def _is_best(self, event: events.Evaluation, name: str, value: float) -> bool:
        """Return whether the value is better than all that were shown before."""
        direction = event.better.get(name)
        if direction is None or math.isnan(value):
            return False
        key = (event.name, name)
        before = self._best.get(key)
        better = before is None or (value < before if direction == "lower" else value > before)
        if better:
            self._best[key] = value
        # The first value is not marked: it is better than nothing.
        return better and before is not None

    def _show_header(self, header: events.Header) -> None:
        rows = header_rows(header)
        if self._live is None:
            self._print(header.experiment)
            width = max((len(label) for label, _ in rows), default=0)
            for label, text in rows:
                self._print(f"  {label.ljust(width)}  {text}")
            return
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        # `Text` and not plain strings, in which rich would read brackets as markup: axes and shapes
        # have them.
        table = Table.grid(padding=(0, 2))
        for label, text in rows:
            table.add_row(Text(label, style="dim"), Text(text, overflow="fold"))
        title = Text(header.experiment, style="bold")
        panel = Panel(table, title=title, title_align="left", expand=False)
        self._console.print(Printable(panel))
        # The longest wait of a start; the first step takes its place.
        self._live.show("compiling the train step ...")

    def _show_end(self, event: events.Ended) -> None:
        if self._live is not None and self._step is not None:
            # The last drawn line may be some steps old; the final one is printed in full, to stay
            # in the scrollback.
            self._live.show("")
            self._print(self._line(self._console.width, bar=False))
        elif self._live is None:
            self._show_plain()
        self._print(f"{event.status} at step {event.step:,}", "bold")
        if event.message:
            self._print(event.message)

    def _print(self, text: str, style: str = "") -> None:
        text = printable(redact(text))
        if self._live is None:
            # Plain text is for programs too: it is neither wrapped nor cut.
            self._console.file.write(text + "\n")
            self._console.file.flush()
            return
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)


class ConsoleLog(ConsoleSink):
    """Writes what a run shows into a file, as plain lines; it appends to what is there.

    The file has no control characters and no secrets, and grows by a line per `plain_every_seconds`
    besides what happens.

    Args:
      path: The file.
      settings: The settings of the console, which the lines follow.
      fence: Raises `LockLost` where another process writes here now; called before each write.

    Raises:
      RunError: The file cannot be opened for writing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Console,
        fence: Callable[[], None] = unfenced,
    ):
        try:
            # Open for as long as the run: `close` closes it.
            self._file = open(  # noqa: SIM115
                path, "a", encoding="utf-8", errors="backslashreplace"
            )
        except OSError as error:
            raise run_error("write", path, error) from error
        self._fence = fence
        super().__init__(settings, self._file)
        # A run has a part for each of its starts, and the console shows no times.
        self._print(time.strftime("%Y-%m-%d %H:%M:%S %z"))

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._file.close()

    def _print(self, text: str, style: str = "") -> None:
        try:
            self._fence()
            super()._print(text, style)
        except Exception:
            self._file.close()  # the recorder lets go of a sink that fails
            raise


def _width(parts: Mapping[str, tuple[int, str]]) -> int:
    return len("  ".join(text for _, text in parts.values()))


def _bar(width: int, share: float) -> str:
    full = int(width * min(1.0, max(0.0, share)))
    return "━" * full + "─" * (width - full)


class _LiveLine(abc.ABC):
    """A line that is redrawn in place."""

    @abc.abstractmethod
    def show(self, text: str) -> None:
        """Put `text` in the place of what the line held."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the line."""


class _TerminalLine(_LiveLine):
    """The last line of a terminal; what anybody prints meanwhile appears above it."""

    def __init__(self, console: Any):
        from rich.live import Live

        # `transient` takes the line away at the end. Without `auto_refresh` no thread of rich draws
        # in between.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._started = False

    def show(self, text: str) -> None:
        from rich.text import Text

        if not self._started:
            self._live.start()
            self._started = True
        line = Text(text, no_wrap=True, overflow="ellipsis")
        line.highlight_regex("━+", "green")
        self._live.update(line, refresh=True)

    def close(self) -> None:
        self._live.stop()


class _NotebookLine(_LiveLine):
    """One output of a notebook's cell, updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        from IPython.display import display

        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        self._handle = None
