"""A metric of your own, in a task that is language modelling otherwise.

Shapes: B rows, L length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.metrics import Metric, Ratio
from luthier.tasks import LanguageModelling

ANSWER_ACCURACY = Metric("answer_accuracy", better="higher")


@dataclasses.dataclass(frozen=True)
class Addition(LanguageModelling):
    """Language modelling that also measures the accuracy of the digits after `=`."""

    metrics: ClassVar[tuple[Metric, ...]] = (*LanguageModelling.metrics, ANSWER_ACCURACY)

    def evaluate(self, model: Any, batch: Mapping[str, Any]) -> dict[Metric, Ratio]:
        """Return every metric of a batch: sums and counts, which luthier adds up and divides."""
        hidden_BLD = model.hidden(
            batch["inputs"], positions_BL=batch["positions"], segments_BL=batch["segments"]
        )
        right_BL = model.logits(hidden_BLD).argmax(-1) == batch["targets"]
        asked_BL = answer_mask(batch)
        answers = Ratio(jnp.sum(right_BL * asked_BL), jnp.sum(asked_BL))
        return {**super().evaluate(model, batch), ANSWER_ACCURACY: answers}


def answer_mask(batch: Mapping[str, Any]) -> jax.Array:
    """Return 1.0 where the target is a digit behind the `=` of its own document, float32 [B, L].

    Args:
      batch: A batch of the language modelling task.
    """
    places_L = jnp.arange(batch["inputs"].shape[1])
    starts_BL = places_L - batch["positions"]
    equals_BL = jnp.where(batch["inputs"] == ord("="), places_L, -1)
    last_equals_BL = jax.lax.cummax(equals_BL, axis=1)
    is_digit_BL = (batch["weights"] > 0) & (batch["target_bytes"] > 0)
    return ((last_equals_BL >= starts_BL) & is_digit_BL).astype(jnp.float32)
