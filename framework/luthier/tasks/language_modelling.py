"""Next-token prediction. Shapes: B batch rows, L length, D dim, V vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from luthier.layers.dropout import DropoutKeys
from luthier.losses import Chunking, TokenLosses, Whole, weighted_cross_entropy
from luthier.metrics import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
    Ratio,
)
from luthier.tasks.task import Additive, Batch, LossSums
from luthier.tasks.token_ratios import byte_ratios, token_ratios

_ENTRIES = (
    "inputs",
    "targets",
    "weights",
    "segments",
    "positions",
    "documents",
    "target_bytes",
)


@dataclasses.dataclass(frozen=True)
class LanguageModelling:
    """Predicts every token of a document from those before it.

    A batch holds int32 [B, L] `inputs`, `targets`, `segments` (0 = padding), `positions`,
    `documents`, `target_bytes` (UTF-8 bytes that the target stands for), and float32 `weights`
    (0 = not counted). The model has `hidden(inputs_BL, positions_BL=, segments_BL=, dropout=)` and
    `logits(hidden_BLD)`.

    Smoothing and z-loss are in the loss only: reported nats are -log p(target). Nats per byte
    divide by the bytes of the counted targets and include the nats of the end-of-document token,
    so that tokenizers can be compared.

    Args:
      z_loss: Weight of the squared log normalizer; None leaves the term out.
      label_smoothing: Probability spread over the vocabulary; None leaves the term out.
      chunking: Number of positions whose logits are in memory at a time.
    """

    RANGES: ClassVar[dict[str, str]] = {"z_loss": "0 <= x", "label_smoothing": "0 <= x < 1"}
    reduction: ClassVar[Additive] = Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (NATS_PER_TOKEN, NATS_PER_BYTE)
    metrics: ClassVar[tuple[Metric, ...]] = (
        LOSS,
        NATS_PER_TOKEN,
        NATS_PER_BYTE,
        BITS_PER_BYTE,
        PERPLEXITY,
        ACCURACY,
    )
    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(_ENTRIES, ("batch", "length"))

    z_loss: float | None = 0.0
    label_smoothing: float | None = None
    chunking: Chunking = Whole()

    def loss(self, model: Any, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss over the summed weights, with nats per token and per byte.

        Args:
          model: A language model, under the trace.
          batch: As above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        ratios = self._ratios(*self._losses(model, batch, key), batch)
        # Metrics that a subclass adds to `loss_metrics` are its own to compute.
        reported = {metric: ratios[metric] for metric in self.loss_metrics if metric in ratios}
        return LossSums(ratios[LOSS], reported)

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric of a batch, without dropout; a subclass may add its own.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        return self._ratios(*self._losses(model, batch, None), batch)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of targets with non-zero weight.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return (batch["weights"] != 0).sum()

    def _losses(
        self, model: Any, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, TokenLosses]:
        """Return the weighted sum of the losses, and those of each token."""
        # `hidden` and `logits` are called apart, so that the loss can make logits by chunks.
        hidden_BLD = model.hidden(
            batch["inputs"],
            positions_BL=batch["positions"],
            segments_BL=batch["segments"],
            dropout=token_keys(key, batch),
        )
        return self._unembedded(hidden_BLD, model, batch)

    def _unembedded(
        self, hidden_BLD: jax.Array, model: Any, batch: Batch
    ) -> tuple[jax.Array, TokenLosses]:
        return weighted_cross_entropy(
            hidden_BLD,
            model.logits,
            batch["targets"],
            batch["weights"],
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
            chunking=self.chunking,
        )

    def _ratios(self, total: jax.Array, losses: TokenLosses, batch: Batch) -> dict[Metric, Ratio]:
        weights_BL = batch["weights"]
        ratios = token_ratios(losses, weights_BL, total)
        nats = ratios[NATS_PER_TOKEN].numerator
        ratios |= byte_ratios(nats, batch["target_bytes"], weights_BL)
        return {metric: ratios[metric] for metric in self.metrics if metric in ratios}


def token_keys(key: jax.Array | None, batch: Batch) -> DropoutKeys | None:
    """Return the dropout keys of a batch's tokens, which belong to documents and positions.

    Args:
      key: The step's key; None for no dropout.
      batch: Int32 [B, L] `documents` and `positions`.
    """
    # By document and position, not by place in the batch: packing, padding and microbatches then
    # leave the mask of a token as it is.
    if key is None:
        return None
    return DropoutKeys.of_tokens(key, batch["documents"], batch["positions"])
