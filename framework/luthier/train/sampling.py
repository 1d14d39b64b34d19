"""Text from a language model's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from luthier.models import generate
from luthier.program import Program
from luthier.program.program import Leaves
from luthier.program.state import below, split
from luthier.program.step import rngs_of

SAMPLE_TOKENS = 200


def module_of(program: Program, leaves: Leaves, weights: str = "parameters") -> Any:
    """Return the model with the arrays of a state in it.

    Args:
      program: What the state belongs to.
      leaves: The state.
      weights: `parameters` or `ema`.
    """
    experiment = program.experiment
    abstract = nnx.eval_shape(lambda: experiment.model(rngs=rngs_of(experiment.seed)))
    state = program.named(leaves)
    return split(abstract)[0].merge(below(weights, state) | below("variables", state))


def can_generate(program: Program) -> bool:
    """Return whether the experiment has what sampling needs: a tokenizer and a decoding model."""
    experiment = program.experiment
    if getattr(experiment.data, "tokenizer", None) is None:
        return False
    make = experiment.model
    return all(hasattr(getattr(make, "func", make), name) for name in ("init_cache", "decode"))


def sample_text(
    program: Program,
    leaves: Leaves,
    prompts: Sequence[str],
    *,
    weights: str = "parameters",
    stop: str = "",
    **options: Any,
) -> list[str]:
    """Return the model's continuation of each prompt.

    Args:
      program: What the state belongs to.
      leaves: The state.
      prompts: Text to continue; may be empty.
      weights: `parameters` or `ema`.
      stop: Text at which a continuation ends (it is not returned); empty for none.
      **options: As for `luthier.models.generate`.

    Raises:
      BadInput: An option is out of its range.
    """
    tokenizer = program.experiment.data.tokenizer
    model = module_of(program, leaves, weights)
    tokens = [[tokenizer.bos, *tokenizer.encode(prompt)] for prompt in prompts]
    drawn = generate(model, tokens, stop_tokens=(tokenizer.eos,), **options)
    texts = [tokenizer.decode(row) for row in drawn]
    return [text.partition(stop)[0] for text in texts] if stop else texts


def final_sample(program: Program, leaves: Leaves) -> str:
    """Return a short text of the trained model, or nothing where it cannot generate."""
    if not can_generate(program):
        return ""
    length = program.experiment.data.tokens_per_row
    count = min(SAMPLE_TOKENS, length - 1)
    return jax.device_get(
        sample_text(program, leaves, [""], max_new_tokens=count, temperature=0.8, seed=0)[0]
    )
