"""Gradients over a batch that is cut into microbatches, the same as those over the whole batch.

Numerators are differentiated and summed; the caller divides once, by the weight of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.parallel import current_layout

Arrays = Mapping[str, jax.Array]
Batch = Mapping[str, jax.Array]
Numerator = Callable[..., tuple[jax.Array, Any]]
Kinds: TypeAlias = Mapping[str, Any] | None


def additive_gradient(
    numerator: Numerator,
    parameters: Arrays,
    batch: Batch,
    accumulation: int,
    kinds: Kinds = None,
    axes: Sequence[str] = (),
) -> tuple[Any, dict[str, jax.Array]]:
    r"""Return sums and gradient of a loss that is a sum over rows: $\sum_a \nabla_\theta n(B_a)$.

    Args:
      numerator: From (parameters, part of the batch) to the loss's numerator and the task's sums.
      parameters: Parameters to differentiate with respect to, by name.
      batch: Entries with the global batch as leading dimension.
      accumulation: Number of microbatches.
      kinds: Type that the gradient of each parameter is summed in; None means the dtype of the
        parameter but not below float32.
      axes: Mesh axes over which each device adds up the gradient of its own rows first, so that
        it is reduced once and not for each microbatch; see `ActivationLayout.row_axes`. The task's
        sums must then be sums of arrays, without `LossSums.updates`.

    Returns:
      The sums of the whole batch, and the gradient by name, of the shapes of the parameters, in the
      types that it is summed in.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import program
      >>> def numerator(parameters, batch):
      ...     loss = jnp.sum(parameters["w"] * batch["x"])
      ...     return loss, batch["x"].shape[0]
      >>> parameters, batch = {"w": jnp.float32(2.0)}, {"x": jnp.arange(4.0)}
      >>> rows, gradient = program.additive_gradient(numerator, parameters, batch, accumulation=2)
      >>> print(rows, gradient["w"])
      4 6.0
    """
    differentiate, held = jax.grad(numerator, has_aux=True), _holder(kinds)
    if accumulation == 1:  # without a loop, whose carry would hold the gradient a second time
        gradient, sums = differentiate(parameters, batch)
        return sums, held(gradient)

    def of_rows(parameters: Arrays, batch: Batch) -> tuple[Any, Any]:
        parts = cut(batch, accumulation)
        return _summed(lambda part: differentiate(parameters, part), parts, held)

    return _on_shards(of_rows, parameters, batch, axes)


def counted_gradient(
    numerator: Numerator,
    statistics: Callable[[Arrays, Batch], Any],
    parameters: Arrays,
    batch: Batch,
    accumulation: int,
    kinds: Kinds = None,
    axes: Sequence[str] = (),
) -> tuple[Any, dict[str, jax.Array]]:
    r"""Return sums and gradient of a loss whose rows see each other through counts.

    With counts $S = (s(\theta, B_1), ..., s(\theta, B_A))$, which have no derivative, the gradient
    of the loss $\sum_a n(\theta, S, B_a)$ is $\sum_a \partial_\theta n(\theta, S, B_a)$: a forward
    pass for the counts, and then the passes of an additive loss.

    Args:
      numerator: From (parameters, part, counts of all parts) to the loss's numerator and sums.
      statistics: From (parameters, part) to a pytree of arrays.
      parameters: Parameters to differentiate with respect to, by name.
      batch: Entries with the global batch as leading dimension.
      accumulation: Number of microbatches.
      kinds: As for `additive_gradient`.
      axes: As for `additive_gradient`.

    Returns:
      The sums of the whole batch, and the gradient by name, as of `additive_gradient`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import program
      >>> def statistics(parameters, batch):
      ...     return {"rows": jnp.float32(batch["x"].shape[0])}
      >>> def numerator(parameters, batch, counts):
      ...     loss = jnp.sum(parameters["w"] * batch["x"]) / jnp.sum(counts["rows"])
      ...     return loss, batch["x"].shape[0]
      >>> parameters, batch = {"w": jnp.float32(2.0)}, {"x": jnp.arange(4.0)}
      >>> rows, gradient = program.counted_gradient(
      ...     numerator, statistics, parameters, batch, accumulation=2
      ... )
      >>> print(rows, gradient["w"])
      4 1.5
    """
    differentiate, held = jax.grad(numerator, has_aux=True), _holder(kinds)

    def of_rows(parameters: Arrays, batch: Batch) -> tuple[Any, Any]:
        parts = cut(batch, accumulation)
        of_all = _of_all(statistics, parameters, parts, axes)
        # The counts enter as a constant of the derivative. That drops no term: a count is piecewise
        # constant in the parameters.
        return _summed(lambda part: differentiate(parameters, part, of_all), parts, held)

    return _on_shards(of_rows, parameters, batch, axes)


def coupled_gradient(
    numerator: Numerator,
    statistics: Callable[[Arrays, Batch], Any],
    parameters: Arrays,
    batch: Batch,
    accumulation: int,
    kinds: Kinds = None,
    axes: Sequence[str] = (),
) -> tuple[Any, dict[str, jax.Array]]:
    r"""Return sums and gradient of a loss whose rows see each other through statistics.

    With $S = (s(\theta, B_1), ..., s(\theta, B_A))$ and the loss $\sum_a n(\theta, S, B_a)$,

    $$ g = \sum_a \partial_\theta n(\theta, S, B_a)
         + \sum_a \lambda_a\, \partial_\theta s(\theta, B_a), \qquad
       \lambda_a = \sum_b \partial_{S_a} n(\theta, S, B_b), $$

    in three passes over the microbatches, each of which holds the activations of one at a time:
    the statistics, the two derivatives of the loss given the statistics, and the statistics pulled
    back along $\lambda$. That is three times the forward and twice the backward pass of a loss.

    Args:
      numerator: From (parameters, part, statistics of all parts) to the loss's numerator and sums.
      statistics: From (parameters, part) to a pytree of floating point arrays.
      parameters: Parameters to differentiate with respect to, by name.
      batch: Entries with the global batch as leading dimension.
      accumulation: Number of microbatches.
      kinds: As for `additive_gradient`.
      axes: As for `additive_gradient`.

    Returns:
      The sums of the whole batch, and the gradient by name, as of `additive_gradient`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import program
      >>> def statistics(parameters, batch):
      ...     return {"mean": jnp.sum(parameters["w"] * batch["x"])}
      >>> def numerator(parameters, batch, found):
      ...     centered = parameters["w"] * batch["x"] - jnp.sum(found["mean"])
      ...     return jnp.sum(centered**2), batch["x"].shape[0]
      >>> parameters, batch = {"w": jnp.float32(1.0)}, {"x": jnp.arange(4.0)}
      >>> rows, gradient = program.coupled_gradient(
      ...     numerator, statistics, parameters, batch, accumulation=2
      ... )
      >>> print(rows, gradient["w"])
      4 172.0

    Source: Gao et al. 2021, arXiv:2101.06983, section 3 (the pull-back, for contrastive losses).
    """
    # Differentiating through all microbatches at once would be simpler and as right, but would
    # keep the activations of all of them, which is what cutting the batch is to avoid. The chain
    # rule is therefore applied by hand at S, the only path by which microbatches see each other.
    differentiate = jax.grad(numerator, argnums=(0, 2), has_aux=True)
    held = _holder(kinds)

    def of_rows(parameters: Arrays, batch: Batch) -> tuple[Any, Any]:
        # First pass: S, without derivatives.
        parts = cut(batch, accumulation)
        of_all = _of_all(statistics, parameters, parts, axes)
        # Second pass: for each b the direct term, and the cotangent of all of S, [A, ...]. Their
        # sums over b are the first sum of g, and lambda. Argument 0 is differentiated with S held
        # fixed.
        sums, (direct, cotangents) = _summed(
            lambda part: differentiate(parameters, part, of_all),
            parts,
            lambda pair: (held(pair[0]), _wide(pair[1])),
        )
        # Of the parts of all devices each keeps the lambda of its own.
        if axes:
            cotangents = jax.lax.psum_scatter(cotangents, axes, tiled=True)

        # Third pass: the scan takes one microbatch and its own lambda_a at a time, computes its
        # statistics again, and adds their pull-back to the gradient, which is the carry.
        def pull(total: Any, each: Any) -> tuple[Any, None]:
            part, cotangent = each
            own, pull_back = jax.vjp(lambda p: statistics(p, part), parameters)
            # Lambda was summed in float32; a cotangent must have the type of its primal.
            cotangent = jax.tree.map(lambda c, x: c.astype(x.dtype), cotangent, own)
            return jax.tree.map(jnp.add, total, held(pull_back(cotangent)[0])), None

        # It starts from the first sum of g, so that no second array of its size is held.
        return sums, jax.lax.scan(pull, direct, (parts, cotangents))[0]

    return _on_shards(of_rows, parameters, batch, axes)


def cut(batch: Batch, accumulation: int) -> dict[str, jax.Array]:
    """Cut a batch into microbatches, [B, ...] -> [A, B / A, ...].

    Args:
      batch: Entries with the global batch as leading dimension.
      accumulation: Number of microbatches, A.
    """

    def microbatches(x: jax.Array) -> jax.Array:
        # Microbatch a gets the rows a, a + A, a + 2A, ...: each device, which holds B / devices
        # consecutive rows, then has an equal part of every microbatch among its own rows. Blocks of
        # consecutive rows would put a microbatch on a few devices, and each step would move rows.
        return x.reshape(x.shape[0] // accumulation, accumulation, *x.shape[1:]).swapaxes(0, 1)

    return {name: microbatches(array) for name, array in batch.items()}


def _summed(
    gradient_and_sums: Callable[[Batch], Any], parts: Batch, held: Callable[[Any], Any]
) -> tuple[Any, Any]:
    # The carry is (the task's sums, the gradient), in the types that they are summed in; nothing
    # is stacked. A gradient is widened before it is added: the sum of A gradients in bfloat16
    # would lose what each of them adds, once the total is 2^8 times as large.
    def add(total: Any, part: Batch) -> tuple[Any, None]:
        gradient, sums = gradient_and_sums(part)
        return (total[0] + sums, jax.tree.map(jnp.add, total[1], held(gradient))), None

    # A scan needs its carry before the first iteration. Zeros of the right shapes come from an
    # abstract evaluation; to compute the first microbatch outside of the loop would trace and
    # compile the model a second time.
    one = {name: array[0] for name, array in parts.items()}
    shapes = jax.eval_shape(gradient_and_sums, one)
    gradient, sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, (sums, held(gradient)), parts)[0]


def _of_all(
    statistics: Callable[[Arrays, Batch], Any],
    parameters: Arrays,
    parts: Batch,
    axes: Sequence[str],
) -> Any:
    """Return the statistics of all parts, without derivatives."""
    # `map` and not `vmap`: one microbatch at a time has activations in memory.
    own = jax.lax.map(lambda part: statistics(parameters, part), parts)
    # A device's rows of a microbatch are a part like any other: there are just more of them.
    return jax.lax.all_gather(own, axes, tiled=True) if axes else own


def _on_shards(
    of_rows: Callable[[Arrays, Batch], tuple[Any, Any]],
    parameters: Arrays,
    batch: Batch,
    axes: Sequence[str],
) -> tuple[Any, Any]:
    """Return sums and gradient of a batch whose rows some mesh axes split, each on its devices."""
    layout = current_layout()
    if layout is None or not axes:
        return of_rows(parameters, batch)

    def on_shard(parameters: Arrays, batch: Batch) -> tuple[Any, Any]:
        return jax.lax.psum(of_rows(parameters, batch), axes)

    # `check_vma=False`: with checks, the parameters would have to be marked as varying, or JAX
    # would sum the cotangent of each use of them over the axes, which is what is to be avoided.
    rows, whole = PartitionSpec(tuple(axes)), PartitionSpec()
    run = layout.shard_map(on_shard, axes, (whole, rows), whole, check_vma=False)
    return run(parameters, batch)  # type: ignore[no-any-return]


def _holder(kinds: Kinds) -> Callable[[Any], Any]:
    """Return a function that casts gradients to the types that they are summed in."""
    if kinds is None:
        return _wide
    return lambda gradient: {name: x.astype(kinds[name]) for name, x in gradient.items()}


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)
