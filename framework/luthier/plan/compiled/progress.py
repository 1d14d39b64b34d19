"""Progress of a plan: its phases, and how long compiling took for programs of this size before."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier.plan.compiled import cache
from luthier.plan.targets import Slice

Tell = Callable[[Mapping[str, Any]], None]

_FILE = "seconds.json"
# Seconds of one processor core for each operation of a lowered program; measured on programs of
# one to sixteen billion parameters.
_FIRST = {"tpu": 0.03, "gpu": 0.006, "cpu": 0.002}
_KEPT = 0.5


def silent(message: Mapping[str, Any]) -> None:
    """Take a message, and tell nobody."""


@contextlib.contextmanager
def timed(
    timings: dict[str, float], phase: str, tell: Tell, left: float | None = None
) -> Iterator[None]:
    """Tell that a phase begins, and keep how long it takes.

    Args:
      timings: Where the seconds go.
      phase: What is done.
      tell: Takes the message.
      left: Seconds that it may take; None where nobody knows.
    """
    tell({"phase": phase, "seconds_left": left})
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = timings.get(phase, 0.0) + time.perf_counter() - start


class Estimates:
    """How long compiling takes for a kind of slice, learned from what was compiled here.

    Args:
      slice: What is compiled for.
    """

    def __init__(self, slice: Slice):
        self._platform = slice.chip.platform if slice.chip else "cpu"

    def seconds(self, program: str) -> float:
        """Return the seconds that a program may take.

        Args:
          program: The program as the compiler is given it.
        """
        return self._read().get(self._platform, _FIRST[self._platform]) * _operations(program)

    def keep(self, program: str, seconds: float) -> None:
        """Learn from one more program; a cache that cannot be written is no error.

        Args:
          program: The program.
          seconds: How long it took.
        """
        known = self._read()
        old = known.get(self._platform)
        new = seconds / _operations(program)
        known[self._platform] = new if old is None else _KEPT * old + (1 - _KEPT) * new
        place = cache.folder() / _FILE
        temporary = place.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(known), encoding="utf-8")
            temporary.replace(place)

    def _read(self) -> dict[str, float]:
        try:
            found = json.loads((cache.folder() / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _operations(program: str) -> int:
    return max(program.count(" = "), 1)
