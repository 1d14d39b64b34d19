"""Chunked computation along a sequence. Shapes: B batch rows, L length, C chunk, N chunks.

`map` applies a function to every position; `total` also adds up what it costs, with weights.

A loss over a large vocabulary needs memory for the logits of every token that it computes at once.
Chunks cut the sequence, never the batch: each device cuts its own rows, so the axis that is scanned
is never sharded over the batch axes of the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp


class Chunking(Protocol):
    """Applies a function that acts on every position by itself."""

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`, whose results are arrays [B, L, ...].

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """

    def total(
        self, function: Callable[..., Any], weights_BL: jax.Array, *arrays_BL: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the weighted sum of what positions cost.

        Args:
          function: As of `map`; it returns the cost [B, L] and further arrays [B, L, ...].
          weights_BL: Weights of the positions; those of weight 0 do not count, even if their cost
            is not finite.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          The sum, a scalar, and the further arrays. Only the sum is sure to have a gradient.
        """


def weighted_sum(values: jax.Array, weights: Any) -> jax.Array:
    """Return the sum of values times weights.

    Values of weight 0 do not count, even if they are not finite.

    Args:
      values: Any array.
      weights: Of the same shape.

    Returns:
      A scalar.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import tasks
      >>> print(tasks.weighted_sum(jnp.array([2.0, jnp.inf]), jnp.array([0.5, 0.0])))
      1.0
    """
    # A product alone would not do: the loss of padding may be infinite, and 0 x inf is NaN.
    return jnp.sum(jnp.where(weights != 0, values * weights, 0))


class _Mapped:
    """Adds up after the fact what `map` returns."""

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        raise NotImplementedError

    def total(
        self, function: Callable[..., Any], weights_BL: jax.Array, *arrays_BL: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the weighted sum of what positions cost.

        Args:
          function: As of `map`; it returns the cost [B, L] and further arrays [B, L, ...].
          weights_BL: Weights of the positions.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          The sum, a scalar, and the further arrays.
        """
        costs_BL, others = self.map(function, *arrays_BL)
        return weighted_sum(costs_BL, weights_BL), others


@dataclasses.dataclass(frozen=True)
class Whole(_Mapped):
    """Computes the whole sequence at once: fastest while the logits fit."""

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`.

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """
        return function(*arrays_BL)


@dataclasses.dataclass(frozen=True)
class Chunked(_Mapped):
    """Computes `length` positions at a time, and again in the backward pass.

    Memory falls from L to `length` positions; the function's forward FLOPs are paid twice. A
    sequence that is not a multiple of `length` ends with a shorter chunk.

    Args:
      length: Positions in a chunk.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.Chunked(2).map(lambda x_BL: 2 * x_BL, jnp.arange(4.0)[None]))
      [[0. 2. 4. 6.]]
    """

    RANGES: ClassVar[dict[str, str]] = {"length": "1 <= x"}

    length: int

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`, computed chunk by chunk along the second axis.

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """
        length = arrays_BL[0].shape[1]
        num_chunks, rest = divmod(length, self.length)
        if num_chunks + (rest > 0) <= 1:
            return function(*arrays_BL)
        # Chunks are the leading dimension of a scan with an empty carry. `checkpoint` is what saves
        # memory: without it the scan would stack the residuals of all chunks, logits among them,
        # for the backward pass. `prevent_cse=False`: within a scan XLA cannot merge the
        # recomputation with the forward pass, and needs no barriers.
        #
        # Parameters that the function closes over (the unembedding) are constants of the scan, and
        # their gradient is the scan's sum over chunks, in their type, widened in `program.step`.
        end = length - rest
        body = jax.checkpoint(function, prevent_cse=False)
        _, results = jax.lax.scan(
            lambda carry, chunks: (carry, body(*chunks)),
            None,
            [_split(array[:, :end], num_chunks) for array in arrays_BL],
        )
        results = jax.tree.map(_join, results)
        if not rest:
            return results
        # Not padded to a whole chunk: the function need not have a neutral input. Outside of the
        # scan XLA could merge the recomputation with the forward pass, so the barriers stay.
        tail = jax.checkpoint(function)(*(array[:, end:] for array in arrays_BL))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), results, tail)


@dataclasses.dataclass(frozen=True)
class Fused(Chunked):
    """Computes `length` positions at a time, each together with its gradient: a fused loss.

    A sum of costs has a gradient that is known up to one factor when the sum is made. So the
    gradient of each chunk is computed right after its logits, in the forward pass, and the backward
    pass multiplies it by that factor. Nothing is computed twice, as `Chunked` does; memory holds
    the logits of one chunk, the gradient of the inputs, and that of the unembedding in float32.

    It is for losses that are weighted sums of what tokens cost (`total`). Other losses, such as
    those of preferences, are computed as by `Chunked`. There is no forward-mode derivative.

    Args:
      length: Positions in a chunk.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> def loss(x_BL):
      ...     cost = lambda x_BC: (x_BC**2, None)
      ...     return losses.Fused(2).total(cost, jnp.array([[1.0, 1.0, 0.5]]), x_BL)[0]
      >>> print(jax.grad(loss)(jnp.array([[1.0, 2.0, 3.0]])))
      [[2. 4. 3.]]

    Source: Hsu et al. 2024, arXiv:2410.10989, section 3.2 (fused linear and cross-entropy).
    """

    def total(
        self, function: Callable[..., Any], weights_BL: jax.Array, *arrays_BL: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the weighted sum of what positions cost, with its gradient already computed.

        Args:
          function: As of `map`; it returns the cost [B, L] and further arrays [B, L, ...].
          weights_BL: Weights of the positions.
          *arrays_BL: Arrays [B, L, ...]; those of floats have a gradient.

        Returns:
          The sum, a scalar, and the further arrays, which have no gradient.
        """
        length = min(self.length, weights_BL.shape[1])
        # What the function closes over, such as the parameters of the unembedding, becomes an
        # argument, because a custom derivative sees nothing else.
        own = [array_BL[:, :length] for array_BL in arrays_BL]
        function, captured = jax.closure_convert(function, *own)
        is_float = [jnp.issubdtype(array_BL.dtype, jnp.inexact) for array_BL in arrays_BL]

        def cost(floats: Any, fixed: Any, weights_BC: jax.Array) -> Any:
            captured, own = floats
            costs_BC, others = function(*_interleaved(is_float, own, fixed), *captured)
            return weighted_sum(costs_BC, weights_BC), (costs_BC, others)

        total = _with_gradient(cost, length)
        floats = [x for x, known in zip(arrays_BL, is_float, strict=True) if known]
        fixed = [x for x, known in zip(arrays_BL, is_float, strict=True) if not known]
        sum_, others = total((list(captured), floats), fixed, weights_BL)
        return sum_, jax.lax.stop_gradient(others)


def _with_gradient(cost: Callable[..., Any], length: int) -> Callable[..., Any]:
    """Return the sum of a cost over chunks, whose gradient is computed with it.

    Args:
      cost: From ((captured, chunks of floats), chunks of other arrays, weights) to the weighted sum
        and (the cost of each position, others).
      length: Positions in a chunk.
    """

    def cut(array_BL: jax.Array) -> jax.Array:
        # Positions of padding have weight 0, so that zeros are as good as anything.
        widths = [(0, 0), (0, -array_BL.shape[1] % length), *[(0, 0)] * (array_BL.ndim - 2)]
        padded_BL = jnp.pad(array_BL, widths)
        return _split(padded_BL, padded_BL.shape[1] // length)

    @jax.custom_vjp
    def total(floats: Any, fixed: Any, weights_BL: jax.Array) -> Any:
        captured, own = floats

        def body(carry: None, chunk: Any) -> Any:
            own, fixed, weights_BC = chunk
            value, (_, others) = cost((captured, own), fixed, weights_BC)
            return carry, (value, others)

        chunks = jax.tree.map(cut, (own, fixed, weights_BL))
        _, (values_N, others) = jax.lax.scan(body, None, chunks)
        return values_N.sum(), _whole(others, weights_BL)

    def forward(floats: Any, fixed: Any, weights_BL: jax.Array) -> Any:
        captured, own = floats

        def body(of_captured: Any, chunk: Any) -> Any:
            own, fixed, weights_BC = chunk
            (value, (costs_BC, others)), (of_these, of_own) = jax.value_and_grad(
                cost, has_aux=True
            )((captured, own), fixed, weights_BC)
            of_captured = jax.tree.map(lambda a, b: a + b.astype(a.dtype), of_captured, of_these)
            return of_captured, (value, others, costs_BC, of_own)

        # In float32 or wider: a sum of many chunks in bfloat16 would lose the small ones.
        of_captured = jax.tree.map(
            lambda x: jnp.zeros_like(x, jnp.promote_types(x.dtype, jnp.float32)), captured
        )
        chunks = jax.tree.map(cut, (own, fixed, weights_BL))
        of_captured, (values_N, others, costs, of_own) = jax.lax.scan(body, of_captured, chunks)
        costs_BL, of_own = _whole((costs, of_own), weights_BL)
        of_captured = jax.tree.map(lambda a, x: a.astype(x.dtype), of_captured, captured)
        saved = ((of_captured, of_own), costs_BL, weights_BL)
        return (values_N.sum(), _whole(others, weights_BL)), saved

    def backward(saved: Any, cotangents: Any) -> Any:
        of_floats, costs_BL, weights_BL = saved
        factor, _ = cotangents  # there is none of what is only reported
        of_floats = jax.tree.map(lambda x: (factor * x).astype(x.dtype), of_floats)
        of_weights_BL = jnp.where(weights_BL != 0, factor * costs_BL, 0).astype(weights_BL.dtype)
        return of_floats, None, of_weights_BL

    total.defvjp(forward, backward)
    return total


def _interleaved(
    is_first: Sequence[bool], first: Sequence[Any], second: Sequence[Any]
) -> list[Any]:
    """Return the elements of two sequences in one order: from the first where it says so."""
    sources = {True: iter(first), False: iter(second)}
    return [next(sources[bool(known)]) for known in is_first]


def _whole(tree: Any, weights_BL: jax.Array) -> Any:
    """[N, B, C, ...] -> [B, L, ...], without padding, for all arrays."""
    return jax.tree.map(lambda x: _join(x)[:, : weights_BL.shape[1]], tree)


def _split(array_BL: jax.Array, num_chunks: int) -> jax.Array:
    """[B, N*C, ...] -> [N, B, C, ...]."""
    rows, _, *rest = array_BL.shape
    return jnp.moveaxis(array_BL.reshape(rows, num_chunks, -1, *rest), 1, 0)


def _join(array_NBC: jax.Array) -> jax.Array:
    """[N, B, C, ...] -> [B, N*C, ...]."""
    num_chunks, rows, length, *rest = array_NBC.shape
    return jnp.moveaxis(array_NBC, 0, 1).reshape(rows, num_chunks * length, *rest)
