"""A study while it runs: a table that renews itself on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from luthier.sweep.driver.ledger import ENDED, Ledger
from luthier.sweep.protocol import SliceInfo
from luthier.sweep.views.standing import Standing
from luthier.sweep.views.text import ended_line, headline, sparkline
from luthier.terminal import Printable, cell

_SECONDS = 0.5


class LiveView:
    """Shows a study on a terminal, or as a line for each trial that ended where there is none.

    Args:
      name: The study's name.
      metrics: The names of its objectives.
      directions: `lower` or `higher` for each of them.
      num_trials: Trials of its budget; None for no limit.
      stream: Where to; the standard output where it is None.
    """

    def __init__(
        self,
        name: str,
        metrics: Sequence[str],
        directions: Sequence[str],
        num_trials: int | None,
        stream: TextIO | None = None,
    ):
        self._facts = (name, tuple(metrics), tuple(directions), num_trials)
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._told: set[int] = set()
        self._next = -1  # all trials before it are told; -1 before the first look
        self._notices = 0
        self._live: Any = None
        self._last = self._started = 0.0
        self._ended_before = 0

    def __enter__(self) -> LiveView:
        if self._is_terminal:
            import rich.console
            import rich.live

            console = rich.console.Console(file=self._stream)
            self._live = rich.live.Live(console=console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, ledger: Ledger, slices: Sequence[SliceInfo]) -> None:
        """Show how the study stands now.

        Args:
          ledger: Its trials.
          slices: Where they run.
        """
        standing = Standing(*self._facts, ledger)
        if self._next < 0:
            self._started, self._next = time.monotonic(), 0
            self._told = {trial.number for trial in ledger.trials if trial.state in ENDED}
            self._ended_before = len(self._told)
        for notice in ledger.notices[self._notices :]:
            self._print(f"notice: {notice}")
        self._notices = len(ledger.notices)
        if not self._is_terminal:
            self._tell_ended(standing)
            return
        everything = all(trial.state in ENDED for trial in ledger.trials)
        if everything or time.monotonic() - self._last >= _SECONDS:
            self._last = time.monotonic()
            self._live.update(Printable(self._table(standing, slices)), refresh=True)

    def _print(self, line: str) -> None:
        line = cell(line)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def _tell_ended(self, standing: Standing) -> None:
        while self._next in self._told:
            self._told.discard(self._next)
            self._next += 1
        for trial in standing.ledger.trials[self._next :]:
            if trial.state in ENDED and trial.number not in self._told:
                self._told.add(trial.number)
                print(ended_line(standing, trial), file=self._stream, flush=True)

    def _table(self, standing: Standing, slices: Sequence[SliceInfo]) -> Any:
        import rich.table

        ledger = standing.ledger
        table = rich.table.Table(title=headline(standing), title_justify="left")
        for head in ("slice", "trial", "state", standing.metrics[0], "what it sets"):
            table.add_column(head, overflow="fold")
        running = [trial for trial in ledger.trials if trial.state == "running"]
        for info in slices:
            here = [trial for trial in running if trial.slice == info.index]
            if not here:
                table.add_row(info.name, "", "free", "", "")
            for trial in here:
                bars = sparkline(list((trial.series or {}).values()))
                words = standing.words(trial)
                table.add_row(info.name, str(trial.number), "running", bars, words)
        for trial in standing.best()[:3]:
            value = f"{(trial.values or (0.0,))[0]:.6g}"
            table.add_row("best", str(trial.number), trial.state, value, standing.words(trial))
        table.caption = self._time_left(standing)
        return table

    def _time_left(self, standing: Standing) -> str:
        ended = standing.ledger.count(*ENDED)
        done = ended - self._ended_before
        if standing.num_trials is None or not done or ended >= standing.num_trials:
            return ""
        seconds = (time.monotonic() - self._started) / done * (standing.num_trials - ended)
        is_long = seconds > 90
        return f"about {seconds / 60:.0f} min left" if is_long else f"about {seconds:.0f} s left"
