"""The root node of the config (a Fiddle graph): everything that defines one training run."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from luthier.checkpoint import Checkpoints, Restore
from luthier.durations import Duration
from luthier.layers import Template
from luthier.metrics import Selector
from luthier.optim import Ema, Guard, Optimizer, ParameterMask
from luthier.parallel import Parallelism, XlaOptions
from luthier.program.offload import Memory
from luthier.program.precision import Precision
from luthier.records import Records


class Data(Protocol):
    """Batches of examples in a global order: the interface of `experiment.data`.

    Where the devices of a process do not hold an equal, consecutive part of the batch, as on TPU
    slices, the process reads the whole batch and keeps its own rows. Data whose `iterator` and
    `batches` take an optional `rows`, as those of `luthier.data.DataNode` do, is asked for these
    rows alone.
    """

    @property
    def num_rows(self) -> int:
        """Rows in one pass over the data."""

    def batch_spec(self, global_batch_size: int) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of every entry of a global batch; reads no data.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """

    def iterator(
        self,
        *,
        global_batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
    ) -> Any:
        """Return an endless iterator over this process's rows, with `get_state`, `set_state`.

        Args:
          global_batch_size: The rows of all processes together.
          seed: Seed of the order; any integer.
          process_index: Index of the process.
          process_count: Number of processes.

        Returns:
          An iterator over batches: arrays [n, ...] by name, n being the rows of this process.
        """

    def batches(
        self, *, global_batch_size: int, process_index: int = 0, process_count: int = 1
    ) -> Any:
        """Return an iterator over all rows once, the last batch padded with weight zero.

        Args:
          global_batch_size: The rows of all processes together.
          process_index: Index of the process.
          process_count: Number of processes.

        Returns:
          An iterator over batches, as of `iterator`.
        """


