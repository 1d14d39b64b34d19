"""The events of a run, as typed facts: everything that a run reports to anybody is one of these.

Events are emitted in the order of their steps. Step numbers count finished optimizer steps:
`Step(1)` is the first, and an evaluation of untrained parameters is at step 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

LOSS = "loss"
LEARNING_RATE = "learning_rate"
TOKENS_PER_SECOND = "tokens_per_second"
STEPS_PER_SECOND = "steps_per_second"
MFU = "mfu"
TOKENS = "tokens"
EPOCHS = "epochs"
SECONDS = "seconds"
STEP_SECONDS = "step_seconds"
DATA_WAIT_SECONDS = "data_wait_seconds"
MEMORY_BYTES = "memory_bytes"

# Names of step values that are about speed, not about learning.
# They differ between two runs that are equal bit by bit.
PERFORMANCE = frozenset(
    {
        TOKENS_PER_SECOND,
        STEPS_PER_SECOND,
        MFU,
        SECONDS,
        STEP_SECONDS,
        DATA_WAIT_SECONDS,
        MEMORY_BYTES,
    }
)

FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"
PREEMPTED = "preempted"
DIVERGED = "diverged"
RUNNING = "running"


@dataclasses.dataclass(frozen=True)
class Header:
    """A process starts or resumes training.

    Args:
      experiment: The experiment's name.
      run_directory: Where the run is recorded, or empty.
      step: Steps already done: 0 for a new run, the restored step after a restart.
      total_steps: Steps of the whole run, when known.
      parameters: Number of parameters.
      mesh: Size of every mesh axis.
      devices: A description of the devices, such as `8 x cpu`.
      memory_bytes_per_device: Bytes that the state takes on one device.
      flops_per_step: Model FLOPs of one optimizer step.
      data: The description of the training data; `unigram_entropy` and `bigram_entropy` are in
        nats per byte.
      evaluations: The same for every evaluation set, by its name.
      notes: Further lines to show, by label.
    """

    experiment: str
    run_directory: str = ""
    step: int = 0
    total_steps: int | None = None
    parameters: int | None = None
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    devices: str = ""
    memory_bytes_per_device: int | None = None
    flops_per_step: float | None = None
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Step:
    """Optimizer step number `step` is done; `values` are its scalars by name, on the host."""

    step: int
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation set was evaluated.

    Args:
      step: Steps done when it was evaluated.
      name: The evaluation set's name.
      values: Its metrics by name.
      better: For a metric that has a best value, `lower` or `higher`.
    """

    step: int
    name: str
    values: Mapping[str, float]
    better: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint of `step` is committed."""

    step: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """The model generated a text.

    Args:
      step: Steps done.
      text: The generated text.
      prompt: The text that it continues; empty without one.
      name: Series that the sample belongs to; empty for the only one.
    """

    step: int
    text: str
    prompt: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Image:
    """An image was recorded.

    Args:
      step: Steps done.
      name: Name of the image; parts of it may be divided by slashes.
      pixels: uint8 [height, width, channels] with 1, 3 or 4 channels; None once it is in a file.
      path: Its PNG file, below the run's directory; empty until there is one.
    """

    step: int
    name: str
    # Left out of comparisons, since arrays have no truth value.
    pixels: Any = dataclasses.field(default=None, compare=False, repr=False)
    path: str = ""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of numbers.

    Args:
      step: Steps done.
      name: Name of the numbers.
      low: Lower edge of the first bin.
      high: Upper edge of the last bin.
      counts: Numbers in each bin; bins are of one width.
    """

    step: int
    name: str
    low: float
    high: float
    counts: Sequence[int]

    @property
    def edges(self) -> list[float]:
        """The edges of the bins, one more than there are counts."""
        # Each edge by itself and not by adding up widths; the last one is `high` to the bit.
        width, num_bins = self.high - self.low, len(self.counts)
        return [self.low + width * i / num_bins for i in range(num_bins)] + [self.high]


@dataclasses.dataclass(frozen=True)
class Notice:
    """The user should know `text`; one line."""

    text: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """The process stops training.

    Args:
      status: `finished`, `interrupted`, `preempted`, `diverged` or `failed`.
      step: Steps done.
      summary: The run's final figures by name.
      message: Reason of the end, or next commands for the user; lines.
      crash: The file with the traceback of a failure, in the run's directory; empty for none.
    """

    status: str
    step: int
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    message: str = ""
    crash: str = ""


Event = Header | Step | Evaluation | Saved | Sample | Image | Histogram | Notice | Ended

# The names are in files and never change. A new field of an event needs a default, because lines of
# earlier versions lack it (`metrics_file.decode_event`).
KINDS: dict[str, type] = {
    "header": Header,
    "step": Step,
    "evaluation": Evaluation,
    "saved": Saved,
    "sample": Sample,
    "image": Image,
    "histogram": Histogram,
    "notice": Notice,
    "ended": Ended,
}
