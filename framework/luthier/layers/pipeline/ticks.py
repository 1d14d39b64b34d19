"""The ticks of a pipeline: one program for all stages, in a `shard_map` over the axis `stage`.

Each stage keeps M/S of the microbatches. At each tick a stage works on one, and hands it to the
next stage; the kept ones move towards the first stage, where they start, as others start before
them. What leaves the last stage takes the place of what has started.

In a bubble a stage works on nothing of meaning. Nothing of what it computes then is kept, and no
gradient comes of it, even if all of it is NaN.

Shapes: S stages, M microbatches, R repeats, K turns of layers in a block, B rows.

Source: Huang et al. 2018, arXiv 1811.06965, section 2.3; Xu et al. 2021, arXiv 2105.04663, section
  3.3 (a pipeline as one program for all stages).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from luthier.layers.pipeline.schedules import Schedule, num_ticks
from luthier.parallel import constrain

AXIS = "stage"
"""The mesh axis of pipelines."""

# (block, number of the block, carry, rows) -> (carry, what the layers give)
Stage = Callable[[Any, jax.Array, Any, Any], tuple[Any, Any]]


def run(
    stage: Stage, blocks: Any, carry: Any, rows: Any, schedule: Schedule, microbatches: int
) -> tuple[Any, Any]:
    """Run all microbatches through all blocks, inside a `shard_map` over the stages.

    Args:
      stage: Applies a block of layers; traced inside of the pipeline.
      blocks: A pytree of arrays [R, K, ...], those of this stage.
      carry: A pytree of arrays [M/S, B/M, ...], those of this stage.
      rows: A pytree of arrays [M, B/M, ...], of all stages.
      schedule: What a stage works on at each tick.
      microbatches: M.

    Returns:
      The last carry, laid out as the first, and what the layers gave: for every block of this stage
      the sum over microbatches, [R, ...].
    """
    S, R, M = jax.lax.axis_size(AXIS), schedule.repeats, microbatches
    number, kept = jax.lax.axis_index(AXIS), M // S
    forward = [(s, (s + 1) % S) for s in range(S)]
    backward = [(s, (s - 1) % S) for s in range(S)]
    carry = jax.tree.map(_laid_out, carry)
    idle = filling(_at(carry, number * 0))

    def tick(state: Any, time: jax.Array) -> tuple[Any, None]:
        arriving, stream, gifts = state
        entering, round_entering = schedule.work(time, S)
        leaving, round_leaving = schedule.work(time - (S - 1), S)
        microbatch, repeat = schedule.work(time - number, S)
        works = (time >= number) & (microbatch < M)

        waiting = _at(stream, entering % kept)
        fresh = round_entering == 0
        x = _where((number == 0) & fresh, waiting, arriving)
        x = _where(works, x, idle)
        block, of_rows = _gate(works, (_at(blocks, repeat), _at(rows, microbatch)))
        y, gift = stage(block, repeat * S + number, x, of_rows)

        moved = _where(fresh, jax.lax.ppermute(waiting, AXIS, backward), waiting)
        stream = _put(stream, entering % kept, moved)
        place = (leaving + S - 1) % kept
        done = (number == S - 1) & (round_leaving == R - 1) & (time >= S - 1)
        stream = _put(stream, place, _where(done, y, _at(stream, place)))
        gift = _where(works, gift, jax.tree.map(jnp.zeros_like, gift))
        gifts = jax.tree.map(lambda sum_R, x: sum_R.at[repeat].add(x), gifts, gift)
        return (jax.lax.ppermute(y, AXIS, forward), stream, gifts), None

    shapes = jax.eval_shape(stage, _at(blocks, number), number, idle, _at(rows, number))[1]
    gifts = jax.tree.map(lambda x: jnp.zeros((R, *x.shape), x.dtype), shapes)
    start = (idle, carry, gifts)
    times = jnp.arange(num_ticks(schedule, S, M))
    (_, stream, gifts), _ = jax.lax.scan(tick, start, times)
    # The microbatch of place j has been put where the one entering S - 1 ticks later was.
    return jax.tree.map(lambda x: jnp.roll(x, -(S - 1), axis=0), stream), gifts


def filling(microbatch: Any) -> Any:
    """Return what a stage computes on while it has nothing to do: rows of the batch.

    It might be anything, since nothing comes of it; but of these, layers make nothing that is not
    finite, which whoever looks for NaN would find.

    Args:
      microbatch: A carry of this stage's.
    """
    return jax.lax.stop_gradient(microbatch)


def _at(tree: Any, index: jax.Array) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree)


def _put(tree: Any, index: jax.Array, one: Any) -> Any:
    put = jax.lax.dynamic_update_index_in_dim
    return jax.tree.map(lambda x, y: put(x, y, index, 0), tree, one)


def _where(condition: jax.Array, then: Any, other: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), then, other)


def _gate(is_open: jax.Array, tree: Any) -> Any:
    """Let no gradient through, be it NaN, where a stage works on nothing."""

    def gate(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return jnp.where(is_open, x, jax.lax.stop_gradient(x))

    return jax.tree.map(gate, tree)


def _laid_out(x: jax.Array) -> jax.Array:
    """Share out the rows of every microbatch as those of a batch."""
    return constrain(x, (None, "batch", *(None,) * (x.ndim - 2)))
