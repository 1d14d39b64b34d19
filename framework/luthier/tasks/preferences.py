"""Learning from which of two responses is preferred. Shapes: B pairs, L length."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys
from luthier.losses import DPO, Chunking, PreferenceLoss, Whole, unembedded_cross_entropy
from luthier.metrics import (
    CHOSEN_REWARD,
    LOSS,
    PREFERENCE_ACCURACY,
    REJECTED_REWARD,
    REWARD_MARGIN,
    Metric,
    Ratio,
)
from luthier.tasks.task import Additive, Batch, LossSums
from luthier.tasks.token_ratios import weighted_sum

SIDES = ("chosen", "rejected")
_PARTS = ("inputs", "targets", "segments", "positions", "weights")


class Reference(Protocol):
    """The reference that the policy is compared with, and the place of the policy in the model."""

    @property
    def batch_axes(self) -> dict[str, tuple[str, ...]]:
        """The logical axes of the entries that it reads beside those of the task."""

    def policy(self, model: Any) -> Any:
        """Return the language model that is trained.

        Args:
          model: The model of the experiment.

        Returns:
          The model.
        """

    def log_probabilities(self, model: Any, batch: Batch, side: str, chunking: Chunking) -> Any:
        """Return the reference's log probability of each response of a side, float32 [B].

        Args:
          model: The model, under the trace.
          batch: A batch of the task.
          side: `chosen` or `rejected`.
          chunking: Number of positions whose logits are in memory at a time.

        Returns:
          Float32 [B].
        """


@dataclasses.dataclass(frozen=True)
class HeldReference:
    """The policy as it was at the start, kept in the state: the model is a `models.WithCopy`."""

    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = {}

    def policy(self, model: Any) -> Any:
        """Return the trained part of the `model`.

        Args:
          model: The model of the experiment.

        Returns:
          The model.
        """
        return model.trained

    def log_probabilities(self, model: Any, batch: Batch, side: str, chunking: Chunking) -> Any:
        """Return the log probabilities by the copy.

        Args:
          model: A `models.WithCopy` of a language model.
          batch: As of `Preferences`.
          side: `chosen` or `rejected`.
          chunking: Number of positions whose logits are in memory at a time.

        Returns:
          Float32 [B].
        """
        # Without dropout: the reference is a fixed function. The copy is not a parameter, so
        # `stop_gradient` is not needed for its gradient; it removes the backward pass through it.
        reference_B = response_log_probabilities(model.copy, batch, side, None, chunking)
        return jax.lax.stop_gradient(reference_B)


@dataclasses.dataclass(frozen=True)
class PrecomputedReference:
    """Log probabilities that come with the data: the model is a plain language model.

    A batch holds, beside the task's entries, float32 [B] `chosen_log_probabilities` and
    `rejected_log_probabilities`, each the sum over the response's tokens.
    """

    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        f"{side}_log_probabilities": ("batch",) for side in SIDES
    }

    def policy(self, model: Any) -> Any:
        """Return the `model`.

        Args:
          model: The model of the experiment.

        Returns:
          The model.
        """
        return model

    def log_probabilities(self, model: Any, batch: Batch, side: str, chunking: Chunking) -> Any:
        """Return the batch's entry.

        Args:
          model: Not used.
          batch: As above.
          side: `chosen` or `rejected`.
          chunking: Not used.

        Returns:
          Float32 [B].
        """
        return batch[f"{side}_log_probabilities"]


@dataclasses.dataclass(frozen=True)
class Preferences:
    """Raises the likelihood of chosen responses over that of rejected ones, tied to a reference.

    A batch holds for each side, `chosen` and `rejected`, int32 [B, L] `<side>_inputs`,
    `<side>_targets`, `<side>_segments` (0 = padding), `<side>_positions` and float32 [B, L]
    `<side>_weights` (1 on the response's targets only); int32 [B] `examples` (0 for padding); and
    float32 [B] `weights`.

    Args:
      objective: The loss of a pair: `DPO`, `IPO` or `PreferenceHinge`.
      reference: The reference of the policy: `HeldReference` or `PrecomputedReference`.
      chunking: Number of positions whose logits are in memory at a time.

    Source: Rafailov et al. 2023, arXiv:2305.18290.
    """

    reduction: ClassVar[Additive] = Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (PREFERENCE_ACCURACY, REWARD_MARGIN)
    metrics: ClassVar[tuple[Metric, ...]] = (
        LOSS,
        PREFERENCE_ACCURACY,
        REWARD_MARGIN,
        CHOSEN_REWARD,
        REJECTED_REWARD,
    )

    objective: PreferenceLoss = DPO()
    reference: Reference = HeldReference()
    chunking: Chunking = Whole()

    @property
    def batch_axes(self) -> dict[str, tuple[str, ...]]:
        """The logical axes of every entry of a batch."""
        sides = [f"{side}_{part}" for side in SIDES for part in _PARTS]
        rows = dict.fromkeys(("examples", "weights"), ("batch",))
        return {**dict.fromkeys(sides, ("batch", "length")), **rows, **self.reference.batch_axes}

    def loss(self, model: Any, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss over the summed weights of the pairs.

        Args:
          model: The model that the reference expects, under the trace.
          batch: As above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        ratios = self._ratios(model, batch, key)
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
        return self._ratios(model, batch, None)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of the responses' tokens.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return sum((batch[f"{side}_weights"] != 0).sum() for side in SIDES)

    def _ratios(self, model: Any, batch: Batch, key: jax.Array | None) -> dict[Metric, Ratio]:
        # h = (log pi(c) - log rho(c)) - (log pi(r) - log rho(r)); see `losses.preferences`.
        policy, log_ratios = self.reference.policy(model), []
        for number, side in enumerate(SIDES):
            keys = _pair_keys(key, number, batch["examples"], batch[f"{side}_positions"])
            own_B = response_log_probabilities(policy, batch, side, keys, self.chunking)
            other_B = self.reference.log_probabilities(model, batch, side, self.chunking)
            log_ratios.append(own_B - other_B)
        chosen_B, rejected_B = log_ratios
        # Rewards are implied (equation 5 of DPO) and linear in the log ratios, so that of the
        # margin is the difference of those of both sides.
        margins_B = chosen_B - rejected_B
        weights_B = batch["weights"]
        sums = {
            LOSS: self.objective(margins_B),
            PREFERENCE_ACCURACY: (margins_B > 0).astype(margins_B.dtype),
            REWARD_MARGIN: self.objective.rewards(margins_B),
            CHOSEN_REWARD: self.objective.rewards(chosen_B),
            REJECTED_REWARD: self.objective.rewards(rejected_B),
        }
        pairs = jnp.sum(weights_B)
        return {m: Ratio(weighted_sum(x, weights_B), pairs) for m, x in sums.items()}


def response_log_probabilities(
    model: Any, batch: Batch, side: str, dropout: DropoutKeys | None, chunking: Chunking
) -> jax.Array:
    """Return the log probability of each response of a side, given its prompt.

    Args:
      model: A language model.
      batch: As of `Preferences`.
      side: `chosen` or `rejected`.
      dropout: Keys of the tokens; None means no dropout.
      chunking: Number of positions whose logits are in memory at a time.

    Returns:
      The sum of log p(target) over the response's targets, float32 [B].
    """
    entry = {part: batch[f"{side}_{part}"] for part in _PARTS}
    hidden_BLD = model.hidden(
        entry["inputs"],
        positions_BL=entry["positions"],
        segments_BL=entry["segments"],
        dropout=dropout,
    )
    losses = unembedded_cross_entropy(hidden_BLD, model.logits, entry["targets"], chunking=chunking)
    # A sum and no mean: the log probability of the whole response, in float32. Prompts have weight
    # zero, and `where` keeps out what padding may have that is not finite.
    weights_BL = entry["weights"]
    return -jnp.sum(jnp.where(weights_BL != 0, losses.nats_BL * weights_BL, 0), axis=-1)


def _pair_keys(
    key: jax.Array | None, side: int, examples_B: jax.Array, positions_BL: jax.Array
) -> DropoutKeys | None:
    # Keyed by example and position, and by side: equal prompts of both sides get different masks.
    if key is None:
        return None
    examples_BL = jnp.broadcast_to(examples_B[:, None], positions_BL.shape)
    return DropoutKeys.of_tokens(jax.random.fold_in(key, side), examples_BL, positions_BL)
