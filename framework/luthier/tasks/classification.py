"""Prediction of one class for each example. Shapes: B rows, K classes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys
from luthier.losses import cross_entropy
from luthier.metrics import (
    ACCURACY,
    LOSS,
    NATS_PER_EXAMPLE,
    TOP_5_ACCURACY,
    Metric,
    Ratio,
    top_k_correct,
)
from luthier.tasks.task import Additive, Batch, LossSums
from luthier.tasks.token_ratios import weighted_sum


@runtime_checkable
class Observer(Protocol):
    """A model that keeps statistics of the batches that it is trained on."""

    def observe(
        self, inputs: jax.Array, weights_B: jax.Array, *, dropout: DropoutKeys | None = None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the logits by statistics of these rows, and the updated variables.

        Args:
          inputs: [B, ...].
          weights_B: Weights of the rows [B]; rows of weight 0 count nothing.
          dropout: Keys, one for each row [B, 1]; None means no dropout.

        Returns:
          Logits [B, K], and arrays by the name of the variable.
        """


@dataclasses.dataclass(frozen=True)
class Classification:
    """Predicts the class of every example.

    A batch holds float32 `inputs` [B, ...] (images [B, H, W, C], series [B, L, C]), int32 [B]
    `labels` and `examples` (the example's number in the data, 0 for padding), and float32 [B]
    `weights`. The model is called as `model(inputs, dropout=...)`, or as `model(inputs)` if it
    takes no `dropout`, and returns logits [B, K]; in training, a model with batch statistics is
    called by `observe` (see `Observer`).

    Smoothing is in the loss only: reported nats are -log p(label).

    Args:
      label_smoothing: Probability spread over the classes; None leaves the term out.
      input_axes: Logical axis names of the inputs' dimensions after the rows.

    Source: label smoothing: Szegedy et al. 2015, arXiv:1512.00567, section 7.
    """

    RANGES: ClassVar[dict[str, str]] = {"label_smoothing": "0 <= x < 1"}
    reduction: ClassVar[Additive] = Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (NATS_PER_EXAMPLE, ACCURACY)
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, NATS_PER_EXAMPLE, ACCURACY, TOP_5_ACCURACY)

    label_smoothing: float | None = None
    input_axes: Sequence[str | None] = (None, None, None)

    @property
    def batch_axes(self) -> dict[str, tuple[str | None, ...]]:
        """The logical axes of every entry of a batch."""
        rows = dict.fromkeys(("labels", "weights", "examples"), ("batch",))
        return {"inputs": ("batch", *self.input_axes), **rows}

    def loss(self, model: Any, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss over the summed weights, and the model's updated statistics.

        Args:
          model: A classifier, under the trace.
          batch: As above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        # Weights go along, so that padding counts nothing in batch statistics either. The updates
        # leave as outputs: a module that is changed inside of a trace is gone with the trace.
        keys = row_keys(key, batch)
        if isinstance(model, Observer):
            logits_BK, updates = model.observe(batch["inputs"], batch["weights"], dropout=keys)
        else:
            logits_BK, updates = _logits(model, batch["inputs"], keys), {}
        ratios = self.ratios(logits_BK, batch)
        reported = {metric: ratios[metric] for metric in self.loss_metrics}
        return LossSums(ratios[LOSS], reported, updates)

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric of a batch, without dropout.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        return self.ratios(_logits(model, batch["inputs"], None), batch)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of examples with non-zero weight.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return (batch["weights"] != 0).sum()

    def ratios(self, logits_BK: jax.Array, batch: Batch) -> dict[Metric, Ratio]:
        """Return the sums of the loss and of every metric over the rows of a batch.

        A subclass may change `LOSS` and add metrics, which it lists in `metrics` and, to report
        them in training as well, in `loss_metrics`.

        Args:
          logits_BK: Logits, [B, K].
          batch: As above.

        Returns:
          By metric, the weighted sum over the rows and the sum of their weights.
        """
        # Padding has weight 0 and label 0; it is computed like all rows, and counts in no sum.
        weights_B, labels_B = batch["weights"], batch["labels"]
        losses = cross_entropy(logits_BK, labels_B, label_smoothing=self.label_smoothing)
        examples = jnp.sum(weights_B)
        sums = {
            LOSS: losses.loss_BL,
            NATS_PER_EXAMPLE: losses.nats_BL,
            ACCURACY: losses.correct_BL,
            TOP_5_ACCURACY: top_k_correct(logits_BK, labels_B, 5),
        }
        return {m: Ratio(weighted_sum(x, weights_B), examples) for m, x in sums.items()}


def _logits(model: Any, inputs: jax.Array, keys: DropoutKeys | None) -> jax.Array:
    """Return the logits [B, K] of a model, which takes keys of dropout only where it has any."""
    # By the signature: a plain module, written for no framework, is `model(inputs)`.
    parameters = inspect.signature(model).parameters.values()
    takes_dropout = any(p.name == "dropout" or p.kind is p.VAR_KEYWORD for p in parameters)
    return model(inputs, dropout=keys) if takes_dropout else model(inputs)


def row_keys(key: jax.Array | None, batch: Batch) -> DropoutKeys | None:
    """Return the dropout keys of a batch whose rows are examples: one for each, [B, 1].

    A task of your own whose model has dropout calls it in `loss`, and passes the keys to the model.
    The masks follow an example to any microbatch, device and position in the batch.

    Args:
      key: The step's key, which `loss` receives; None for no dropout.
      batch: With int32 [B] `examples`, the numbers of the examples.

    Returns:
      The keys, or None if `key` is None.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import tasks
      >>> keys = tasks.row_keys(jax.random.key(0), {"examples": jnp.array([7, 3])})
      >>> keys.token_keys_BL.shape
      (2, 1)
    """
    # An example is a document of one token at position 0: its mask follows it to any batch.
    if key is None:
        return None
    examples_B1 = batch["examples"][:, None]
    return DropoutKeys.of_tokens(key, examples_B1, jnp.zeros_like(examples_B1))
