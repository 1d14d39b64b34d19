"""Packed trials: several trials in one program, the training step vmapped over a leading axis.

Trials that share a program (they differ in hoisted scalars only) can be stepped together: K states
are stacked along a leading lane axis, and one call advances all of them. The training loop is a
generator that yields a batch and receives the scalars of the step, so a packed trial is an ordinary
run with records and checkpoints of its own, and only whoever takes the steps differs: `_Lanes`
collects one batch from each generator, takes one step, and sends each its row of the result.

Lanes are of three kinds. `vmap` computes all lanes at once, `map` one after another in one program
(which saves dispatch only), and `shard` places each lane on one device of the slice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from luthier.errors import Problem, ValidationError
from luthier.graph import Graph
from luthier.layers.attention import without_kernels
from luthier.parallel import Share
from luthier.planner import Plan
from luthier.planner.compiled import memory_of
from luthier.program import Program
from luthier.program.program import Leaves, Values, vector_of
from luthier.study.engines.execution import RAISED, Closing, Execution, TrialTask, leaving
from luthier.study.gate import too_large
from luthier.study.protocol import Lanes
from luthier.trainer.feed import Batch
from luthier.trainer.loop import CompiledStep
from luthier.trainer.run import Session

# K trials in one program: the training step over a leading lane axis, and the state that it takes.
#
# Every lane has hoisted values, a batch and a step count of its own, so that nothing of a trial
# depends on its lane or on its neighbours. A lane is loaded with another trial without compiling.

Arrays = Mapping[str, jax.Array]
HostArrays = Mapping[str, Any]  # NumPy arrays, from feeds that leave them on the host
LANE = "lane"
Agree = Callable[[Callable[[], Any]], Any]
"""`Execution.agree`."""


@dataclasses.dataclass(frozen=True)
class PackedProgram:
    """The compiled functions of K lanes; holds no arrays.

    Args:
      program: The program of one trial; of one device where lanes are split over devices.
      lanes: How lanes are computed.
      num_lanes: How many there are, K.
      step: From values [K], leaves [K, ...], a batch of entries [K, ...] and active [K] to leaves
        and vectors [K, N].
      take: From leaves and a lane to the leaves of one trial.
      put: From leaves, the leaves of one trial and a lane to leaves.
      empty: Returns leaves of zeros.
      entries: Shapes and shardings of the entries of K batches.
      whole: The sharding of what every device holds whole.
      step_bytes: Bytes on one device that the compiled step needs, if that is known.
    """

    program: Program
    lanes: Lanes
    num_lanes: int
    step: Callable[..., tuple[Leaves, jax.Array]]
    take: Callable[[Leaves, Any], Leaves]
    put: Callable[[Leaves, Leaves, Any], Leaves]
    empty: Callable[[], Leaves]
    entries: Mapping[str, jax.ShapeDtypeStruct]
    whole: NamedSharding
    step_bytes: int | None


def compile_lanes(
    program: Program, lanes: Lanes, num_lanes: int, devices: Sequence[jax.Device]
) -> PackedProgram:
    """Compile the functions of K lanes; a second call returns the first one's.

    Args:
      program: The program of one trial.
      lanes: `vmap` computes all lanes at once, `map` one after another, `shard` splits them
        over the devices, one after another on each.
      num_lanes: K; with `shard`, a multiple of the devices.
      devices: What the lanes are split over.

    Raises:
      ValidationError: The lanes cannot be split.
    """
    key = ("lanes", lanes, num_lanes)
    return program.once(key, lambda: _compile(program, lanes, num_lanes, devices))


def _compile(
    program: Program, lanes: Lanes, num_lanes: int, devices: Sequence[jax.Device]
) -> PackedProgram:
    # How it works: the state of one trial is a flat tuple of leaves. Here each leaf gets a leading
    # axis of K lanes, and the step is mapped over that axis (`_over_lanes`). Besides the step there
    # are three small functions: `take` and `put` move the state of one trial out of and into a
    # lane, so that trials can come and go while the others continue, and `empty` makes the first
    # state. All are compiled once for K and reused for every trial of the program.
    mesh = program.mesh
    # Within a lane arrays are sharded as they would be alone; the lane axis is not sharded, except
    # for `shard`, where a lane is whole on its device and the mesh has the lane axis only.
    specs = [PartitionSpec(None, *p.spec) for p in program.placements.values()]
    if lanes == "shard":
        if num_lanes % len(devices):
            what = f"{num_lanes} lanes cannot be split over {len(devices)} devices"
            raise ValidationError(Problem(what, "packing.num_lanes"))
        # Auto, as the axes of a trial's own mesh are by default: those of `jax.make_mesh` would be
        # Explicit.
        mesh = jax.make_mesh((len(devices),), (LANE,), (AxisType.Auto,), devices=devices)
        specs = [PartitionSpec(LANE)] * len(specs)
    whole = NamedSharding(mesh, PartitionSpec())
    stacked = tuple(NamedSharding(mesh, spec) for spec in specs)
    abstract = tuple(
        jax.ShapeDtypeStruct((num_lanes, *leaf.shape), leaf.dtype, sharding=sharding)
        for leaf, sharding in zip(program.abstract_leaves, stacked, strict=True)
    )
    # Where a lane's state comes from and goes to. Programs of `shard` are planned for one device,
    # whose sharding names a device that need not be the lane's: their states pass through arrays
    # that are whole everywhere.
    single = (
        tuple(whole for _ in specs)
        if lanes == "shard"
        else tuple(leaf.sharding for leaf in program.abstract_leaves)
    )

    # The lane is a traced index, so that one compiled function serves all lanes. `take` donates
    # nothing, because the other lanes continue from the same arrays.
    def take(leaves: Leaves, lane: jax.Array) -> Leaves:
        return tuple(lax.dynamic_index_in_dim(x, lane, keepdims=False) for x in leaves)

    def put(leaves: Leaves, own: Leaves, lane: jax.Array) -> Leaves:
        pairs = zip(leaves, own, strict=True)
        return tuple(lax.dynamic_update_index_in_dim(x, y, lane, 0) for x, y in pairs)

    def empty() -> Leaves:
        return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in abstract)

    # K batches come stacked: one transfer for each entry. Placed by each trial's own loader they
    # were K times as many, and as many small arrays to make and to free for each step.
    over = _over_lanes(program, lanes, mesh)
    # Lowered with real values and abstract arrays: scalars must be weakly typed here exactly as
    # they will be in the calls, or the compiled step refuses its arguments.
    values = tuple(_stack([value] * num_lanes, whole) for value in program.values())
    entries = {
        name: jax.ShapeDtypeStruct(
            (num_lanes, *entry.shape),
            entry.dtype,
            sharding=NamedSharding(mesh, _of_lanes(lanes, entry)),
        )
        for name, entry in program.batch.items()
    }
    active = jax.ShapeDtypeStruct((num_lanes,), jnp.bool_, sharding=whole)
    # The state is donated: K trials of optimizer state would otherwise exist twice.
    step = jax.jit(over, donate_argnums=1, out_shardings=(stacked, whole))
    # Compiled ahead of time, so that `memory_analysis` is known before a state is allocated.
    lowered = step.lower(values, abstract, entries, active)
    compiled = lowered.compile(program.compiler_options)
    memory = memory_of(compiled)
    return PackedProgram(
        program=program,
        lanes=lanes,
        num_lanes=num_lanes,
        step=compiled,
        take=jax.jit(take, out_shardings=single),
        put=jax.jit(put, donate_argnums=0, out_shardings=stacked),
        empty=jax.jit(empty, out_shardings=stacked),
        entries=entries,
        whole=whole,
        step_bytes=None if memory is None else memory.needed,
    )


def _of_lanes(lanes: Lanes, entry: jax.ShapeDtypeStruct) -> PartitionSpec:
    """Return how an entry of K batches is split: as in a trial of its own, or by lanes."""
    return PartitionSpec(LANE) if lanes == "shard" else PartitionSpec(None, *entry.sharding.spec)


def _over_lanes(program: Program, lanes: Lanes, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Return the step over the lane axis."""
    num_scalars = len(program.scalar_names)

    def one(values: Values, leaves: Leaves, batch: Arrays) -> tuple[Leaves, jax.Array]:
        leaves, scalars = program.step(values, leaves, batch)
        return leaves, vector_of(scalars)

    # `lax.cond` needs both branches to return the same types; the zeros are never read.
    def rest(values: Values, leaves: Leaves, batch: Arrays) -> tuple[Leaves, jax.Array]:
        return leaves, jnp.zeros(num_scalars, jnp.result_type(float))

    def each(values: Values, leaves: Leaves, batch: Arrays, active: jax.Array) -> Any:
        # A lane without a trial costs nothing here; under vmap it is computed with the others.
        return lax.map(
            lambda x: lax.cond(x[0], one, rest, *x[1]), (active, (values, leaves, batch))
        )

    if lanes == "vmap":
        # Without `active`: under vmap a `cond` becomes a `select` that computes both branches, so
        # skipping a lane would save nothing. It is a parameter all the same, because callers treat
        # all kinds of lanes alike.
        def batched(values: Values, leaves: Leaves, batch: Arrays, active: jax.Array) -> Any:
            with without_kernels():
                return jax.vmap(one)(values, leaves, batch)

        return batched
    if lanes == "map":
        return each
    spec = PartitionSpec(LANE)
    # `check_vma=False`: the step of a trial knows nothing of the lane axis, and each lane is
    # computed by one device alone, so there is nothing to check.
    return jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


