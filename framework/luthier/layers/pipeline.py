"""Pipeline parallelism: schedules, the ticks of a pipeline, and a stack that runs in one.

The layers are cut into `stages x repeats` equal blocks of consecutive layers; block `repeat x
stages + stage` lives on its stage. A microbatch visits the stages in turn, and comes round to the
first one again for the next repeat.

Shapes: S stages, M microbatches, R repeats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import BadInput, Problem
from luthier.layers.experts.routing import carrying
from luthier.layers.parameters import AXES, wide
from luthier.layers.remat import FullRemat, NoRemat, Remat
from luthier.layers.stacks import (
    Apply,
    Cycle,
    MakeLayer,
    Scanned,
    Turns,
    num_layers_of,
    scan_turns,
    with_rows,
)
from luthier.parallel import ActivationLayout, constrain, current_layout
from luthier.parallel.specs import resolve


class PipelineSchedule(Protocol):
    """Decides the work of the first stage; stage s does the same s ticks later.

    Fresh microbatches start in their order, and a microbatch comes round again after S ticks.
    """

    @property
    def repeats(self) -> int:
        """Number of times that a microbatch visits each stage."""

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick.

        Args:
          tick: Number of the tick, or an array of such.
          stages: S.

        Returns:
          Two integers, or arrays of the shape of `tick`.
        """


