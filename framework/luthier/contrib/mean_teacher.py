"""Classification by agreement with a moving-average teacher. Shapes: B rows, K classes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from luthier.layers.dropout import fold
from luthier.losses import cross_entropy
from luthier.metrics import CONSISTENCY, Metric, Ratio
from luthier.models import WithCopy
from luthier.tasks.classification import Classification, row_keys
from luthier.tasks.task import Batch, LossSums
from luthier.tasks.token_ratios import weighted_sum

__all__ = ["MeanTeacher"]


@dataclasses.dataclass(frozen=True)
class MeanTeacher(Classification):
    r"""Classifies, and agrees with the moving average of itself under other dropout.

    $$ -\log p_\theta(y | x) + \frac{c}{K} \| p_\theta(x) - p_{\theta'}(x) \|^2 $$

    The teacher $\theta'$ is the copy in a `models.WithCopy`; after every accepted step it moves
    towards the parameters from which the step was taken. A batch is that of `Classification`; rows
    of label -1 have no label, and only agree. Evaluation is of the teacher.

    Args:
      label_smoothing: Probability spread over the classes; None leaves the term out.
      input_axes: Logical axis names of the inputs' dimensions after the rows.
      decay: Decay of the teacher.
      consistency: Weight of the agreement, c.

    Source: Tarvainen and Valpola 2017, arXiv:1703.01780, equations 1 and 2.
    Deviation: The teacher follows one step behind, since a task sees the parameters before a step.
    """

    RANGES: ClassVar[dict[str, str]] = {
        **Classification.RANGES,
        "decay": "0 <= x < 1",
        "consistency": "0 <= x",
    }
    loss_metrics: ClassVar[tuple[Metric, ...]] = (CONSISTENCY,)

    decay: float = 0.99
    consistency: float = 1.0

    def loss(self, model: WithCopy, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss over the summed weights, and the teacher after the step.

        Args:
          model: A `models.WithCopy` of a classifier, under the trace.
          batch: A batch, as described above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        # The teacher is part of the model (`models.WithCopy`), so that it is saved, sharded and
        # counted with it; no gradient flows into it, and the step writes what `followed` returns.
        # Two folds of the row's key: under the same dropout, agreement would teach nothing.
        keys, weights_B, labels_B = row_keys(key, batch), batch["weights"], batch["labels"]
        logits_BK = model.trained(batch["inputs"], dropout=fold(keys, 0))
        taught_BK = jax.lax.stop_gradient(model.copy(batch["inputs"], dropout=fold(keys, 1)))
        difference_BK = jax.nn.softmax(logits_BK) - jax.nn.softmax(taught_BK)
        apart_B = jnp.square(difference_BK).mean(-1)
        smoothing = self.label_smoothing
        # A label of -1 must not index the logits: class 0 stands in, and its loss is selected away.
        losses = cross_entropy(logits_BK, jnp.maximum(labels_B, 0), label_smoothing=smoothing)
        loss_B = jnp.where(labels_B >= 0, losses.loss_BL, 0) + self.consistency * apart_B
        # Divided by all examples, labelled or not: the weight of an example does not depend on
        # which others are in its batch, and sums of microbatches merge.
        examples = jnp.sum(weights_B)
        return LossSums(
            Ratio(weighted_sum(loss_B, weights_B), examples),
            {CONSISTENCY: Ratio(weighted_sum(apart_B, weights_B), examples)},
            model.followed(self.decay),
        )

    def evaluate(self, model: WithCopy, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric of a labelled batch by the teacher.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        return super().evaluate(model.copy, batch)
