"""Evaluation of a state on a named set."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from luthier.metrics import Metric, Totals
from luthier.parallel import Share
from luthier.program import EarlyStopping, Evaluation, Program
from luthier.program.program import Leaves, Values
from luthier.trainer.checks import DocumentLimit, check_spec, check_token_ids, vocabulary

KEPT_BYTES = 64 * 2**20
"""Bytes up to which the batches of a set stay on a device, for later evaluations and trials."""

# Small batches take less than a millisecond each. A thread that saves at the same time keeps the
# host from its turn for longer than that, so enough of them are dispatched for the device to go on.
_NUM_PENDING = 16


@dataclasses.dataclass
class _KeptBatches:
    """The batches of an evaluation set on the devices, from the first one on.

    They are read, checked and copied once for all evaluations of a program: in a sweep of short
    trials, whose evaluation takes a second, that was a quarter of its time.

    Args:
      data: What they were read from.
      batches: Global batches by name of the entry.
      is_whole: Whether these are all batches of the set.
    """

    data: Any = None
    batches: list[dict[str, jax.Array]] = dataclasses.field(default_factory=list)
    is_whole: bool = False

    def reach(self, data: Any, num_batches: int | None) -> bool:
        """Return whether the first `num_batches` of a set are here; None means all."""
        if data is not self.data:
            return False
        return self.is_whole or (num_batches is not None and num_batches <= len(self.batches))


class Evaluator:
    """Evaluates states of one program on one set; compiles at first use.

    Args:
      program: The program of the state.
      evaluation: The set, and which weights to look at.
      path: Where it stands in the graph, for messages.
      beat: Is called at every batch.
    """

    def __init__(
        self,
        program: Program,
        evaluation: Evaluation,
        path: str,
        beat: Callable[[], None] = lambda: None,
    ):
        self._program = program
        self._evaluation = evaluation
        self._path = path
        self._beat = beat
        self._batch = program.abstract_batch(
            evaluation.data, evaluation.global_batch_size, f"{path}.global_batch_size"
        )
        self._compiled: Callable[..., Any] | None = None

    def trace(self) -> None:
        """Trace the evaluation of a batch, as its first use does; nothing is compiled."""
        self._program.traced_evaluation(self._batch, self._evaluation.weights.value)

    def __call__(
        self, values: Values, leaves: Leaves, num_batches: int | None = None
    ) -> dict[Metric, float]:
        """Return every metric of the task over the set.

        Args:
          values: The hoisted scalars.
          leaves: The state; it is not donated.
          num_batches: Batches to look at; None means all rows once.

        Returns:
          Values by metric, floats.

        Raises:
          BadInput: A row has a token that is outside the model's vocabulary.
        """
        # Compiled for the batch of this set and not for that of training: its shape is another one,
        # and nothing is donated.
        if self._compiled is None:
            weights = self._evaluation.weights.value
            self._compiled = self._program.compile_evaluation(self._batch, weights)
        num_pending = _NUM_PENDING if self._batch_bytes * _NUM_PENDING <= KEPT_BYTES else 2
        # The limit of the watchdog is for one batch, however long the whole set takes.
        totals = Totals(num_pending, on_fetch=self._beat)
        # The host runs ahead as in training: `Totals` keeps the last batches on the devices and
        # merges older ones in double precision. Rows that pad the last batch have weight 0, so that
        # every row counts once.
        for batch in self._batches(num_batches):
            totals.add(self._compiled(values, leaves, batch))
            self._beat()
        return totals.values()

    def _batches(self, num_batches: int | None) -> Iterator[dict[str, jax.Array]]:
        """Yield batches of the set as global arrays; small sets are read once for a program."""
        data = self._evaluation.data
        key = ("evaluation batches", self._path, tuple(self._batch.items()))
        kept = self._program.once(key, _KeptBatches)
        if kept.reach(data, num_batches):
            yield from itertools.islice(kept.batches, num_batches)
            return
        known = vocabulary(self._program.experiment)
        share = Share.of(self._batch, data.batches)
        batches = data.batches(
            global_batch_size=self._evaluation.global_batch_size, **share.arguments
        )
        limit = DocumentLimit.of(self._program)
        read: list[dict[str, jax.Array]] = []
        num_bytes = 0
        for batch in itertools.islice(batches, num_batches):
            check_spec(batch, self._batch, len(share.rows), data, f"{self._path}.data")
            if limit is not None:
                limit.check(batch, f"{self._path}.data")
            check_token_ids(batch, known, f"{self._path}.data")
            placed = share.global_batch(batch, self._batch)
            num_bytes += self._batch_bytes
            if num_bytes <= KEPT_BYTES:
                read.append(placed)
            yield placed
        # Replaced as a whole and only here: a read that an error cut short keeps nothing.
        if num_bytes <= KEPT_BYTES:
            kept.data, kept.batches, kept.is_whole = data, read, num_batches is None

    @property
    def _batch_bytes(self) -> int:
        """Bytes of one batch on one device."""
        shapes = ((e.sharding.shard_shape(e.shape), e.dtype) for e in self._batch.values())
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


def trace_evaluations(program: Program) -> None:
    """Trace every evaluation of a program, as its first use does; nothing is compiled.

    What a task's `evaluate` does wrong shows here, before a step is trained.

    Args:
      program: What they are evaluations of.

    Raises:
      BadInput: The model, the task and the data do not fit together.
    """
    for name, evaluation in program.experiment.evaluations.items():
        Evaluator(program, evaluation, f"evaluations.{name}").trace()


# Whether a metric still improves.


@dataclasses.dataclass
class Patience:
    """Counts evaluations without improvement; its fields are saved with the checkpoint.

    Args:
      best: Best value so far; NaN before the first.
      best_step: Step of the best value.
      waited: Evaluations since then.
    """

    best: float = math.nan
    best_step: int = 0
    waited: int = 0

    def observe(self, rule: EarlyStopping, value: float, step: int) -> bool:
        """Take in one evaluation.

        Args:
          rule: The definition of an improvement, and the patience.
          value: The metric.
          step: When it was measured.

        Returns:
          Whether the patience is over.
        """
        # The value is made worse by `min_delta` before it is compared: an improvement counts only
        # beyond it.
        margin = rule.min_delta if rule.metric.direction == "lower" else -rule.min_delta
        # The first value is an improvement over nothing. A NaN is never better than another value,
        # so that it counts as an evaluation without improvement.
        if math.isnan(self.best) or rule.metric.better(value + margin, self.best):
            self.best, self.best_step, self.waited = value, step, 0
        else:
            self.waited += 1
        return self.waited >= rule.patience

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None.

        Returns:
          JSON values by name.
        """
        best = None if math.isnan(self.best) else self.best
        return {"best": best, "best_step": self.best_step, "waited": self.waited}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Patience:
        """Return the object whose `to_dict` gave these fields.

        Args:
          fields: What `to_dict` returned.

        Returns:
          The object.
        """
        best = math.nan if fields["best"] is None else fields["best"]
        return cls(best, fields["best_step"], fields["waited"])