class Pack:
    """The states of K trials, side by side.

    Args:
      packed: Their compiled functions.
    """

    def __init__(self, packed: PackedProgram):
        self.packed = packed
        # Zeros and not undefined memory: lanes without a trial are computed, too, under vmap.
        self._leaves = packed.empty()
        self._lane_values: list[Values] = [packed.program.values()] * packed.num_lanes
        # Stacked when the next step is taken and kept until a lane changes: a pack steps thousands
        # of times between two changes.
        self._values: Values | None = None
        self._active: jax.Array
        self._active_lanes: frozenset[int] = frozenset()
        self._share = _share_of(packed.program)
        self._vectors: Any = None
        self._failure: Exception | None = None

    def train_step(self, lane: int) -> LaneStep:
        """Return how the loop of the trial in a lane takes its steps."""
        return LaneStep(self, lane)

    def take_steps(self, batches: Mapping[int, HostArrays]) -> None:
        """Take the next step of all trials at once; each loop then takes its own result.

        What the program raises is raised by every loop, so that each trial records it.

        Args:
          batches: The batch of each lane that has a trial.
        """
        try:
            self._vectors = self.step(batches)
        except Exception as error:
            # Kept and not raised: it belongs to no single trial. Each loop meets it in its own
            # `LaneStep`, inside of its own session, which then closes as if its own step had
            # failed.
            self._failure = error

    @property
    def has_failed(self) -> bool:
        """Whether a step failed: the states of all trials went down with it."""
        return self._failure is not None

    def taken(self, lane: int) -> LaneVector:
        """Return the scalars of a lane after `take_steps`, or raise its error."""
        if self._failure is not None:
            raise self._failure
        return LaneVector(self._vectors, lane)

    def step(self, batches: Mapping[int, HostArrays]) -> jax.Array:
        """Take a step in lanes; the others stay as they are, or hold nothing of worth.

        Args:
          batches: The batch of each lane that has a trial, entries on the host.

        Returns:
          The scalars of every lane, [K, N]; read them when they are needed.
        """
        packed = self.packed
        if self._values is None:
            columns = zip(*self._lane_values, strict=True)
            self._values = tuple(_stack(column, packed.whole) for column in columns)
        # Lanes without a trial get any batch of the right shape; what they compute is never read.
        some = next(iter(batches.values()))
        rows = [batches.get(lane, some) for lane in range(packed.num_lanes)]
        placed = self._place(rows)
        lanes = frozenset(batches)
        if lanes != self._active_lanes:
            # Kept as long as no lane changes: on several processes JAX compares what it is given
            # in all of them, by a collective, before it places it on devices of others.
            self._active = jax.device_put(
                np.array([i in batches for i in range(packed.num_lanes)]), packed.whole
            )
            self._active_lanes = lanes
        # The old leaves are donated: after an error in this line the states of all trials are gone
        # (`has_failed`).
        self._leaves, vectors = packed.step(self._values, self._leaves, placed, self._active)
        return vectors

    def _place(self, rows: Sequence[HostArrays]) -> dict[str, jax.Array]:
        """Put the batches of all lanes onto the devices."""
        shardings = {name: entry.sharding for name, entry in self.packed.entries.items()}
        if all(sharding.is_fully_addressable for sharding in shardings.values()):
            # One call for all entries: the host is what a step of small trials waits for.
            stacked = {name: np.stack([row[name] for row in rows]) for name in shardings}
            return jax.device_put(stacked, shardings)

        # This process has read its own rows of each batch only. The lane axis is not sharded here:
        # lanes of `shard` are for groups of one process.
        def placed(name: str, entry: jax.ShapeDtypeStruct) -> jax.Array:
            def part(place: Any) -> np.ndarray:
                return np.stack([self._share.at(row[name], place[1:]) for row in rows])

            return jax.make_array_from_callback(entry.shape, entry.sharding, part)

        return {name: placed(name, entry) for name, entry in self.packed.entries.items()}

    def load(self, lane: int, values: Values, leaves: Leaves) -> None:
        """Put the state of a trial into a lane."""
        if self.packed.lanes == "shard":
            # The program of a lane was planned for one device; from there its state goes to all of
            # them, and `put` keeps it on the lane's.
            leaves = jax.device_put(leaves, self.packed.whole)
        self._leaves = self.packed.put(self._leaves, leaves, np.int32(lane))
        self._lane_values[lane] = values
        self._values = None

    def leaves(self, lane: int) -> Leaves:
        """Return the state of the trial in a lane, where it would be if it were alone."""
        # A copy: the trial saves it while the pack donates its own array to the next step.
        leaves = self.packed.take(self._leaves, np.int32(lane))
        if self.packed.lanes != "shard":
            return leaves
        shardings = [leaf.sharding for leaf in self.packed.program.abstract_leaves]
        return tuple(map(jax.device_put, leaves, shardings))


