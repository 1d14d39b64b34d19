"""Floating point operations that a training step owes to its model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from luthier.tasks.flops import count


@dataclasses.dataclass(frozen=True)
class ModelFlops:
    """FLOPs that one training step owes to the model, in the conventions that papers use.

    Recomputation (remat) is not counted: these measure the model, not the way it is run.

    Args:
      full: Three times the products of the forward pass, attention over all pairs
        (Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B, without embedding look-ups).
      causal: The same with the batched products halved, as a causal kernel may skip them.
      six_n: Six times parameters times tokens
        (Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """

    full: int
    causal: int
    six_n: int


def model_flops(forward: Any, parameters: int, tokens: int) -> ModelFlops:
    """Return what one training step owes to the model.

    Args:
      forward: The jaxpr of the loss, forward pass only, over the whole global batch.
      parameters: Number of trained scalars.
      tokens: Tokens in the global batch.
    """
    once = count(forward)
    return ModelFlops(
        full=3 * once.total,
        causal=3 * (once.weights + once.batched // 2),
        six_n=6 * parameters * tokens,
    )


def trace_forward(program: Any) -> Any:
    """Return the jaxpr of the loss over a whole global batch, forward pass only.

    Args:
      program: A `luthier.program.Program`.
    """
    from luthier.program.state import model_arrays
    from luthier.program.step import dropout_key, structure_of

    def forward(values: Any, leaves: Any, batch: Any) -> Any:
        with program.tracing(values) as experiment:
            state = program.named(leaves)
            model = structure_of(experiment).merge(model_arrays(state))
            sums = experiment.task.loss(model, batch, dropout_key(experiment.seed))
        return sums.loss.numerator

    return jax.make_jaxpr(forward)(program.values(), program.abstract_leaves, dict(program.batch))
