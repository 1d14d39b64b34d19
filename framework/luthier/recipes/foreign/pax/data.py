"""Conversion of the datasets of Pax that can be read here; others are reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier import data as datasets
from luthier.recipes import published
from luthier.recipes.foreign.pax.nodes import Node, PaxObject, is_number

_C4 = "c4_lm_v301_gpt"
_C4_VALIDATION = "c4_lm_v301_gpt_eval_tokenized"


@dataclasses.dataclass(frozen=True)
class Known:
    """Datasets that can be read here.

    Args:
      training: Training data; None if it is unknown.
      validation: Validation data; None if it is unknown.
      validation_rows: Rows of a validation batch.
    """

    training: fdl.Config[Any] | None = None
    validation: fdl.Config[Any] | None = None
    validation_rows: int = 1


def batch_size(nodes: Sequence[Node]) -> int | None:
    """Return the rows of a step over all hosts; None where the dump does not have them.

    Args:
      nodes: The datasets.
    """
    # Pax's batch size is that of a host.
    for node in _training(nodes):
        rows, hosts = _settings(node, "batch_size"), node.get("num_infeed_hosts", 1)
        if is_number(rows) and rows >= 1:
            return int(rows) * (int(hosts) if is_number(hosts) and hosts > 0 else 1)
    return None


def data(nodes: Sequence[Node], vocab_size: int) -> Known:
    """Return the data of an experiment, as far as it can be read here; report the rest.

    Args:
      nodes: The datasets.
      vocab_size: Tokens of the model's vocabulary.
    """
    found = Known()
    for node in nodes:
        is_training = bool(node.peek("is_training"))
        made, rows = _made(node, vocab_size), _settings(node, "batch_size")
        has_rows = is_number(rows) and rows >= 1
        if made is None or not (is_training or has_rows):
            field = "data" if is_training else "evaluations"
            node.leave(_identifying(node), f"such data is not known here; set {field}")
        elif is_training:
            found = dataclasses.replace(found, training=made)
        else:
            found = dataclasses.replace(found, validation=made, validation_rows=int(rows))
    return found


def _training(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.peek("is_training")]


def _made(node: Node, vocab_size: int) -> fdl.Config[Any] | None:
    node.pass_over("is_training", "name", "batch_size", "num_infeed_hosts", "reset_for_eval")
    if node.kind == "SeqIOInput":
        mixture, lengths = node.get("mixture_name"), node.get("task_feature_lengths")
        length = lengths.get("targets") if isinstance(lengths, dict) else None
        node.pass_over(
            *("split_name", "feature_converter", "input_random_seed", "repeat", "use_cached"),
            *("drop_remainder", "num_batches_to_skip", "annotate_padding_fields"),
            *("deterministic_input_start_index", "shuffle", "trim_output_features"),
        )
        if mixture == _C4 and is_number(length):
            return published.c4_training(length=int(length))
        if mixture == _C4_VALIDATION and is_number(length):
            return published.c4_validation(length=int(length))
        return None
    inner = node.get("input")
    if isinstance(inner, PaxObject) and "SyntheticLmData" in str(inner.settings.get("cls", "")):
        length = inner.settings.get("seq_len")
        if is_number(length):
            # Another seed than that of training, or the rows of training would be evaluated.
            own = {} if node.peek("is_training") else {"seed": 1}
            sizes = {"vocab_size": vocab_size, "length": int(length)}
            return fdl.Config(datasets.Synthetic, **sizes, **own)
    return None


def _settings(node: Node, field: str) -> Any:
    """Return a setting of a dataset, or of the dataset that it wraps."""
    inner = node.peek("input")
    if isinstance(inner, PaxObject) and field in inner.settings:
        return inner.settings[field]
    return node.peek(field)


def _identifying(node: Node) -> str:
    """Return the setting that identifies the data best, to be reported."""
    names = ("mixture_name", "input", "path", "name")
    return next((name for name in names if node.is_set(name)), "is_training")