class LaneStep:
    """The step (`luthier.trainer.loop.TrainStep`) of a trial that runs in a lane.

    The pack holds the states of all trials and takes their steps together, so a call only hands out
    what came of this lane's batch.

    Args:
      pack: Where the lane is.
      lane: Its number.
    """

    takes_host_batches = True
    keeps_batches = True

    def __init__(self, pack: Pack, lane: int):
        self._pack = pack
        self.lane = lane

    def begin(self) -> None:
        """Do nothing: the pack is compiled before its first trial begins."""

    def load(self, values: Values, leaves: Leaves) -> None:
        """Put a state into the lane, with the hoisted scalars that its steps take."""
        self._pack.load(self.lane, values, leaves)

    def prepare(self) -> None:
        """Do nothing: the pack is compiled before its first trial begins."""

    def __call__(self, state: Any, batch: Arrays) -> tuple[Any, Any]:
        """Return the scalars of the step that `Pack.take_steps` took with this batch."""
        return state, self._pack.taken(self.lane)

    def leaves(self, state: Any) -> Leaves:
        """Return the state as it is now, in arrays of its own."""
        return self._pack.leaves(self.lane)


# `loop` reads scalars one or more steps late. Fetching is delayed with them: the array of all lanes
# comes to the host once (JAX keeps the copy), instead of K slices being dispatched for each step.
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

    @property
    def addressable_shards(self) -> Any:
        """The parts on the devices of this process: hosts time their devices behind a step."""
        return self._vectors.addressable_shards


