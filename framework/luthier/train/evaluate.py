"""Evaluation of a state on a named set."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from luthier.metrics import Metric, Totals
from luthier.parallel import Share
from luthier.program import Evaluation, Program
from luthier.program.program import Leaves, Values
from luthier.train.checks.token_ids import check_token_ids, vocabulary
from luthier.train.documents import DocumentLimit


class Evaluator:
    """Evaluates states of one program on one set; compiles at first use.

    Args:
      program: What the state belongs to.
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

        Raises:
          BadInput: A row has a token that is outside the model's vocabulary.
        """
        known = vocabulary(self._program.experiment)
        if self._compiled is None:
            weights = self._evaluation.weights.value
            self._compiled = self._program.compile_evaluation(self._batch, weights)
        totals, data = Totals(), self._evaluation.data
        share = Share.of(self._batch, data.batches)
        batches = data.batches(
            global_batch_size=self._evaluation.global_batch_size, **share.arguments
        )
        limit = DocumentLimit.of(self._program.graph)
        for rows in itertools.islice(batches, num_batches):
            if limit is not None:
                limit.check(rows, f"{self._path}.data")
            check_token_ids(rows, known, f"{self._path}.data")
            totals.add(self._compiled(values, leaves, share.global_batch(rows, self._batch)))
            self._beat()
        return totals.values()
