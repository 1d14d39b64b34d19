"""When a study is enough."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

DEFAULT_TRIALS = 32
"""What `trials="auto"` means for a sampler that has no end of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """When a study is enough; what is reached first ends it.

    Args:
      trials: Trials, the baseline among them; None for no limit but the sampler's own. `auto` is
        every point of a grid, and 32 for other samplers. Infeasible trials and copies of earlier
        ones have numbers of their own, and count.
      wall_seconds: Time from the start of the driver; trials that run then are ended, and go on
        when the study is resumed.
      device_hours: Devices times hours that trials had them, from lease to end: compilation,
        evaluations and what was lost count. Trials that share a device group share its time.
      trial_seconds: Time for one trial since it was leased last; a trial that takes longer has
        failed.
      retries: How often a trial is begun again after its worker died. Faults of the machine, such
        as a full disk, are not counted.
      failures: The study stops when so many trials in a row fail by an error in their code or
        data, or when the baseline fails so or is infeasible; None never stops it.
    """

    trials: int | Literal["auto"] | None = "auto"
    wall_seconds: float | None = None
    device_hours: float | None = None
    trial_seconds: float | None = None
    retries: int = 2
    failures: int | None = 3

    RANGES: ClassVar[dict[str, str]] = {
        "trials": "1 <= x",
        "wall_seconds": "0 < x",
        "device_hours": "0 < x",
        "trial_seconds": "0 < x",
        "retries": "0 <= x",
        "failures": "1 <= x",
    }

    @property
    def num_trials(self) -> int | None:
        """The number of trials; None for no limit. A study over a grid has set `auto` to None."""
        return DEFAULT_TRIALS if self.trials == "auto" else self.trials
