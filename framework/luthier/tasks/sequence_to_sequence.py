"""Prediction of a target text from a source. Shapes: B rows, S source length, T target length."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys
from luthier.losses import TokenLosses
from luthier.metrics import EXACT_MATCH, Metric, Ratio
from luthier.tasks.language_modelling import LanguageModelling, token_keys
from luthier.tasks.task import Batch
from luthier.tasks.token_ratios import exact_match

_SOURCE = ("inputs", "input_segments", "input_positions")
_TARGET = (
    "decoder_inputs",
    "targets",
    "segments",
    "positions",
    "documents",
    "target_bytes",
    "weights",
)


@dataclasses.dataclass(frozen=True)
class SequenceToSequence(LanguageModelling):
    """Predicts every token of a target from its source and the tokens before it.

    A batch holds int32 [B, S] `inputs`, `input_segments` (0 = padding), `input_positions`; int32
    [B, T] `decoder_inputs`, `targets`, `segments`, `positions`, `documents`, `target_bytes`; and
    float32 [B, T] `weights`. Several pairs may share a row: a target belongs to the source of the
    same segment. The model has `encode(inputs_BL, positions_BL=, segments_BL=, dropout=)`,
    `decode_hidden(decoder_inputs, source, positions_BL=, segments_BL=, dropout=)` and
    `logits(hidden)`. Beside the metrics of language modelling there is `exact_match`, the share of
    targets that greedy decoding would write without a mistake.

    Args:
      z_loss: Weight of the squared log normalizer; None leaves the term out.
      label_smoothing: Probability spread over the vocabulary; None leaves the term out.
      chunking: Number of target positions whose logits are in memory at a time.
    """

    batch_axes: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(
        (*_SOURCE, *_TARGET), ("batch", "length")
    )

    metrics: ClassVar[tuple[Metric, ...]] = (*LanguageModelling.metrics, EXACT_MATCH)

    def _ratios(self, total: jax.Array, losses: TokenLosses, batch: Batch) -> dict[Metric, Ratio]:
        # `correct` is with the right tokens before (teacher forcing); see `exact_match` for why
        # that decides whether greedy decoding is right.
        match = exact_match(losses.correct_BL, batch["weights"], batch["segments"])
        return {**super()._ratios(total, losses, batch), EXACT_MATCH: match}

    def _losses(
        self, model: Any, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, TokenLosses]:
        source = model.encode(
            batch["inputs"],
            positions_BL=batch["input_positions"],
            segments_BL=batch["input_segments"],
            dropout=_source_keys(key, batch),
        )
        hidden_BTD = model.decode_hidden(
            batch["decoder_inputs"],
            source,
            positions_BL=batch["positions"],
            segments_BL=batch["segments"],
            dropout=token_keys(key, batch),
        )
        return self._unembedded(hidden_BTD, model, batch)


def _source_keys(key: jax.Array | None, batch: Batch) -> DropoutKeys | None:
    """Key the source's tokens by the document of their target, so that packing changes nothing."""
    # `documents` come with the target, `segments` pair both texts within a row. Each source token
    # takes the document of the target of its segment; there is one, so the maximum selects it.
    if key is None:
        return None
    same_BST = batch["input_segments"][:, :, None] == batch["segments"][:, None, :]
    documents_BS = jnp.max(jnp.where(same_BST, batch["documents"][:, None, :], 0), axis=-1)
    return DropoutKeys.of_tokens(key, documents_BS, batch["input_positions"])