def _stack(scalars: Sequence[jax.Array], sharding: NamedSharding) -> jax.Array:
    """Return scalars as one array; weakly typed, as they are."""
    # `.item()` gives a Python number, which `asarray` takes in weakly typed, so that a hoisted 0.1
    # does not turn bfloat16 products into float32 in lanes and not alone.
    return jax.device_put(jnp.stack([jnp.asarray(np.asarray(x).item()) for x in scalars]), sharding)


# The choice of lanes: measured by a few steps of each kind, where that can pay.

# Measuring costs compiles; it must pay for itself within the study.
SHARE = 0.03
"""The share of the steps of all trials to come that may be spent on measuring."""

WORTH = 0.95
"""Lanes are taken where a step takes less than this part of the time that it takes alone."""

COMPILE_FACTOR = 2.0
"""Compiling lanes is taken to be so much slower than compiling a step."""

NUM_TIMED = 5

NUM_DEVICES: Mapping[Lanes, int] = {"shard": 1}
"""Devices of one trial's program, by the kind of lanes; all of the slice where it is not named."""


@dataclasses.dataclass(frozen=True)
class PackingChoice:
    """A way for trials to share a device group.

    Args:
      lanes: The kind of lanes; `single` runs one trial after another.
      num_lanes: How many there are.
      num_devices: Devices of one trial's program; 0 means all of the slice.
    """

    lanes: Lanes
    num_lanes: int = 1
    num_devices: int = 0


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one way to run trials.

    Args:
      seconds: Of a step of one trial.
      compile_seconds: That it took to compile.
    """

    seconds: float
    compile_seconds: float


def choose(
    plan_for: Callable[[int], Plan],
    devices: Sequence[jax.Device],
    num_trials: int,
    memory_bytes: int | None,
    num_expected: int = 0,
    agree: Agree = lambda make: make(),
) -> PackingChoice:
    """Choose the lanes of a program by measuring 1, 2, 4, ... of each kind.

    A kind is followed while it gets faster and fits the memory, and only as long as finding out
    costs a small part of the trials themselves.

    Args:
      plan_for: Returns the plan of a trial for so many devices; 0 means the whole slice.
      devices: The slice.
      num_trials: Trials that there are for it; the most lanes.
      memory_bytes: Memory of one device; None where it has no limit of its own.
      num_expected: Trials that come over time, where these are more.
      agree: Has all processes of the slice take what the first one measured, or they would
        measure, and choose, different lanes.
    """
    plan = plan_for(0)

    def agreed(cost: StepCost | None) -> StepCost | None:
        fields = agree(lambda: None if cost is None else [cost.seconds, cost.compile_seconds])
        return None if fields is None else StepCost(*fields)

    # The compile of the single program is not wasted where lanes lose: trials then run with it.
    alone = agreed(measure_alone(plan))
    assert alone is not None
    steps = plan.program.experiment.training.steps

    def measure(lanes: Lanes, num_lanes: int) -> StepCost | None:
        shared = plan_for(NUM_DEVICES.get(lanes, 0))
        return agreed(measure_lanes(shared, lanes, num_lanes, devices, memory_bytes))

    def clock() -> float:
        return agree(time.perf_counter)

    counts: dict[Lanes, Sequence[int]] = dict.fromkeys(("vmap", "map"), powers(num_trials))
    # At least one lane for each device, or some would compute nothing.
    if len(devices) > 1 and not _is_split(devices):
        # Each lane on one device, instead of all lanes on all of them.
        each = powers(num_trials // len(devices))
        counts["shard"] = [len(devices) * number for number in (1, *each)]
    return best(alone, counts, num_trials, steps, measure, num_expected, clock)


def _is_split(devices: Sequence[jax.Device]) -> bool:
    """Return whether devices belong to several processes."""
    return len({device.process_index for device in devices}) > 1


def best(
    alone: StepCost,
    counts: Mapping[Lanes, Sequence[int]],
    num_trials: int,
    steps: int,
    measure: Callable[[Lanes, int], StepCost | None],
    num_expected: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> PackingChoice:
    """Return the fastest choice among those that could be looked at within the allowance.

    Args:
      alone: What a trial by itself costs.
      counts: The kinds of lanes in the order in which they are tried, and numbers of lanes of each,
        rising.
      num_trials: Trials that there are, for the lanes.
      steps: Steps of a trial.
      measure: Measures one kind with a number of lanes; None where it does not fit the memory.
      num_expected: Trials that come over time, where these are more: all of them gain.
      clock: The time in seconds, by which measuring is charged to the allowance.
    """
    # The first candidate is bounded by an expectation (a factor on the compile time of one trial),
    # later ones by what the compiles before really took. A kind is left as soon as it no longer
    # gets faster: twice as many lanes would be slower still.
    allowance = SHARE * max(num_trials, num_expected) * steps * alone.seconds
    found, fastest = PackingChoice("single"), WORTH * alone.seconds
    expected = COMPILE_FACTOR * alone.compile_seconds
    # Steps are expected to take as long as if lanes gained nothing; one more of them is the step
    # before the timed ones (`_median_seconds`).
    for lanes, numbers in counts.items():
        before = alone.seconds
        for num_lanes in numbers:
            if (
                num_lanes > num_trials
                or expected + (NUM_TIMED + 1) * num_lanes * alone.seconds > allowance
            ):
                break
            start = clock()
            measured = measure(lanes, num_lanes)
            allowance -= clock() - start
            if measured is None or measured.seconds >= before:
                break
            expected = max(expected, measured.compile_seconds)
            before = measured.seconds
            if measured.seconds < fastest:
                found = PackingChoice(lanes, num_lanes, NUM_DEVICES.get(lanes, 0))
                fastest = measured.seconds
    return found


def measure_alone(plan: Plan) -> StepCost:
    """Measure steps of one trial that has the slice to itself."""
    program = plan.program
    start = time.perf_counter()
    # Real steps on a batch of zeros: no loader need be opened, and the cost hardly depends on the
    # values.
    step = CompiledStep(program)
    step.prepare()
    compiled = time.perf_counter() - start
    values = program.values()
    state = step.load(values, program.init(values))
    batch = _share_of(program).global_batch(_blank(program), program.batch)

    def advance() -> jax.Array:
        nonlocal state
        state, scalars = step(state, batch)
        return scalars

    return StepCost(_median_seconds(advance), compiled)


def measure_lanes(
    plan: Plan,
    lanes: Lanes,
    num_lanes: int,
    devices: Sequence[jax.Device],
    memory_bytes: int | None,
) -> StepCost | None:
    """Measure steps of trials in lanes; None where they do not fit the memory.

    Args:
      plan: The plan of a trial.
      lanes: The kind of lanes.
      num_lanes: How many.
      devices: The slice.
      memory_bytes: Memory of one device; None where it has no limit of its own.
    """
    program, start = plan.program, time.perf_counter()
    packed = compile_lanes(program, lanes, num_lanes, devices)
    compiled = time.perf_counter() - start
    # Checked before a state is allocated: running out of memory could end the worker.
    if memory_bytes is not None and (packed.step_bytes or 0) > memory_bytes:
        return None
    # All lanes get the same state and batch: only the time is looked at.
    pack, values = Pack(packed), program.values()
    for lane in range(num_lanes):
        pack.load(lane, values, program.init(values))
    batches = dict.fromkeys(range(num_lanes), _blank(program))
    return StepCost(_median_seconds(lambda: pack.step(batches)) / num_lanes, compiled)


def _share_of(program: Program) -> Share:
    """Return the rows of a training batch that the feeds of this process read."""
    return Share.of(program.batch, program.experiment.data.iterator)


def _blank(program: Program) -> dict[str, np.ndarray]:
    num_rows = len(_share_of(program).rows)
    return {n: np.zeros((num_rows, *e.shape[1:]), e.dtype) for n, e in program.batch.items()}


def _median_seconds(step: Callable[[], jax.Array]) -> float:
    times = []
    for _ in range(NUM_TIMED + 1):
        start = time.perf_counter()
        jax.block_until_ready(step())
        times.append(time.perf_counter() - start)
    # Without the first, which may still allocate and load code; the median, because other processes
    # share the machine.
    return float(np.median(times[1:]))


def powers(most: int) -> list[int]:
    """Return 2, 4, 8 and so on, up to `most`."""
    return [2**exponent for exponent in range(1, max(most, 1).bit_length())]


# Trials in lanes: each is an ordinary run, whose steps are taken together with its neighbours'.


class TaskSource(Protocol):
    """A source of further trials."""

    def take(self, fits: Callable[[TrialTask], bool]) -> TrialTask | None:
        """Return a trial that fits; None where there is none now."""


class _Running:
    """A trial in a lane: an open session, whose loop is driven by turns with its neighbours'.

    Args:
      task: The trial.
      plan: Its plan.
      mode: How it is run.
      opening: Opens its session.

    Attributes:
      batch: The batch of its next step; None when there is none, and the session is to be closed.
    """

    def __init__(
        self,
        task: TrialTask,
        plan: Plan,
        mode: dict[str, Any],
        opening: contextlib.AbstractContextManager[Session],
    ):
        self.task, self.plan, self.mode = task, plan, mode
        self.batch: Batch | None = None
        self.opening = opening
        # By hand and not by `with`: the block of the session is spread over many calls of
        # `advance`, with the steps of other trials in between.
        self.session = opening.__enter__()
        self._go_on(self.begin)

    def begin(self) -> None:
        """Prepare the first step, unless the run was over before."""
        if self.session.loop is not None:
            self.session.loop.begin()

    def advance(self) -> None:
        """Take the step of the batch, and get the next one."""
        loop, batch = self.session.loop, self.batch
        assert loop is not None
        assert batch is not None
        self._go_on(lambda: loop.advance(batch))

    def _go_on(self, take: Callable[[], None]) -> None:
        """Do a part of the `with` block of the session, up to the next batch."""
        self.batch = None

        def part() -> None:
            take()
            if self.session.loop is not None:
                self.batch = self.session.loop.next_batch()

        leaving(self.opening, part)


class LaneRunner:
    """Runs trials side by side on the devices of one slice.

    Args:
      execution: Reads, plans and ends trials.
      inbox: Where further trials come from.
    """

    def __init__(self, execution: Execution, inbox: TaskSource):
        self._execution = execution
        self._inbox = inbox
        self._choices: dict[str, PackingChoice] = {}

    def run(self, task: TrialTask, choice: PackingChoice | None = None, lane: int = 0) -> None:
        """Run a trial, with all that wait or come and are served by the same program.

        Errors of a trial are reported to the driver; nothing is raised for them.

        Args:
          task: The trial.
          choice: How trials share the slice; None goes by the work.
          lane: Where the trial goes.
        """
        execution, work = self._execution, task.work
        try:
            graph = execution.read(task.trial)
            key, _ = execution.plans.key(graph, work.hoist)
            choice = choice or self._choice(key, graph, task)
            if choice.lanes == "single":
                # Measured to be the fastest, or asked for: one trial after another through the
                # ordinary step.
                return execution.run(work, task.trial, task.watcher)
            plan = execution.plans.plan(graph, work.hoist, choice.num_devices)
            devices = execution.plans.devices
            packed = compile_lanes(plan.program, choice.lanes, choice.num_lanes, devices)
            limit = execution.memory_bytes
            # A step whose bytes the compiler does not report is not refused for them.
            problem = too_large("the compiled step of all lanes", packed.step_bytes or 0, limit)
            if problem is not None:
                raise problem
        except RAISED as error:
            mode = execution.mode((), work.lanes)
            return execution.report_failure(task.trial, mode, error)
        # Outside of the `try`: from here on each trial has its own error handling, and this task
        # may end long before the others do.
        _Lanes(execution, self._inbox, packed, key, choice).run(task, lane)

    def _choice(self, key: str, graph: Graph, task: TrialTask) -> PackingChoice:
        """Return how the trials of a program share the slice; measured once for each program."""
        work, plans = task.work, self._execution.plans
        num_lanes = len(work.trials) + work.spare_lanes
        if work.lanes == "shard" and _is_split(plans.devices):
            # Every process would have to hold, save and restore trials that are on no device of it.
            what = "lanes of one device each are for device groups of one process, and this one "
            what += f"has {len({d.process_index for d in plans.devices})}"
            raise ValidationError(Problem(what, "packing.lanes", remedy="use vmap, map or auto"))
        if work.lanes != "auto":
            return PackingChoice(work.lanes, num_lanes, NUM_DEVICES.get(work.lanes, 0))
        if key not in self._choices:
            self._choices[key] = choose(
                lambda num_devices: plans.plan(graph, work.hoist, num_devices),
                plans.devices,
                num_lanes,
                self._execution.memory_bytes,
                work.num_expected,
                self._execution.agree,
            )
        return self._choices[key]


class _Lanes:
    """The lanes of one program, and the trials in them."""

    def __init__(
        self,
        execution: Execution,
        inbox: TaskSource,
        packed: PackedProgram,
        key: str,
        choice: PackingChoice,
    ):
        self._execution = execution
        self._inbox = inbox
        self._pack = Pack(packed)
        self._key = key
        self._choice = choice
        self._running: dict[int, _Running] = {}
        # Remembered, because `_fill` asks after every step, and deciding means reading a graph and
        # taking its fingerprint.
        self._others: set[tuple[int, int]] = set()  # trials of other programs, which wait

    def run(self, task: TrialTask, lane: int) -> None:
        """Run a trial and all that fit, until no lane has one."""
        self._begin(lane, task)
        self._fill()
        while self._running:
            self._pack.take_steps(
                {
                    lane: running.batch.arrays
                    for lane, running in self._running.items()
                    if running.batch is not None
                }
            )
            # A list, because `_advance` removes trials that end.
            for lane in list(self._running):
                self._advance(lane)
            # The states of all lanes are lost. Trials that wait are left in the inbox: the next
            # `run` makes a new pack for them.
            if self._pack.has_failed:
                return
            self._fill()

    def _fill(self) -> None:
        for lane in range(self._choice.num_lanes):
            while lane not in self._running:
                task = self._inbox.take(self._fits)
                # Nothing fits now; a trial that comes later is found after the next step.
                if task is None:
                    return
                self._begin(lane, task)

    def _fits(self, task: TrialTask) -> bool:
        identity = (task.trial.trial, task.trial.fence)
        if identity in self._others or task.work.lanes == "single":
            return False
        try:
            graph = self._execution.read(task.trial)
            fits = self._execution.plans.key(graph, task.work.hoist)[0] == self._key
        except RAISED:  # reported when its turn comes
            fits = False
        if not fits:
            self._others.add(identity)
        return fits

    def _begin(self, lane: int, task: TrialTask) -> None:
        execution, choice = self._execution, self._choice
        mode = execution.mode((), choice.lanes, choice.num_lanes, lane)
        try:
            graph = execution.read(task.trial)
            plan = execution.plans.plan(graph, task.work.hoist, choice.num_devices)
            mode["hoisted"] = list(plan.program.hoist)
            step = self._pack.train_step(lane)
            execution.make_room(self._pack.packed.step_bytes)
            opening = execution.open(plan, step, task.trial, task.watcher)
            running = _Running(task, plan, mode, opening)
        except RAISED as error:
            execution.report_failure(task.trial, mode, error)
        else:
            self._keep(lane, running)

    def _advance(self, lane: int) -> None:
        """Let the loop of a trial take its step."""
        # Out before its step and back after it: where the step raises, or ends the trial, the lane
        # is free.
        running = self._running.pop(lane)
        try:
            running.advance()
        except RAISED as error:
            self._execution.report_failure(running.task.trial, running.mode, error)
        else:
            self._keep(lane, running)

    def _keep(self, lane: int, running: _Running) -> None:
        """Keep a trial that has a next step; close one that has none."""
        if running.batch is not None:
            self._running[lane] = running
            return
        trial, plan, mode = running.task.trial, running.plan, running.mode
        opening, session = running.opening, running.session
        peak_bytes = self._pack.packed.step_bytes
        self._execution.close(Closing(trial, plan, mode, opening, session, peak_bytes))
