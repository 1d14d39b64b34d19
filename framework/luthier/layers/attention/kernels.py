"""Abstract forms of kernels of attention, with the FLOPs and bytes that the kernels have.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from luthier.errors import BadInput, Problem
from luthier.layers.attention.masks import (
    AttentionMask,
    Causal,
    SameDocument,
    Window,
    pair_share,
)
from luthier.layers.declared import kernel, visible
from luthier.parallel import current_layout

MASKS = (Causal, Window, SameDocument)
"""The masks that attention kernels have."""

INSTEAD = "use BlockwiseAttention"
"""The end of a remedy for what a kernel lacks."""


# A user context of JAX, and no plain context variable: it is part of the key of every trace cache.
_are_allowed = jax.make_user_context(True)


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Let `AutoAttention` choose no kernel for what is traced within the context.

    For programs of several trials that are batched by `jax.vmap`: JAX's rule to batch cuDNN's
    attention has none for lengths and offsets of documents.
    """
    with _are_allowed(False):
        yield


def are_kernels_allowed() -> bool:
    """Return whether `AutoAttention` may choose a kernel where this is traced."""
    return bool(_are_allowed.value)


def require_mask(core: Any) -> None:
    """Reject an attention core whose kernel lacks its mask.

    Args:
      core: The core, with a `mask`.

    Raises:
      BadInput: Its mask is none of `MASKS`.
    """
    if type(core.mask) not in MASKS:  # a subclass may compute another one
        what = f"{type(core).__name__} has no mask {type(core.mask).__name__}"
        remedy = f"it has Causal, Window and SameDocument; or {INSTEAD}"
        raise BadInput(Problem(what, remedy=remedy))


def declared_attention(
    form: Callable[..., jax.Array],
    mask: AttentionMask,
    backward_products: int,
    statistics_bytes: int,
) -> Callable[..., jax.Array]:
    """Return an abstract form of attention that declares the costs of a kernel and of its gradient.

    Args:
      form: Attends by operations that can be traced anywhere, as a function of queries, keys,
        values, tokens of queries and keys, and perhaps sinks [H].
      mask: The attention mask.
      backward_products: Products of the backward pass, each over all pairs; the forward pass has 2.
      statistics_bytes: Bytes of the softmax's statistics, which the kernel keeps.

    Returns:
      A function of the arguments of `form`, with the result of `form`.
    """

    # Each kernel reads and writes its arrays once, with the statistics of the softmax; going
    # backward, every array has a gradient.
    def attend_declared(*arguments: Any) -> jax.Array:
        query_BLHK, key_BSGK, value_BSGK = arguments[:3]
        rows, length, heads, size = query_BLHK.shape
        product = 2 * rows * heads * length * key_BSGK.shape[1] * size
        arrays = 2 * query_BLHK.nbytes + key_BSGK.nbytes + value_BSGK.nbytes
        # What is differentiated is traced later, perhaps after the rules of an exchange have ended
        # (`AllToAllAttention`); the form must split its arrays by the rules that hold here.
        layout = current_layout()

        def forward(*arguments: Any) -> jax.Array:
            with contextlib.nullcontext() if layout is None else layout.active():
                return form(*arguments)

        def backward(change: jax.Array, *arguments: Any) -> Any:
            query, key, value, *tokens = arguments[:5]

            def of_arrays(query: Any, key: Any, value: Any, sinks: Any) -> jax.Array:
                return forward(query, key, value, *tokens, *sinks)

            return jax.vjp(of_arrays, query, key, value, arguments[5:])[1](change)

        def declared(form: Callable[..., Any], products: int, moved: int) -> Callable[..., Any]:
            run = kernel(form, form, flops=products * product, bytes=moved + statistics_bytes)

            def call(*arguments: Any) -> Any:
                with visible(pair_share(mask, length, key_BSGK.shape[1])):
                    return run(*arguments)

            return call

        def gradient(arguments: Any, change: jax.Array) -> Any:
            *of_arrays, of_sinks = attend_back(change, *arguments)
            return (*of_arrays, None, None, *of_sinks)

        attend = jax.custom_vjp(declared(forward, 2, arrays))
        attend_back = declared(backward, backward_products, 2 * arrays)
        attend.defvjp(
            lambda *arguments: (attend(*arguments), arguments),
            gradient,
        )
        found: jax.Array = attend(*arguments)
        return found

    return attend_declared
