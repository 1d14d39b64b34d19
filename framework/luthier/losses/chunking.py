"""Chunked computation along a sequence. Shapes: B batch rows, L length, C chunk, N chunks.

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


def weighted_sum(values: jax.Array, weights: Any) -> jax.Array:
    """Return the sum of values times weights.

    Values of weight 0 do not count, even if they are not finite. The gradient, however, is NaN if a
    value of weight 0 is computed from a NaN, because the chain rule multiplies that NaN by 0. In
    the data, therefore, replace missing numbers by 0.

    Args:
      values: Any array.
      weights: Of the same shape.

    Returns:
      A scalar.

    Raises:
      ValueError: The shapes differ. Values [B, 1] and weights [B] would be multiplied as [B, B].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import tasks
      >>> print(tasks.weighted_sum(jnp.array([2.0, jnp.inf]), jnp.array([0.5, 0.0])))
      1.0
    """
    if jnp.shape(values) != jnp.shape(weights):
        what = f"values of shape {jnp.shape(values)} have weights of shape {jnp.shape(weights)}"
        raise ValueError(f"{what}; give both the same shape")
    # A product alone would not do: the loss of padding may be infinite, and 0 x inf is NaN.
    return jnp.sum(jnp.where(weights != 0, values * weights, 0))


@dataclasses.dataclass(frozen=True)
class Whole:
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
class Chunked:
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
        # argument, because a custom derivative sees nothing else. Not by `jax.closure_convert`,
        # whose cache would keep each function, and with it the model, for the life of the process.
        own = [array_BL[:, :length] for array_BL in arrays_BL]
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*own)
        tree = jax.tree.structure(shapes)
        captured, constants, is_captured = _by_kind(traced.consts)
        floats, fixed, is_float = _by_kind(arrays_BL)

        def cost(floats: Any, fixed: Any, weights_BC: jax.Array) -> Any:
            captured, own = floats
            constants_of_trace = _merged(is_captured, captured, constants)
            arrays_BC = _merged(is_float, own, fixed)
            found = jax.core.eval_jaxpr(traced.jaxpr, constants_of_trace, *arrays_BC)
            costs_BC, others = jax.tree.unflatten(tree, found)
            return weighted_sum(costs_BC, weights_BC), (costs_BC, others)

        total = _with_gradient(cost, length)
        sum_, others = total((captured, floats), fixed, weights_BL)
        return sum_, jax.lax.stop_gradient(others)


def _with_gradient(cost: Callable[..., Any], length: int) -> Callable[..., Any]:
    """Return the sum of a cost over chunks, whose gradient is computed with it.

    Args:
      cost: From ((captured, chunks of floats), chunks of other arrays, weights) to the weighted sum
        and (the cost of each position, others).
      length: Positions in a chunk.
    """

    def cut(own: Any, fixed: Any, weights_BL: jax.Array) -> Any:
        num_chunks = -(-weights_BL.shape[1] // length)
        padding = num_chunks * length - weights_BL.shape[1]

        def padded(array_BL: jax.Array, mode: str) -> jax.Array:
            widths = [(0, 0), (0, padding), *[(0, 0)] * (array_BL.ndim - 2)]
            return _split(jnp.pad(array_BL, widths, mode=mode), num_chunks)

        # The last position is repeated, with weight 0. Zeros would do for the sum, but a function
        # need not have a finite derivative there.
        arrays = jax.tree.map(lambda x: padded(x, "edge"), (own, fixed))
        return (*arrays, padded(weights_BL, "constant"))

    @jax.custom_vjp
    def total(floats: Any, fixed: Any, weights_BL: jax.Array) -> Any:
        captured, own = floats

        def body(carry: None, chunk: Any) -> Any:
            own, fixed, weights_BC = chunk
            value, (_, others) = cost((captured, own), fixed, weights_BC)
            return carry, (value, others)

        chunks = cut(own, fixed, weights_BL)
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
        chunks = cut(own, fixed, weights_BL)
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


def _by_kind(arrays: Sequence[Any]) -> tuple[list[Any], list[Any], list[bool]]:
    """Return the arrays of floats, the others, and which of them all are of floats."""
    is_float = [bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact)) for x in arrays]
    pairs = list(zip(arrays, is_float, strict=True))
    return [x for x, known in pairs if known], [x for x, known in pairs if not known], is_float


def _merged(is_first: Sequence[bool], first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Undo `_by_kind`."""
    sources = {True: iter(first), False: iter(second)}
    return [next(sources[known]) for known in is_first]


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
