"""The list of injections, and what one is."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator

from staging import Outcome, Stage, Truths, compare

MODULES = (
    *("of_processes", "of_checkpoints", "of_data", "of_steps", "of_disks", "of_services"),
    "of_stores",
)


class Unstageable(Exception):
    """This machine does not let the fault be staged."""


Play = Callable[[Stage, Truths], Outcome]


@dataclasses.dataclass(frozen=True)
class Injection:
    """A fault, and the proof that it does no harm.

    Args:
      fault: What goes wrong, in a few words.
      processes: In runs of how many processes it is staged.
      play: Stages it, and asserts what must come of it.
    """

    fault: str
    processes: tuple[int, ...]
    play: Play

    @property
    def name(self) -> str:
        """The fault as a word."""
        return self.play.__name__


_injections: list[Injection] = []


def injection(fault: str, *processes: int) -> Callable[[Play], Play]:
    """Add a function to the list of injections."""

    def add(play: Play) -> Play:
        _injections.append(Injection(fault, processes or (1,), play))
        return play

    return add


def injections() -> Iterator[Injection]:
    """Yield every injection."""
    for module in MODULES:
        importlib.import_module(module)
    yield from _injections


def resumed(
    stage: Stage, truths: Truths, detected: str, seconds: float, *overrides: str
) -> Outcome:
    """Start the run again, and compare what it comes to with the undisturbed one."""
    stage.hurry()
    reached = stage.last_step()
    stage.train(*overrides)
    lost = reached - stage.began()
    agreed = compare(stage, truths.of(stage.processes, *overrides))
    return Outcome(detected, seconds, lost, agreed)
