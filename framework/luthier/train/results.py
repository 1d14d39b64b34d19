"""What a call of training comes to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier.checkpoint import Provenance
from luthier.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUEUE
from luthier.metrics import Metric
from luthier.train.interrupt import INTERRUPTED, PREEMPTED, PRUNED

FINISHED = "finished"
_LENGTH = re.compile(r" (--run[ =]\S+|--extend|--new|training\.steps=\S+)(?!\S)")


@dataclasses.dataclass(frozen=True)
class Result:
    """Where a run stands after a call.

    Args:
      directory: The run's directory.
      status: `finished`, `interrupted` or `preempted`; or a watcher's reason, such as `pruned`.
      step: Optimizer steps done.
      metrics: Last metrics of every evaluation set; empty when the run was over before the call.
      sample: Text that the model generated at the end, or empty.
      message: What to do next, for people.
      was_over: Whether the run was finished before the call, which then did nothing.
      restored: Where each parameter came from, where this call started a run by `restore`.
    """

    directory: Path
    status: str
    step: int
    metrics: Mapping[str, Mapping[Metric, float]] = dataclasses.field(default_factory=dict)
    sample: str = ""
    message: str = ""
    was_over: bool = False
    restored: Sequence[Provenance] = ()

    @property
    def exit_code(self) -> int:
        """What the process should end with."""
        ends = {INTERRUPTED: EXIT_INTERRUPTED, PREEMPTED: EXIT_REQUEUE}
        return {FINISHED: EXIT_DONE, PRUNED: EXIT_DONE, **ends}[self.status]


def next_steps(
    directory: Any, status: str, command: str, steps: int, can_sample: bool = False
) -> str:
    """Return what the user may do next with a run.

    Args:
      directory: The run's `RunDirectory`.
      status: How it ended.
      command: The command that started it; empty in a notebook.
      steps: Optimizer steps of the whole run.
      can_sample: Whether the model writes text.
    """
    again = command or "luthier.train(graph)"
    if status != FINISHED:
        return f"to resume: {again}"
    if not command:
        return f"the run is in {directory.path}"
    longer = f"{_LENGTH.sub('', again)} training.steps={2 * steps}"
    extend = f"to extend: {longer} --run {directory.id} --extend"
    if not can_sample:
        return extend
    return f'{extend}\nto sample: luthier generate {directory.id} --prompt "To be"'
