"""When a study is enough."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """When a study is enough; what is reached first ends it.

    Args:
      trials: Trials, the baseline among them; None for no limit but the sampler's own.
      wall_seconds: Time from the start of the driver; trials that run then are ended, and go on
        when the study is resumed.
      device_hours: Devices times hours, over all trials.
      trial_seconds: Time for one trial; a trial that takes longer has failed.
      retries: How often a trial is begun again after its worker died.
    """

    trials: int | None = 32
    wall_seconds: float | None = None
    device_hours: float | None = None
    trial_seconds: float | None = None
    retries: int = 2

    RANGES: ClassVar[dict[str, str]] = {
        "trials": "1 <= x",
        "wall_seconds": "0 < x",
        "device_hours": "0 < x",
        "trial_seconds": "0 < x",
        "retries": "0 <= x",
    }