class Weights(enum.Enum):
    """The weights that are evaluated."""

    PARAMETERS = "parameters"
    EMA = "ema"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A named data set that is evaluated during training.

    Args:
      data: The data to evaluate on: every example once.
      every: Interval between evaluations; None evaluates at the end only. The end always evaluates.
      global_batch_size: Examples per batch over all devices.
      weights: The trained parameters, or their moving average.
      num_batches: Batches to evaluate during training; None means the whole set. At the end the
        whole set is always evaluated, except by a trial of a study that trains to a rung.
    """

    data: Data
    every: Duration | None = None
    global_batch_size: int
    weights: Weights = Weights.PARAMETERS
    num_batches: int | None = None

    RANGES: ClassVar[dict[str, str]] = {"global_batch_size": "1 <= x", "num_batches": "1 <= x"}
    READ_WHEN: ClassVar[dict[str, str]] = {"num_batches": "every is not None"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """Stops training when it diverges: the loss is not finite, or stays far above its best.

    The run ends as `diverged`, with exit code 1; its last checkpoint with a finite loss is kept.
    Steps that `training.guard` skips are counted by the guard alone.

    Args:
      max_nonfinite_steps: Consecutive steps whose loss or gradient is not finite, after which
        training stops if there is no guard. A run whose last step is one has diverged, too.
      rise: Maximum rise of the smoothed loss above its best, in the unit of the loss; None does not
        check it.
      patience_steps: Consecutive steps for which it may be further above. The loss is smoothed by a
        moving average over about as many steps.
    """

    max_nonfinite_steps: int = 10
    rise: float | None = None
    patience_steps: int = 100

    RANGES: ClassVar[dict[str, str]] = {
        "max_nonfinite_steps": "1 <= x",
        "rise": "0 < x",
        "patience_steps": "1 <= x",
    }
    READ_WHEN: ClassVar[dict[str, str]] = {"patience_steps": "rise is not None"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stops training when a metric has not improved for a while.

    Args:
      metric: The evaluation set and the metric to watch.
      patience: Evaluations without improvement before training stops.
      min_delta: Smallest change that counts as an improvement, in the metric's unit.
    """

    metric: Selector
    patience: int
    min_delta: float = 0.0

    RANGES: ClassVar[dict[str, str]] = {"patience": "1 <= x", "min_delta": "0 <= x"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Length of training, batch size, and safeguards.

    Args:
      steps: Optimizer steps of the whole run. In overrides it may be written in passes over the
        training data, `training.steps=Epochs(3)`; schedules that share it follow.
      global_batch_size: Examples per optimizer step over all devices.
      accumulation: Microbatches that a step is cut into; does not change the gradient.
      stop: Ends training earlier, in the unit of the duration; None means after `steps`.
      guard: Skips steps with non-finite or spiking gradients; None applies every step.
      ema: Moving average of the parameters; None keeps none.
      early_stopping: Ends training when a metric stops improving; None never does.
      divergence: Ends training when it diverges; None never does.
      optimizer_memory: Memory that holds the optimizer's state between steps.
      trainable: The parameters that are trained; None means all. The others are frozen: they have
        no gradient, no optimizer state and no average, and do not change by a bit.
    """

    steps: int
    global_batch_size: int
    accumulation: int = 1
    stop: Duration | None = None
    guard: Guard | None = dataclasses.field(default_factory=Guard)
    ema: Ema | None = None
    early_stopping: EarlyStopping | None = None
    divergence: Divergence | None = dataclasses.field(default_factory=Divergence)
    trainable: ParameterMask | None = None
    optimizer_memory: Memory = Memory.DEVICE

    RANGES: ClassVar[dict[str, str]] = {
        "steps": "1 <= x",
        "global_batch_size": "1 <= x",
        "accumulation": "1 <= x",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("global_batch_size % accumulation == 0",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training run, complete.

    Args:
      name: Folder of its runs, and their group in trackers.
      seed: Random seed for parameters, dropout and data order; each has a stream of its own.
      model: Template of the model, called with `rngs=`.
      task: Loss and metrics of a batch.
      data: Training data.
      evaluations: Named data sets that are evaluated during training and at its end.
      optimizer: An optimizer, as the recipes of `luthier.optim` return it.
      training: Length of training, batch size, and safeguards.
      parallelism: The device mesh, and how arrays are sharded over it.
      precision: Numerical precision of the program.
      compiler: Options that XLA compiles the program with.
      checkpoints: The checkpoint policy; None saves nothing.
      records: Settings of the metrics and logs of the run.
      restore: Source of the first parameters; None initializes them. It is read once, when a new
        run starts: a resumed run reads its own checkpoint.
    """

    # The fields of `hoist.HOISTABLE_FIELDS` are built again inside each trace, where a leaf may be
    # a tracer; their constructors therefore check no values. Ranges and relations are declared as
    # data below, and are checked on the graph, before anything is built.

    name: str
    seed: int = 0
    model: Template
    task: Any
    data: Data
    evaluations: dict[str, Evaluation] = dataclasses.field(default_factory=dict)
    optimizer: Optimizer
    training: Training
    parallelism: Parallelism = dataclasses.field(default_factory=Parallelism)
    precision: Precision = dataclasses.field(default_factory=Precision)
    compiler: XlaOptions = dataclasses.field(default_factory=XlaOptions)
    checkpoints: Checkpoints | None = dataclasses.field(default_factory=Checkpoints)
    records: Records = dataclasses.field(default_factory=Records)
    restore: Restore | None = None

    RANGES: ClassVar[dict[str, str]] = {"seed": "0 <= x < 4294967296"}
    RELATIONS: ClassVar[dict[str, str]] = {
        "optimizer.learning_rate.total_steps <= training.steps": (
            "share them, optimizer.learning_rate.total_steps=ref:training.steps; to end before the "
            "schedule does, set training.stop"
        ),
        "task.vocab_size <= model.vocab_size": "share them: task.vocab_size=ref:model.vocab_size",
        "data.context_length == model.length": "share them: data.context_length=ref:model.length",
        "data.horizon == model.horizon": "share them: data.horizon=ref:model.horizon",
    }
