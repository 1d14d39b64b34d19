"""K trials in one program: the training step over a leading lane axis, and the state that it takes.

Every lane has hoisted values, a batch and a step count of its own, so that nothing of a trial
depends on its lane or on its neighbours. A lane is loaded with another trial without compiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from luthier.errors import Problem, ValidationError
from luthier.program import Program
from luthier.program.program import Leaves, Values, vector_of
from luthier.sweep.gate import needed_bytes
from luthier.sweep.protocol import Lanes

Batch = Mapping[str, jax.Array]
LANE = "lane"


@dataclasses.dataclass(frozen=True)
class PackedProgram:
    """The compiled functions of K lanes; holds no arrays.

    Args:
      program: The program of one trial; of one device where lanes are shared out over devices.
      lanes: How lanes are computed.
      num_lanes: How many there are, K.
      step: From values [K], leaves [K, ...], K batches and active [K] to leaves and vectors [K, N].
      take: From leaves and a lane to the leaves of one trial.
      put: From leaves, the leaves of one trial and a lane to leaves.
      empty: Returns leaves of zeros.
      whole: The sharding of what every device holds whole.
      step_bytes: Bytes on one device that the compiled step needs, if the compiler tells.
    """

    program: Program
    lanes: Lanes
    num_lanes: int
    step: Callable[..., tuple[Leaves, jax.Array]]
    take: Callable[[Leaves, Any], Leaves]
    put: Callable[[Leaves, Leaves, Any], Leaves]
    empty: Callable[[], Leaves]
    whole: NamedSharding
    step_bytes: int | None


def compile_lanes(
    program: Program, lanes: Lanes, num_lanes: int, devices: Sequence[jax.Device]
) -> PackedProgram:
    """Compile the functions of K lanes; a second call returns the first one's.

    Args:
      program: The program of one trial.
      lanes: `vmap` computes all lanes at once, `map` one after another, `shard` shares them out
        over the devices, one after another on each.
      num_lanes: K; with `shard`, a multiple of the devices.
      devices: What the lanes are shared out over.

    Raises:
      ValidationError: The lanes cannot be shared out.
    """
    key = ("lanes", lanes, num_lanes)
    return program.once(key, lambda: _compile(program, lanes, num_lanes, devices))


def _compile(
    program: Program, lanes: Lanes, num_lanes: int, devices: Sequence[jax.Device]
) -> PackedProgram:
    mesh = program.mesh
    specs = [PartitionSpec(None, *p.spec) for p in program.placements.values()]
    if lanes == "shard":
        if num_lanes % len(devices):
            what = f"{num_lanes} lanes cannot be shared out over {len(devices)} devices"
            raise ValidationError(Problem(what, "packing.num_lanes"))
        mesh = jax.make_mesh((len(devices),), (LANE,), (AxisType.Auto,), devices=devices)
        specs = [PartitionSpec(LANE)] * len(specs)
    whole = NamedSharding(mesh, PartitionSpec())
    stacked = tuple(NamedSharding(mesh, spec) for spec in specs)
    abstract = tuple(
        jax.ShapeDtypeStruct((num_lanes, *leaf.shape), leaf.dtype, sharding=sharding)
        for leaf, sharding in zip(program.abstract_leaves, stacked, strict=True)
    )
    single = (
        tuple(whole for _ in specs)
        if lanes == "shard"
        else tuple(leaf.sharding for leaf in program.abstract_leaves)
    )

    def take(leaves: Leaves, lane: jax.Array) -> Leaves:
        return tuple(lax.dynamic_index_in_dim(x, lane, keepdims=False) for x in leaves)

    def put(leaves: Leaves, own: Leaves, lane: jax.Array) -> Leaves:
        pairs = zip(leaves, own, strict=True)
        return tuple(lax.dynamic_update_index_in_dim(x, y, lane, 0) for x, y in pairs)

    def empty() -> Leaves:
        return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in abstract)

    over = _over_lanes(program, lanes, mesh)
    values = tuple(_stack([value] * num_lanes, whole) for value in program.values())
    entries = {
        name: jax.ShapeDtypeStruct(
            entry.shape, entry.dtype, sharding=whole if lanes == "shard" else entry.sharding
        )
        for name, entry in program.batch.items()
    }
    active = jax.ShapeDtypeStruct((num_lanes,), jnp.bool_, sharding=whole)
    step = jax.jit(over, donate_argnums=1, out_shardings=(stacked, whole))
    lowered = step.lower(values, abstract, (entries,) * num_lanes, active)
    compiled = lowered.compile(program.compiler_options)
    return PackedProgram(
        program=program,
        lanes=lanes,
        num_lanes=num_lanes,
        step=compiled,
        take=jax.jit(take, out_shardings=single),
        put=jax.jit(put, donate_argnums=0, out_shardings=stacked),
        empty=jax.jit(empty, out_shardings=stacked),
        whole=whole,
        step_bytes=needed_bytes(compiled),
    )


def _over_lanes(program: Program, lanes: Lanes, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Return the step over the lane axis."""
    num_scalars = len(program.scalar_names)

    def one(values: Values, leaves: Leaves, batch: Batch) -> tuple[Leaves, jax.Array]:
        leaves, scalars = program.step(values, leaves, batch)
        return leaves, vector_of(scalars)

    def rest(values: Values, leaves: Leaves, batch: Batch) -> tuple[Leaves, jax.Array]:
        return leaves, jnp.zeros(num_scalars, jnp.result_type(float))

    def each(values: Values, leaves: Leaves, batch: Batch, active: jax.Array) -> Any:
        # A lane without a trial costs nothing here; under vmap it is computed with the others.
        return lax.map(
            lambda x: lax.cond(x[0], one, rest, *x[1]), (active, (values, leaves, batch))
        )

    def stacked(batches: Sequence[Batch]) -> Batch:
        return jax.tree.map(lambda *entries: jnp.stack(entries), *batches)

    if lanes == "vmap":
        return lambda values, leaves, batches, active: jax.vmap(one)(
            values, leaves, stacked(batches)
        )
    if lanes == "map":
        return lambda values, leaves, batches, active: each(
            values, leaves, stacked(batches), active
        )
    spec = PartitionSpec(LANE)
    shared = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return lambda values, leaves, batches, active: shared(values, leaves, stacked(batches), active)


