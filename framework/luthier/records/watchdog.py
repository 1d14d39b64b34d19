"""When a run counts as hanging."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """When a run counts as hanging.

    The time that a process is stopped as a whole, as by Ctrl-Z or a sleeping laptop, does not
    count, and neither does compiling the step.

    Args:
      seconds: How long a step, a batch of an evaluation or a save may take.
    """

    RANGES: ClassVar[dict[str, str]] = {"seconds": "0 < x"}

    seconds: float = 1800.0
