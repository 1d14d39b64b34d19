"""What layers tell the task of the tokens that they route: sums over tokens, which merge exactly.

A layer calls `report`; a task that wants to know traces the model within `observing`. Nothing is
kept where nobody observes. Whatever runs layers inside of a traced loop carries what they report
out of it, by `carrying`; what cuts a batch adds up what its parts report.

Shapes: E experts; a stack of layers puts its own dimensions first.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoutingSums:
    """What a layer did with the tokens of a batch, as sums over those that are no padding.

    Args:
      tokens: Number of tokens, a scalar.
      choices_E: How many tokens were to go to each expert, before any was dropped.
      probabilities_E: Sum of the router's probabilities; the derivative of a load-balance loss
        passes through these.
      squared_log_z: Sum of the squared log normalizers of the router's logits.
      wanted: How many choices there were to fulfil.
      dropped: How many of them were not, because the expert had no place left.

    Source: Fedus et al. 2021, arXiv:2101.03961, equations 5 and 6 (choices and probabilities);
      Zoph et al. 2022, arXiv:2202.08906, equation 5 (log normalizers).
    """

    tokens: jax.Array
    choices_E: jax.Array
    probabilities_E: jax.Array
    squared_log_z: jax.Array
    wanted: jax.Array
    dropped: jax.Array


class _Given(NamedTuple):
    """What a layer gives to its stack, and what was reported in it."""

    gift: Any
    seen: list[RoutingSums]


_observer: contextvars.ContextVar[list[RoutingSums] | None] = contextvars.ContextVar(
    "observer", default=None
)


@contextlib.contextmanager
def observing() -> Iterator[list[RoutingSums]]:
    """Yield a list that holds, after the context, what the layers traced in it have reported."""
    found: list[RoutingSums] = []
    token = _observer.set(found)
    try:
        yield found
    finally:
        _observer.reset(token)


def report(sums: RoutingSums) -> None:
    """Tell whoever observes what a layer did; nothing if nobody does.

    Args:
      sums: What the layer did with the tokens of this batch.
    """
    found = _observer.get()
    if found is not None:
        found.append(sums)


def carrying(apply: Callable[..., tuple[T, Any]]) -> Callable[..., tuple[T, Any]]:
    """Let the `apply` of a stack carry what its layers report out of the loop that they run in.

    Args:
      apply: Called as `apply(self, layers, function, carry, own, rows)`; what `function` gives must
        come back with a leading layers axis, or for each layer.

    Returns:
      The same method.
    """

    @functools.wraps(apply)
    def carried(
        self: Any,
        layers: Any,
        function: Callable[..., Any],
        carry: T,
        own: Any = None,
        rows: Any = None,
    ) -> tuple[T, Any]:
        if _observer.get() is None:
            return apply(self, layers, function, carry, own, rows)

        def observed(layer: Any, index: jax.Array, carry: T, *rest: Any) -> tuple[T, _Given]:
            with observing() as seen:
                carry, gift = function(layer, index, carry, *rest)
            return carry, _Given(gift, seen)

        carry, given = apply(self, layers, observed, carry, own, rows)
        return carry, _handed_on(given)

    return carried


def _handed_on(given: Any) -> Any:
    """Report to the observer outside what was seen inside; return what the layers gave."""

    def take(each: _Given) -> Any:
        for sums in each.seen:
            report(sums)
        return each.gift

    return jax.tree.map(take, given, is_leaf=lambda each: isinstance(each, _Given))


def by_site(sums: RoutingSums) -> RoutingSums:
    """Return sums of several layers with one leading dimension: scalars [N], others [N, E].

    Args:
      sums: As a layer or a stack of layers reported them.
    """
    scalars = jax.tree.map(lambda x: jnp.reshape(x, -1), sums)
    E = sums.choices_E.shape[-1]
    return dataclasses.replace(
        scalars,
        choices_E=sums.choices_E.reshape(-1, E),
        probabilities_E=sums.probabilities_E.reshape(-1, E),
    )
