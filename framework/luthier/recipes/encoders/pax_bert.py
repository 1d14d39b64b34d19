"""Pax's BERT: its base decoder A, with a view of both sides.

Devlin et al. 2018, arXiv 1810.04805, for what it is trained on; paxml,
`tasks/lm/model_params.py` (`TransformerBertPmapAdam`, `TransformerBertSpmdAdafactor`).
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.recipes.decoders.pax import pax


def pax_bert(*, vocab_size: Any = 32_000, **sizes: Any) -> fdl.Partial[models.Decoder]:
    """Return the template of a BERT as Pax builds it: not causal, with ReLU.

    Train it with `tasks.MaskedModelling`; it generates nothing.

    Args:
      vocab_size: Tokens of the vocabulary.
      **sizes: As for `pax`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import encoders
      >>> model = encoders.pax_bert(dim=512, num_layers=2, num_heads=8, hidden_dim=2048)
      >>> planner.count_parameters(planner.model_parameters(model)).total
      22717824

    Deviation: from BERT, which normalizes after each part, learns its positions and token types,
      has a head with a layer of its own, and no caps.
    """
    graph = pax(vocab_size=vocab_size, **sizes)
    graph.block.attention.core.mask = fdl.Config(layers.SameDocument)
    graph.block.mlp.activation = jax.nn.relu
    return graph
