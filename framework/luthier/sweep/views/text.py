"""A study as lines of text."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Sequence

from luthier.sweep.driver.ledger import ENDED, Trial
from luthier.sweep.results import TRACEBACK
from luthier.sweep.views.standing import Standing
from luthier.terminal import cell

_BLOCKS = "▁▂▃▄▅▆▇█"


def lines_of(standing: Standing, most: int | None = 20) -> Iterator[str]:
    """Yield a study as lines of text: how it stands, its trials, the best of them.

    Args:
      standing: How it stands.
      most: Most trials that are listed, the newest; None for all.
    """
    yield headline(standing)
    if standing.driver is not None:
        yield cell(f"driven by {standing.driver}")
    yield from map(cell, standing.ledger.notices)
    if standing.ledger.stopped:
        yield cell(f"stopped: {standing.ledger.stopped}")
    trials = standing.ledger.trials
    listed = trials if most is None else trials[-most:]
    if len(listed) < len(trials):
        yield f"the newest {len(listed)} of {len(trials)} trials (--all lists them all):"
    yield from _table(
        ["trial", "state", *standing.metrics, "what it sets"],
        [[str(t.number), t.state, *_values(standing, t), _told(standing, t)] for t in listed],
    )
    yield from best_lines(standing)


def trial_lines(standing: Standing, trial: Trial, directory: pathlib.Path) -> Iterator[str]:
    """Yield all that is known of one trial: outcome, overrides, times, and its traceback.

    Args:
      standing: The study.
      trial: The trial.
      directory: The study's folder.
    """
    folder = directory / "trials" / f"{trial.number:04d}"
    yield ended_line(standing, trial)
    if trial.device_seconds:
        yield f"device time: {trial.device_seconds:.3g} s"
    if trial.losses:
        times = "once" if trial.losses == 1 else f"{trial.losses} times"
        yield cell(f"its worker died {times} before; the last time: {trial.lost}")
    yield f"folder: {folder}"
    path = folder / TRACEBACK
    if trial.state == "failed" and path.is_file():
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def best_lines(standing: Standing) -> Iterator[str]:
    """Yield the best trials; nothing where none is complete."""
    best = standing.best()
    if best:
        yield "best:" if len(best) == 1 else f"{len(best)} trials that no other beats:"
        for trial in best[:12]:
            values = ", ".join(
                f"{name} {value:.6g}"
                for name, value in zip(standing.metrics, trial.values or (), strict=True)
            )
            yield cell(f"  trial {trial.number}: {values}; {standing.words(trial)}")


def headline(standing: Standing) -> str:
    """Return in one line how a study stands."""
    ledger = standing.ledger
    ended = ledger.count(*ENDED)
    limit = "" if standing.num_trials is None else f" of {standing.num_trials}"
    parts = [f"{ended}{limit} trials ended"]
    for state in ("running", "waiting", "pruned", "infeasible", "failed"):
        if count := ledger.count(state):
            parts.append(f"{count} {state}")
    if copies := sum(trial.copy_of is not None for trial in ledger.trials):
        parts.append(f"{copies} {'copies' if copies > 1 else 'copy'} of earlier ones")
    if ledger.device_seconds:
        parts.append(f"{ledger.device_seconds / 3600:.3g} device hours")
    return cell(f"{standing.name}: {', '.join(parts)}")


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return numbers as a line of small bars; those that are no numbers are left out.

    Args:
      values: The numbers.
      width: Most bars; of more numbers, the newest count.
    """
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in shown)


def ended_line(standing: Standing, trial: Trial) -> str:
    """Return one line about a trial that ended."""
    values = ", ".join(
        f"{name} {value:.6g}"
        for name, value in zip(standing.metrics, trial.values or (), strict=False)
    )
    said = [trial.state, *([values] if values else []), *([trial.reason] if trial.reason else [])]
    return cell(f"trial {trial.number}: {'; '.join(said)}; {standing.words(trial)}")


def _values(standing: Standing, trial: Trial) -> list[str]:
    if trial.values is None:
        return ["" for _ in standing.metrics]
    return [f"{value:.6g}" for value in trial.values]


def _told(standing: Standing, trial: Trial) -> str:
    words = standing.words(trial)
    return f"{words}  ({trial.reason})" if trial.reason else words


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[cell(text) for text in row] for row in rows]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
