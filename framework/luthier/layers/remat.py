"""What the forward pass of a layer keeps for the backward pass, as swappable nodes.

Layers name what they compute (`jax.ad_checkpoint.checkpoint_name`): query, key, value,
attention_context, attention_output, mlp_gate, mlp_up, mlp_output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax


class Remat(Protocol):
    """Wraps the function of one layer."""

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function with the policy applied; `scanned` if it is the body of a scan."""


@dataclasses.dataclass(frozen=True)
class NoRemat:
    """Keep everything: fastest, and the most memory."""

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function unchanged."""
        return function


@dataclasses.dataclass(frozen=True)
class FullRemat:
    """Keep only what enters the layer, and compute the layer again: a third more FLOPs.

    Source: Chen et al. 2016, arXiv 1604.06174, section 4.
    """

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized."""
        return jax.checkpoint(function, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class SaveNamed:
    """Keep what enters the layer and the named residuals, and compute the rest again.

    Args:
      names: Names of residuals; a name that no layer uses keeps nothing.
    """

    names: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # hashable, also from a list

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for the named residuals."""
        policy = jax.checkpoint_policies.save_only_these_names(*self.names)
        return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)


@dataclasses.dataclass(frozen=True)
class SaveProjections:
    """Keep the results of products with parameters, and compute the rest again.

    What is computed again, the attention scores and the elementwise parts, costs few FLOPs.
    """

    def wrap(self, function: Callable[..., Any], *, scanned: bool) -> Callable[..., Any]:
        """Return the function, rematerialized but for products without batch dimensions."""
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(function, policy=policy, prevent_cse=not scanned)
