"""When a run counts as hanging."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """When a run counts as hanging.

    The time that a process is stopped as a whole, as by Ctrl-Z or a sleeping laptop, does not
    count.

    Args:
      seconds: How long a step, a batch of an evaluation or a save may take.
      start_seconds: How long each phase before the first step may take: opening the data, restoring
        or initializing the state, compiling the step.
    """

    RANGES: ClassVar[dict[str, str]] = {"seconds": "0 < x", "start_seconds": "0 < x"}

    seconds: float = 1800.0
    start_seconds: float = 7200.0
