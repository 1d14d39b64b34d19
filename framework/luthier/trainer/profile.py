"""Profiling: a trace of some steps, for the viewers of JAX's profiler."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax

from luthier.errors import BadInput, Problem


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """Steps to trace: `first` up to, not including, `last`.

    Example:
      >>> from luthier import trainer
      >>> trainer.ProfiledSteps.parse("steps=10:15")
      ProfiledSteps(first=10, last=15)
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """Read `steps=10:15`.

        Args:
          text: `steps=FIRST:LAST`.

        Returns:
          The steps.

        Raises:
          BadInput: The text reads otherwise, or names no steps.
        """
        found = re.fullmatch(r"(?:steps=)?(\d+):(\d+)", text)
        if not found or int(found[1]) >= int(found[2]):
            problem = Problem(f"cannot read {text!r}", "--profile", remedy="write steps=10:15")
            raise BadInput(problem)
        return cls(int(found[1]), int(found[2]))


class Profiler:
    """Traces the steps that were asked for into a folder.

    Args:
      steps: Steps to trace; None traces nothing.
      directory: Where the trace goes.
    """

    def __init__(self, steps: ProfiledSteps | None, directory: Path):
        self._steps = steps
        self._directory = directory
        self._running = False

    def before(self, step: int) -> None:
        """Call before each step.

        Args:
          step: Number of the step that follows.
        """
        # Exactly the first step, so that a run that is resumed behind it does not trace other steps
        # than were asked for.
        if self._steps is not None and step == self._steps.first and not self._running:
            jax.profiler.start_trace(str(self._directory))
            self._running = True

    def after(self, step: int, result: object) -> bool:
        """Call after each step with its result.

        Args:
          step: Number of the step.
          result: The step's result, which is waited for.

        Returns:
          True if the trace was just written.
        """
        if self._running and self._steps is not None and step + 1 >= self._steps.last:
            # Steps are dispatched ahead of the devices: a trace that ended here would miss what the
            # devices have not done yet.
            jax.block_until_ready(result)
            self.close()
            return True
        return False

    def close(self) -> None:
        """End a trace that is still running."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
