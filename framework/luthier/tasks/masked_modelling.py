"""Prediction of tokens that were hidden. Shapes: B batch rows, L length, V vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys
from luthier.losses import Chunking, Whole, weighted_cross_entropy
from luthier.metrics import ACCURACY, LOSS, NATS_PER_TOKEN, PERPLEXITY, Metric, Ratio
from luthier.tasks.language_modelling import token_keys
from luthier.tasks.task import Additive, Batch, LossSums
from luthier.tasks.token_ratios import token_ratios

_ENTRIES = ("inputs", "weights", "segments", "positions", "documents")
_MASKING, _DROPOUT = 0, 1  # Random streams below the step's key.


@dataclasses.dataclass(frozen=True)
class MaskedModelling:
    """Predicts a share of the tokens of a text from all others.

    A batch holds what `LanguageModelling` takes; the targets are the inputs themselves, at places
    whose weight is not 0. Each such token is chosen with probability `rate`; of the chosen ones
    80 % are replaced by `mask_token`, 10 % by a random token, and 10 % stay. The model is an
    encoder with `hidden(inputs_BL, positions_BL=, segments_BL=, dropout=)` and
    `logits(hidden_BLD)`.

    The choice depends on the step's key, the document and the position, and on nothing else, so
    that neither packing nor accumulation changes it. Evaluation always hides the same tokens.

    Args:
      mask_token: The id that stands for a hidden token.
      vocab_size: V: random replacements are drawn from the ids below it.
      rate: Share of tokens that are predicted.
      exempt: Ids that are never chosen: separators and the like.
      z_loss: Weight of the squared log normalizer; None leaves the term out.
      label_smoothing: Probability spread over the vocabulary; None leaves the term out.
      chunking: Number of positions whose logits are in memory at a time.
      evaluation_seed: Decides which tokens evaluation hides.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1, task 1.
    """

    RANGES: ClassVar[dict[str, str]] = {
        "mask_token": "0 <= x",
        "vocab_size": "1 <= x",
        "rate": "0 < x <= 1",
        "z_loss": "0 <= x",
        "label_smoothing": "0 <= x < 1",
        "evaluation_seed": "0 <= x < 4294967296",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("mask_token < vocab_size",)
    reduction: ClassVar[Additive] = Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (NATS_PER_TOKEN, ACCURACY)
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, NATS_PER_TOKEN, PERPLEXITY, ACCURACY)
    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(_ENTRIES, ("batch", "length"))

    mask_token: int
    vocab_size: int
    rate: float = 0.15
    exempt: Sequence[int] = ()
    z_loss: float | None = None
    label_smoothing: float | None = None
    chunking: Chunking = Whole()
    evaluation_seed: int = 0

    def loss(self, model: Any, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss of the chosen tokens over their summed weights.

        Args:
          model: An encoder, under the trace.
          batch: As above.
          key: Key of this step's masking and dropout; None for the masking of evaluation.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        ratios = self._ratios(model, batch, key)
        # Metrics that a subclass adds to `loss_metrics` are its own to compute.
        reported = {metric: ratios[metric] for metric in self.loss_metrics if metric in ratios}
        return LossSums(ratios[LOSS], reported)

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric over the tokens that evaluation hides, without dropout.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        ratios = self._ratios(model, batch, None)
        return {metric: ratios[metric] for metric in self.metrics}

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of tokens that may be chosen, before the draw.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return (batch["weights"] != 0).sum()

    def hide(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Choose tokens and replace them.

        Args:
          batch: As above.
          key: Decides, with document and position of each token.

        Returns:
          The model's input, int32 [B, L], and which tokens were chosen, bool [B, L].
        """
        # Three uniform draws for each token: whether it is chosen, what becomes of it (below 0.8
        # the mask token, below 0.9 a random token, else itself), and which random token. All three
        # are drawn for every token, so that a change of `rate` changes no other draw, and `rate`
        # may be traced.
        inputs_BL = batch["inputs"]
        keys = DropoutKeys.of_tokens(key, batch["documents"], batch["positions"])
        choice_BL, fate_BL, draw_BL = jnp.moveaxis(keys.uniform((3,)), -1, 0)
        chosen_BL = choice_BL < self.rate
        for token in self.exempt:
            chosen_BL &= inputs_BL != token
        random_BL = jnp.floor(draw_BL * self.vocab_size).astype(inputs_BL.dtype)
        random_BL = jnp.minimum(random_BL, self.vocab_size - 1)  # The product may round up.
        replaced_BL = jnp.where(fate_BL < 0.8, self.mask_token, random_BL)
        hidden_BL = chosen_BL & (fate_BL < 0.9)
        return jnp.where(hidden_BL, replaced_BL, inputs_BL), chosen_BL

    def _ratios(self, model: Any, batch: Batch, key: jax.Array | None) -> dict[Metric, Ratio]:
        # A fixed key in evaluation, so that metrics of different steps and runs are of the same
        # tokens. The weights of all others are zero: the loss is over chosen tokens only.
        masking = jax.random.key(self.evaluation_seed) if key is None else key
        inputs_BL, chosen_BL = self.hide(batch, jax.random.fold_in(masking, _MASKING))
        dropout = None if key is None else token_keys(jax.random.fold_in(key, _DROPOUT), batch)
        hidden_BLD = model.hidden(
            inputs_BL,
            positions_BL=batch["positions"],
            segments_BL=batch["segments"],
            dropout=dropout,
        )
        weights_BL = jnp.where(chosen_BL, batch["weights"], 0)
        total, losses = weighted_cross_entropy(
            hidden_BLD,
            model.logits,
            batch["inputs"],
            weights_BL,
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
            chunking=self.chunking,
        )
        return token_ratios(losses, weights_BL, total)
