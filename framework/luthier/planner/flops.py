"""Floating point operations that a training step owes to its model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core as jex_core

from luthier import user_code
from luthier.errors import Problem, ValidationError
from luthier.layers.attention import CHOICE_REASONS
from luthier.layers.declared import abstract_forms, choice
from luthier.parallel import activation_rules, make_mesh
from luthier.program import Program
from luthier.program.state import model_arrays
from luthier.program.step import check_loss, dropout_key, structure_of
from luthier.tasks.flops import count, inside


@dataclasses.dataclass(frozen=True)
class ModelFlops:
    """FLOPs that one training step owes to the model, in the conventions that papers use.

    Neither recomputation (remat) nor the padding of experts is counted: these measure the model,
    not the way it is run.

    Args:
      full: Three times the products of the forward pass, attention over all pairs
        (Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B, without embedding look-ups).
      causal: The same without the pairs that masks hide for their order: half of those of causal
        attention, all but `w S - w^2 / 2` of those of windows of w tokens in rows of S
        (Source: Dao 2023, arXiv:2307.08691, section 4.1, "divide by 2").
      six_n: Six times active parameters times tokens
        (Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """

    full: int
    causal: int
    six_n: int


def model_flops(forward: jex_core.ClosedJaxpr, parameters: int, tokens: int) -> ModelFlops:
    """Count the FLOPs that one training step owes to the model.

    Args:
      forward: The jaxpr of the loss, forward pass only, over the whole global batch.
      parameters: Number of active parameters: those that a token passes through.
      tokens: Tokens in the global batch.

    Returns:
      FLOPs of a step in three conventions: `full`, `causal` and `six_n`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import planner
      >>> forward = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4)))
      >>> planner.model_flops(forward, parameters=12, tokens=2)
      ModelFlops(full=144, causal=144, six_n=144)
    """
    once = count(forward)
    return ModelFlops(
        full=3 * once.active,
        causal=3 * (once.active - once.hidden),
        six_n=6 * parameters * tokens,
    )


def attention_cores(traced: jex_core.ClosedJaxpr) -> dict[str, str]:
    """Return the cores that `AutoAttention` chose in a traced program, and why.

    Args:
      traced: The jaxpr of a step, or of the loss.

    Returns:
      The reasons by the name of the core's class.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers, planner
      >>> tokens, x = layers.Tokens.single(1, 8), jnp.ones((1, 8, 2, 4))
      >>> traced = jax.make_jaxpr(lambda x: layers.AutoAttention()(x, x, x, tokens, tokens))(x)
      >>> planner.attention_cores(traced)
      {'EinsumAttention': 'the scores are few enough to be kept'}
    """
    found: dict[str, str] = {}
    for equation in _equations(traced):
        chosen = choice(str(equation.source_info.name_stack))
        if chosen is not None:
            core, reasons = chosen
            found.setdefault(core, "; ".join(CHOICE_REASONS[reason] for reason in reasons))
    return dict(sorted(found.items()))


def _equations(jaxpr: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> Iterator[jex_core.JaxprEqn]:
    for equation in jaxpr.eqns:
        yield equation
        for sub in inside(equation):
            yield from _equations(sub)


def trace_forward(program: Program) -> jex_core.ClosedJaxpr:
    """Trace the loss over a whole global batch, forward pass only.

    It is traced as for one device, because the FLOPs of a model do not depend on how it is sharded:
    a pipeline, for example, computes in its bubbles too. Kernels are traced by their abstract
    forms, so that none of them needs its device.

    Args:
      program: The experiment's program.

    Raises:
      UserCodeError: Code of the user raised an exception.
      ValidationError: The components of the model or the task do not fit together.
    """
    # A mesh of one device still has all axes by name, since layers look up the axes of their rules.
    sizes, rules = dict.fromkeys(program.sizes, 1), program.experiment.parallelism.rules
    single = make_mesh(sizes, [program.mesh.devices.flat[0]])

    def forward(values: Any, leaves: Any, batch: Any) -> Any:
        with (
            program.tracing(values) as experiment,
            activation_rules(single, rules),
            abstract_forms(),
        ):
            state = program.named(leaves)
            model = structure_of(experiment).merge(model_arrays(state))
            sums = experiment.task.loss(model, batch, dropout_key(experiment.seed))
            check_loss(sums)
        return sums.loss.numerator

    # Without shardings: where the axes of the program's mesh are explicit, these are a part of
    # the types of arrays, and name another mesh than the one here.
    plain = functools.partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    arguments = program.values(), plain(program.abstract_leaves), plain(dict(program.batch))
    with program.components_at_fault("the loss cannot be traced", program.batch):
        try:
            return jax.make_jaxpr(forward)(*arguments)
        except OverflowError as error:  # sizes enter arithmetic as numbers of 32 bits
            if user_code.frames(error):
                raise
            line = str(error).partition("\n")[0]
            what = f"a size of the model is too large for its arithmetic: {line}"
            raise ValidationError(Problem(what, "model")) from error