class Pack:
    """The states of K trials, side by side.

    Args:
      packed: Their compiled functions.
    """

    def __init__(self, packed: PackedProgram):
        self.packed = packed
        self._leaves = packed.empty()
        self._lane_values: list[Values] = [packed.program.values()] * packed.num_lanes
        self._values: Values | None = None

    def slot(self, lane: int) -> LaneSlot:
        """Return the slot of a lane."""
        return LaneSlot(self, lane)

    def step(self, batches: Mapping[int, Batch]) -> jax.Array:
        """Take a step in lanes; the others stay as they are, or hold nothing of worth.

        Args:
          batches: The batch of each lane that has a trial.

        Returns:
          The scalars of every lane, [K, N]; read them when they are needed.
        """
        packed = self.packed
        if self._values is None:
            columns = zip(*self._lane_values, strict=True)
            self._values = tuple(_stack(column, packed.whole) for column in columns)
        some = next(iter(batches.values()))
        rows = tuple(self._placed(batches.get(i, some)) for i in range(packed.num_lanes))
        active = jax.device_put(
            np.array([i in batches for i in range(packed.num_lanes)]), packed.whole
        )
        self._leaves, vectors = packed.step(self._values, self._leaves, rows, active)
        return vectors

    def load(self, lane: int, values: Values, leaves: Leaves) -> None:
        """Put the state of a trial into a lane."""
        if self.packed.lanes == "shard":
            leaves = jax.device_put(leaves, self.packed.whole)
        self._leaves = self.packed.put(self._leaves, leaves, np.int32(lane))
        self._lane_values[lane] = values
        self._values = None

    def leaves(self, lane: int) -> Leaves:
        """Return the state of the trial in a lane, where it would be if it were alone."""
        leaves = self.packed.take(self._leaves, np.int32(lane))
        if self.packed.lanes != "shard":
            return leaves
        shardings = [leaf.sharding for leaf in self.packed.program.abstract_leaves]
        return tuple(map(jax.device_put, leaves, shardings))

    def _placed(self, batch: Batch) -> Batch:
        if self.packed.lanes != "shard":
            return batch
        return {name: jax.device_put(entry, self.packed.whole) for name, entry in batch.items()}


class LaneSlot:
    """The slot (`luthier.train.loop.Slot`) of a trial that runs in a lane.

    Args:
      pack: Where the lane is.
      lane: Its number.
    """

    def __init__(self, pack: Pack, lane: int):
        self._pack = pack
        self.lane = lane

    def begin(self) -> None:
        """Do nothing: the pack is compiled before its first trial begins."""

    def load(self, values: Values, leaves: Leaves) -> None:
        """Put a state here, with the hoisted scalars that its steps take."""
        self._pack.load(self.lane, values, leaves)

    def prepare(self) -> None:
        """Do nothing: the pack is compiled before its first trial begins."""

    @property
    def leaves(self) -> Leaves:
        """The state as it is now, in arrays of its own."""
        return self._pack.leaves(self.lane)


class LaneVector:
    """The scalars of one lane, fetched with those of all lanes when they are asked for.

    Args:
      vectors: The scalars of all lanes, [K, N].
      lane: Which one.
    """

    def __init__(self, vectors: Any, lane: int):
        self._vectors = vectors
        self._lane = lane

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._vectors, dtype)[self._lane]


def _stack(scalars: Sequence[jax.Array], sharding: NamedSharding) -> jax.Array:
    """Return scalars as one array; weakly typed, as they are."""
    return jax.device_put(jnp.stack([jnp.asarray(np.asarray(x).item()) for x in scalars]), sharding)
