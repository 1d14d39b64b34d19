"""`luthier runs ID --goodput`: where the time of a run went, as a table and a chart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from luthier.cli.printing import table

if TYPE_CHECKING:
    from luthier.records import Account

_ORDER = ("step", "data_wait", "evaluate", "show", "save", "init", "compile", "other")
_NAMES = {"data_wait": "data wait", "lost": "lost work"}
_LETTERS = {
    "step": "#", "data_wait": "w", "evaluate": "e", "show": "h", "save": "s", "init": "i",
    "compile": "c", "other": "o", "lost": "x",
}  # fmt: skip
_IDLE = "."
_BAR_WIDTH = 30
_STRIP_WIDTH = 72


def duration(seconds: float) -> str:
    """Return seconds as `h:mm:ss`, or with decimals if they are less than a minute."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def as_json(account: Account) -> dict[str, Any]:
    """Return an account of `luthier.records` as JSON values."""
    return {
        "total_seconds": account.total,
        "fraction": account.fraction,
        "restarts": account.restarts,
        "seconds": dict(account.seconds),
        "processes": [
            {
                "start": life.start,
                "end": life.end,
                "restored": life.restored,
                "reached": life.reached,
                "status": life.status,
                "idle_seconds": life.idle,
                "seconds": dict(life.seconds),
            }
            for life in account.lifetimes
        ],
    }


def lines_of(account: Account, name: str) -> list[str]:
    """Return the lines that show an account.

    Args:
      account: An account of `luthier.records`.
      name: The name of the run.
    """
    if not account.lifetimes:
        return [f"{name}: no time was recorded"]
    restarts = f"{account.restarts} restart{'' if account.restarts == 1 else 's'}"
    lines = [
        f"{name}: {duration(account.total)}, {restarts}, goodput {account.fraction:.1%}",
        "",
        *_by_kind(account),
        "",
        *table(*_by_process(account)),
        "",
        *_chart(account),
    ]
    return lines


def _by_kind(account: Account) -> list[str]:
    """Return the table of time by kind of work, with bars; kinds without time are left out."""
    rows = []
    for kind in (*_ORDER, "lost", "idle"):
        seconds = account.seconds.get(kind, 0.0)
        if seconds:
            share = seconds / account.total
            bar = "█" * round(_BAR_WIDTH * share) or "▏"
            rows.append((_NAMES.get(kind, kind), duration(seconds), f"{share:.1%}", bar))
    rows.append(("total", duration(account.total), "100.0%", ""))
    return table(["where", "time", "share", ""], rows)


def _by_process(account: Account) -> tuple[list[str], list[tuple[Any, ...]]]:
    heads = ["process", "began", "after", "from step", "to step", "ended", "ran", "lost work"]
    rows = [
        (
            number,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(life.start)),
            duration(life.idle) if number > 1 else "",
            life.restored,
            life.reached,
            life.status,
            duration(life.end - life.start),
            duration(life.seconds["lost"]) if life.seconds.get("lost") else "",
        )
        for number, life in enumerate(account.lifetimes, start=1)
    ]
    return heads, rows


def _chart(account: Account) -> list[str]:
    """Return the run as a strip of characters, each an equal span of time, and a legend.

    Within a process the kinds are in the order of a typical life, not where each happened.
    """
    # A record has sums per process, not every span. The ends of the parts are rounded, and not
    # their lengths: rounding errors then do not add up, and the strip has its full width.
    parts: list[tuple[str, float]] = []
    for life in account.lifetimes:
        parts.append((_IDLE, life.idle))
        order = ("init", "compile", *(k for k in _ORDER if k not in ("init", "compile")), "lost")
        parts += [(_LETTERS[kind], max(life.seconds.get(kind, 0.0), 0.0)) for kind in order]
    total = sum(seconds for _, seconds in parts)
    if total <= 0:
        return []
    strip, position = "", 0.0
    for letter, seconds in parts:
        position += seconds
        strip += letter * (round(_STRIP_WIDTH * position / total) - len(strip))
    shown = [k for k in (*_ORDER, "lost") if _LETTERS[k] in strip]
    legend = [f"{_LETTERS[kind]} {_NAMES.get(kind, kind)}" for kind in shown]
    legend += [f"{_IDLE} idle"] if _IDLE in strip else []
    return [f"|{strip}|", "   ".join(legend)]