@dataclasses.dataclass(frozen=True)
class GPipe:
    """Every microbatch goes through once: a stage has one block of consecutive layers.

    Example:
      >>> from luthier import layers
      >>> layers.bubble_fraction(layers.GPipe(), stages=4, microbatches=13)
      0.1875

    Source: Huang et al. 2018, arXiv 1811.06965, section 2.3.
    """

    @property
    def repeats(self) -> int:
        """Number of times that a microbatch visits each stage: once."""
        return 1

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick.

        Args:
          tick: Number of the tick, or an array of such.
          stages: Number of stages, S.

        Returns:
          Two integers, or arrays of the shape of `tick`.
        """
        return tick, tick * 0


@dataclasses.dataclass(frozen=True)
class Circular:
    """Microbatches go round several times: a smaller bubble for more communication.

    Groups of S microbatches go through all repeats before the next group starts, so that a
    microbatch is back at the first stage just when its turn comes, and none is ever stored.

    Args:
      repeats: Number of times that a microbatch visits each stage, R.

    Example:
      >>> from luthier import layers
      >>> layers.bubble_fraction(layers.Circular(repeats=4), stages=4, microbatches=13)
      0.05454545454545454

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (interleaved schedule).
    """

    RANGES: ClassVar[dict[str, str]] = {"repeats": "1 <= x"}
    repeats: int = 2

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick.

        Args:
          tick: Number of the tick, or an array of such.
          stages: Number of stages, S.

        Returns:
          Two integers, or arrays of the shape of `tick`.
        """
        # Plain arithmetic, for tracers and for NumPy arrays (plans, tests) alike.
        turn, place = tick // stages, tick % stages
        return (turn // self.repeats) * stages + place, turn % self.repeats


def num_ticks(schedule: PipelineSchedule, stages: int, microbatches: int) -> int:
    """Return the number of ticks of a pipeline: `M R + S - 1`.

    Args:
      schedule: The schedule.
      stages: S.
      microbatches: M.

    Returns:
      The number of ticks, each the time of one stage for one microbatch.

    Example:
      >>> from luthier import layers
      >>> layers.num_ticks(layers.GPipe(), stages=4, microbatches=8)
      11
    """
    return microbatches * schedule.repeats + stages - 1


def bubble_fraction(schedule: PipelineSchedule, stages: int, microbatches: int) -> float:
    """Return the share of the ticks in which a stage has nothing to do: `(S-1) / (M R + S - 1)`.

    Args:
      schedule: The schedule.
      stages: S.
      microbatches: M.

    Returns:
      A number from 0 to 1.

    Example:
      >>> from luthier import layers
      >>> layers.bubble_fraction(layers.GPipe(), stages=4, microbatches=13)
      0.1875

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2, there over the ticks with work.
    """
    return (stages - 1) / num_ticks(schedule, stages, microbatches)


# The ticks of a pipeline: one program for all stages, in a `shard_map` over the axis `stage`.
#
# Each stage keeps M/S of the microbatches. At each tick a stage works on one, and hands it to the
# next stage; the kept ones move towards the first stage, where they start, as others start before
# them. A microbatch that leaves the last stage takes the place of one that has started. So no stage
# ever holds all microbatches, neither before nor after they ran.
#
# In a bubble a stage computes, like all others in the one program, but on rows that mean nothing.
# Its results are not kept, and no gradient comes of them, even if all of them are NaN.
#
# Backward, the scan runs the ticks in reverse order, and each `ppermute` the other way: JAX derives
# the backward pipeline. Schedules that interleave both passes (1F1B) are not derivatives of a scan.
#
# Shapes: S stages, M microbatches, R repeats, K turns of layers in a block, B rows.
#
# Source: Huang et al. 2018, arXiv 1811.06965, section 2.3; Xu et al. 2021, arXiv 2105.04663,
#   section 3.3 (a pipeline as one program for all stages).

AXIS = "stage"
"""The mesh axis of pipelines."""

# (block, number of the block, carry, rows) -> (carry, what the layers give)
Stage = Callable[[Any, jax.Array, Any, Any], tuple[Any, Any]]


def run(
    stage: Stage, blocks: Any, carry: Any, rows: Any, schedule: PipelineSchedule, microbatches: int
) -> tuple[Any, Any]:
    """Run all microbatches through all blocks, inside a `shard_map` over the stages.

    Args:
      stage: Applies a block of layers; traced inside of the pipeline.
      blocks: A pytree of arrays [R, K, ...], those of this stage.
      carry: A pytree of arrays [M/S, B/M, ...], those of this stage.
      rows: A pytree of arrays [M, B/M, ...], of all stages.
      schedule: The work of each stage at each tick.
      microbatches: M.

    Returns:
      The last carry, sharded as the first, and the outputs of the layers: for every block of this
      stage the sum over microbatches, [R, ...].
    """
    # Static: S, R, M and the number of ticks. Traced: the tick and the number of this stage, so
    # that one body serves all stages and all ticks. The carry of the scan is
    #   arriving  the microbatch that the previous stage has handed over,
    #   stream    the M/S microbatches that this stage keeps, not yet started or finished,
    #   gifts     outputs of the layers, summed over the microbatches so far, [R, ...].
    S, R, M = jax.lax.axis_size(AXIS), schedule.repeats, microbatches
    number, kept = jax.lax.axis_index(AXIS), M // S
    forward = [(s, (s + 1) % S) for s in range(S)]
    backward = [(s, (s - 1) % S) for s in range(S)]
    carry = jax.tree.map(_split_rows, carry)
    idle = filling(_at(carry, number * 0))

    def tick(state: Any, time: jax.Array) -> tuple[Any, None]:
        # Stage s does at time t what the first stage did at t - s. So these are the microbatch (and
        # repeat) that the first stage takes up now, the one that leaves the last stage after this
        # tick, and that of this stage.
        arriving, stream, gifts = state
        entering, round_entering = schedule.work(time, S)
        leaving, round_leaving = schedule.work(time - (S - 1), S)
        microbatch, repeat = schedule.work(time - number, S)
        works = (time >= number) & (microbatch < M)

        # The slot `entering % kept` of every stage moves one stage towards the first whenever the
        # first one starts a fresh microbatch of it, so what it needs next is always its own.
        waiting = _at(stream, entering % kept)
        fresh = round_entering == 0
        x = _where((number == 0) & fresh, waiting, arriving)
        x = _where(works, x, idle)
        # In a bubble `repeat` and `microbatch` may be out of range. `_at` then takes some other
        # block and rows, which do as well as any.
        block, of_rows = _gate(works, (_at(blocks, repeat), _at(rows, microbatch)))
        y, gift = stage(block, repeat * S + number, x, of_rows)

        # Collectives run on all stages at every tick, outside of any condition: a stage that left
        # one out would make the others wait for ever. A select decides if the result is used.
        moved = _where(fresh, jax.lax.ppermute(waiting, AXIS, backward), waiting)
        stream = _put(stream, entering % kept, moved)
        # A finished microbatch takes the slot of the one that started S - 1 places after it. In the
        # last stage that slot holds, by the way round, the one that the first stage has started:
        # nobody needs it any more.
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
    # The microbatch of place j has been put where the one entering S - 1 ticks later was. Its stage
    # is right already: slots move on while the last microbatches finish, so that each result has
    # moved on to the stage from which its microbatch came.
    return jax.tree.map(lambda x: jnp.roll(x, -(S - 1), axis=0), stream), gifts


def filling(microbatch: Any) -> Any:
    """Return the input of a stage in a bubble: rows of the batch.

    Any input would do, since the results are not used; but on real rows layers stay finite, so that
    NaN checks (`jax_debug_nans`) raise no false alarm.

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
    """Let no gradient through, be it NaN, in a bubble."""

    # Results of a bubble are not selected, so their cotangents are zero. But zero times the
    # derivative of a layer is NaN where that derivative is infinite or NaN, and weights and rows
    # would get it: their gradients are sums over all ticks. The transpose of this select replaces
    # it by zero.
    def gate(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return jnp.where(is_open, x, jax.lax.stop_gradient(x))

    return jax.tree.map(gate, tree)


def _split_rows(x: jax.Array) -> jax.Array:
    """Shard the rows of every microbatch as those of a batch."""
    return constrain(x, (None, "batch", *(None,) * (x.ndim - 2)))


# A stack whose layers are split over the devices along the mesh axis `stage`.
#
# Shapes: S stages, M microbatches, R repeats, K turns of layers in a block, B rows.

T = TypeVar("T")

_OF_BLOCKS = PartitionSpec(None, AXIS)


@dataclasses.dataclass(frozen=True)
class Pipelined:
    """Layers in a pipeline: each stage holds a share of them, and microbatches pass through.

    Parameters are those of `Scanned`, under the same names; the rule `layers -> stage` shards them.
    Without several devices along `stage`, and where layers have state of their own, such as caches,
    the layers run one after the other, as in `Scanned`.

    Args:
      microbatches: Number of parts that the rows are cut into, M: a multiple of the stages.
      schedule: The work of each stage at each tick, `GPipe` or `Circular`.
      remat: Rematerialization policy of a layer.
      stage_remat: Rematerialization policy of a stage for one microbatch, on top of `remat`.
      gather: When a stage gathers the parameters that fsdp splits: by `tick` in each of its layers,
        for every microbatch, in the forward and in the backward pass; or once a `step`, which moves
        them once each way, and holds those of the stage and their gradient whole, in float32.

    Raises:
      BadInput: `gather` is another word.

    Source: Huang et al. 2018, arXiv 1811.06965, section 2.3 (microbatches, remat by stages).
    """

    RANGES: ClassVar[dict[str, str]] = {"microbatches": "1 <= x"}
    microbatches: int
    schedule: PipelineSchedule = GPipe()
    remat: Remat = NoRemat()
    stage_remat: Remat = FullRemat()
    gather: str = "tick"

    def __post_init__(self) -> None:
        if self.gather not in ("tick", "step"):
            remedy = "write tick or step"
            raise BadInput(Problem(f"nothing is gathered by {self.gather!r}", "gather", "", remedy))

    def create(
        self, make_layer: MakeLayer | Sequence[MakeLayer], num_layers: int, rngs: nnx.Rngs
    ) -> nnx.Module:
        """Make the layers as `Scanned.create` does.

        Args:
          make_layer: Makes a layer, given its `rngs`; several make layers by turns.
          num_layers: Number of layers.
          rngs: Supplies one key.

        Returns:
          The layers.
        """
        return Scanned().create(make_layer, num_layers, rngs)

    def init_own(self, layers: Any, function: Callable[[Any], Any]) -> Any:
        """Make the state of each layer; see `Scanned.init_own`.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer)`, gives a pytree of arrays.

        Returns:
          The pytree, with a leading layers axis.
        """
        return Scanned().init_own(layers, function)

    @carrying
    def apply(
        self, layers: Any, function: Apply, carry: T, own: Any = None, rows: Any = None
    ) -> tuple[T, Any]:
        """Thread `carry` through the layers, a microbatch at a time; see `Scanned.apply`.

        Args:
          layers: The layers, as `create` returns them.
          function: Called as `function(layer, index, carry, own)`, with `rows` as a fifth argument
            where they are given; it gets those of a microbatch.
          carry: A pytree of arrays [B, ...].
          own: The state of each layer, such as its cache, or None.
          rows: A pytree of arrays [B, ...], or None.

        Returns:
          The last carry, and what the layers gave, which must be sums over rows: those of all
          microbatches, stacked, or a `Turns` for layers by turns.

        Raises:
          BadInput: Layers, microbatches or rows cannot be split; all problems at once.
        """
        # A pipeline would have to cut the state of layers (caches in decoding) into microbatches;
        # with such state the layers run as a scan.
        layout = current_layout()
        if layout is None or layout.sizes[AXIS] == 1 or own is not None:
            return Scanned(self.remat).apply(layers, function, carry, own, rows)
        # Layers after the last whole turn are always an error: `left` is smaller than the number of
        # kinds, so that the layers do not divide. Where there is no whole turn, `kinds` is empty;
        # the `max` then spares `problems` a division by zero, and it refuses these layers as well.
        kinds = list(layers.cycle) if isinstance(layers, Cycle) else [layers]
        left = len(layers.rest) if isinstance(layers, Cycle) else 0
        num_turns = num_layers_of(kinds[0]) if kinds else 0
        problems = self.problems(
            num_turns * len(kinds) + left,
            max(len(kinds), left),
            jax.tree.leaves(carry)[0].shape[0],
            layout.sizes[AXIS],
        )
        if problems:
            raise BadInput(problems)
        # Outputs come as [R, S, K, ...], in the order of the layers.
        carry, given = self._pipe(layout, kinds, function, carry, rows)
        given = jax.tree.map(lambda x: x.reshape(num_turns, *x.shape[3:]), given)
        return carry, Turns(given, ()) if isinstance(layers, Cycle) else given[0]

    def problems(
        self, num_layers: int, num_kinds: int, num_rows: int, stages: int
    ) -> list[Problem]:
        """Return the problems of an uneven split; paths are those of the settings of this stack.

        Args:
          num_layers: Layers of the stack.
          num_kinds: Number of kinds of layers that take turns.
          num_rows: B.
          stages: S, 2 or more.

        Returns:
          The problems; none if everything divides.
        """
        # A block is a whole number of turns, since all blocks run one program: stages x repeats
        # blocks, each of a layer of every kind at least. Plans ask this without devices.
        M, R, found = self.microbatches, self.schedule.repeats, []
        blocks = stages * R * num_kinds
        if num_layers % blocks:
            cut = f"{stages} stages"
            cut += f" x {R} repeats" if R > 1 else ""
            cut += f" x {num_kinds} kinds of layers" if num_kinds > 1 else ""
            what = f"{num_layers} layers cannot be split evenly over {cut}"
            remedy = f"use a multiple of {blocks} layers, or fewer stages"
            found.append(Problem(what, "", remedy=remedy + (" or repeats" if R > 1 else "")))
        if M % stages:
            what = f"{M} microbatches cannot be split evenly over {stages} stages"
            remedy = f"set microbatches={max(1, round(M / stages)) * stages}"
            found.append(Problem(what, "microbatches", remedy=remedy))
        if num_rows % M:
            what = f"{num_rows} rows cannot be cut into {M} microbatches"
            found.append(Problem(what, "microbatches", remedy=f"use a multiple of {M} rows"))
        return found

    def _pipe(
        self, layout: ActivationLayout, kinds: list[Any], function: Apply, carry: T, rows: Any
    ) -> tuple[T, Any]:
        """Cut rows into microbatches and layers into blocks, and run them."""
        # Manual over `stage`, and over the axes that split rows alone, so that gradients are summed
        # over these once a step. All other mesh axes stay with the compiler, so layers in a stage
        # are split by tensor and fsdp as always.
        S, M, R = layout.sizes[AXIS], self.microbatches, self.schedule.repeats
        graphdefs, states = zip(*(nnx.split(kind) for kind in kinds), strict=True)

        def stage(block: Any, number: jax.Array, carry: T, rows: Any) -> tuple[T, Any]:
            block, rows = _cast(block, states), _cast(rows, all_rows)
            # Layers count through the whole stack, for their dropout: block `number` = repeat S +
            # stage begins after `number` blocks of K turns of all kinds.
            layers = [nnx.merge(*part) for part in zip(graphdefs, block, strict=True)]
            first = number.astype(jnp.uint32) * (len(layers) * num_layers_of(layers[0]))
            bound, nothing = with_rows(function, rows), (None,) * len(layers)
            return scan_turns(layers, bound, carry, nothing, remat=self.remat, first=first)

        def on_stage(blocks: Any, carry: Any, rows: Any) -> tuple[Any, Any]:
            blocks, carry = jax.tree.map(lambda x: x[:, 0], blocks), jax.tree.map(_only, carry)
            wrapped = self.stage_remat.wrap(stage, scanned=True)
            carry, given = run(wrapped, blocks, carry, rows, self.schedule, M)
            given = jax.lax.psum(given, split) if split else given  # sums over rows, by contract
            return jax.tree.map(lambda x: x[None], carry), jax.tree.map(lambda x: x[:, None], given)

        # [layers, ...] -> [R, S, K, ...]: block r S + s belongs to stage s, and the dimension S is
        # the one that the mesh splits. Rows are not split over stages, since every stage reads the
        # positions of every microbatch. So their cotangents are sums over ticks, as those of the
        # parameters, and both are widened; each part of the carry is used once, and is not. Of
        # `all_rows`, `stage` reads only the types.
        all_rows = rows
        blocks = jax.tree.map(lambda x: x.reshape(R, S, -1, *x.shape[1:]), _widened(states))
        blocks, used = _placed(blocks, layout, self.gather)
        split = layout.row_axes(jax.tree.leaves(carry)[0].shape[0] // M, {AXIS, *used})
        parts = jax.tree.map(lambda x: _dealt(x, S, M), (carry, _widened(rows)))
        rows = jax.tree.map(lambda x: x.reshape(M, *x.shape[2:]), parts[1])
        # `check_vma=False`, because layers with a checked `shard_map` of their own (for attention
        # or experts) cannot be rematerialized within a checked one in jax 0.10: JAX then splits
        # their residuals over stages once more.
        on_stages = PartitionSpec(AXIS, None, split or None)
        in_specs = (_OF_BLOCKS, on_stages, PartitionSpec(None, split or None))
        out_specs, axes = (on_stages, _OF_BLOCKS), (AXIS, *split)
        pipe = layout.shard_map(on_stage, axes, in_specs, out_specs, check_vma=False)
        carry, given = pipe(blocks, parts[0], rows)
        return jax.tree.map(_gathered, carry), given


def _placed(blocks: Any, layout: ActivationLayout, gather: str) -> tuple[Any, set[str]]:
    """Place the parameters of the stages for the ticks.

    Args:
      blocks: Variables [R, S, K, ...].
      layout: The mesh and its rules.
      gather: `step` to gather them before the ticks over the axes that split the batch. Axes that
        also split the same dimension of activations, such as `tensor` and `expert`, keep splitting
        it. The transpose of the gather places the gradient once, after the ticks.

    Returns:
      The variables, and the mesh axes that split any of them.
    """
    of_batch = set(layout.mesh_axes("batch")) if gather == "step" else set()
    used: set[str] = set()

    def placed(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata().get(AXES)
        if axes is None:
            return variable  # of a module that declares none: it is whole already
        own = resolve(axes[1:], dict(layout.parameters), layout.sizes)
        entries = []
        for name, dimension in zip(axes[1:], own, strict=True):
            # Experts are split over an axis of the batch, and stay where they are.
            of_name = set() if name is None else set(layout.mesh_axes(name))
            kept = [axis for axis in dimension.mesh_axes if axis not in of_batch - of_name]
            entries.append(tuple(kept) or None)
            used.update(kept)
        if gather != "step":
            return variable
        sharding = NamedSharding(layout.mesh, PartitionSpec(None, AXIS, None, *entries))
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), variable)

    placed_blocks = jax.tree.map(placed, blocks, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return placed_blocks, used


def _dealt(x: jax.Array, stages: int, microbatches: int) -> jax.Array:
    """Deal rows to stages in blocks, and to the microbatches of a stage in turn.

    Where `stage` is the first of the mesh axes that split the batch, rows stay where they are.

    Args:
      x: [B, ...].
      stages: S.
      microbatches: M.

    Returns:
      [S, M/S, B/M, ...].
    """
    return x.reshape(stages, -1, microbatches // stages, *x.shape[1:]).swapaxes(1, 2)


def _gathered(x: jax.Array) -> jax.Array:
    """Undo `_dealt`."""
    return x.swapaxes(1, 2).reshape(-1, *x.shape[3:])


def _only(x: jax.Array) -> jax.Array:
    return x[0]


def _widened(tree: Any) -> Any:
    """Return a tree in float32 or wider, in which gradients over microbatches are summed."""
    # Parameters enter the scan once and are used in each tick, so their cotangents are summed by
    # the scan, in the type in which they entered. `stage` casts them back before layers see them.
    return jax.tree.map(lambda x: x.astype(wide(x.dtype)) if _is_real(x) else x, tree)


def _cast(tree: Any, like: Any) -> Any:
    """Undo `_widened`."""
    return jax.tree.map(lambda x, y: x.astype(y.dtype) if _is_real(x) else x, tree, like)


def _is_real(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
