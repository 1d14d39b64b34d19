"""An experiment as a program on a mesh: abstract state, shardings, and the compiled functions.

The state that goes into a step is donated: the next state should take its place. Where the
compiler does not reuse a buffer, both exist at the same time; `not_reused` lists such buffers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from luthier import graph as graphs
from luthier import user_code
from luthier.errors import BadInput, LuthierError, Problem, UserCodeError, ValidationError
from luthier.graph import Graph
from luthier.metrics import StackedRatios
from luthier.parallel import (
    ArrayInfo,
    AxisType,
    Placement,
    XlaOptions,
    activation_rules,
    axis_product,
    format_bytes,
    place,
    place_derived,
    quick_cpu_options,
    random_bits,
)
from luthier.program import hoist as hoisting
from luthier.program import precision as precisions
from luthier.program.epochs import with_known_steps
from luthier.program.experiment import Data, Experiment
from luthier.program.offload import on_devices, placed, unsupported
from luthier.program.step import (
    drawn_parameters,
    evaluate_step,
    init_state,
    initialized,
    train_step,
)

# JAX reports how many bytes of the donated arguments are reused, but not which. The optimized HLO
# says so: its header maps outputs to the numbers of the parameters whose buffers they take
# (`input_output_alias={ {3}: (5, {}, may-alias), ...}`), and the metadata of each parameter holds
# the Python argument and the index in it (`op_name="leaves[7]"`). The number of a parameter is not
# that index: XLA drops arguments that nothing reads, and renumbers the others.
_ALIASES = re.compile(r"input_output_alias=\{(.*?)\}, entry_computation_layout", re.DOTALL)
_REUSED = re.compile(r"\((\d+), \{[\d, ]*\}")
_PARAMETER = re.compile(
    r"parameter\((\d+)\)[^\n]*metadata=\{[^}\n]*op_name=\"(?P<argument>\w+)\[(?P<index>\d+)\]\""
)


def not_reused(
    compiled: jax.stages.Compiled,
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    argument: str = "leaves",
) -> dict[str, int]:
    """Return the donated buffers whose memory a compiled program does not reuse.

    Args:
      compiled: A compiled function.
      leaves: The donated arrays by name, in the order in which the function takes them.
      argument: The name of the function's argument, a tuple.

    Returns:
      Bytes on one device by name of the array.
    """
    sizes = {name: _bytes_on_device(leaf) for name, leaf in leaves.items()}
    analysis = compiled.memory_analysis()
    if analysis is not None:
        reused = analysis.alias_size_in_bytes + analysis.host_alias_size_in_bytes
        if reused >= sum(sizes.values()):
            return {}  # the text of a large program is large too
    # Without a text, as some backends have none, nothing shows that a buffer is reused: all are
    # returned.
    text = compiled.as_text() or ""
    header = _ALIASES.search(text)
    aliased = {int(number) for number in _REUSED.findall(header.group(1) if header else "")}
    names: Sequence[str] = tuple(leaves)
    reused_names = {
        names[int(match["index"])]
        for match in _PARAMETER.finditer(text)
        if match["argument"] == argument and int(match[1]) in aliased
    }
    return {name: size for name, size in sizes.items() if name not in reused_names}


def _bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.sharding.shard_shape(leaf.shape)
    size = leaf.dtype.itemsize
    for dimension in shape:
        size *= dimension
    return size


# On the hot path the state is a tuple of arrays, in the order of `Program.names`, and never a
# module: a call of a compiled function then flattens one tuple. Measured on a CPU with 962 arrays
# (jax 0.10.2): 55.0 ms a step by `nnx.jit`, 21.1 ms by split, `jax.jit` of an `nnx.State` and
# merge, 2.3 ms by a tuple and a function that is compiled ahead of time.
Leaves = tuple[jax.Array, ...]

# The hoisted hyperparameters as arrays; see `luthier.program.hoist`.
Values = tuple[jax.Array, ...]

_config: Any = jax.config  # `Any`, because its options are attributes that no type declares
_BEGUN = "begun step"  # a key of `Program.compiled`, whose value is a future
_PARAMETERS = "parameters/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """An experiment graph on given devices: shapes, shardings and functions, but no arrays.

    Args:
      graph: The experiment graph.
      resolved: The same graph, in which each number of steps that is written in epochs is a number.
      experiment: The graph, built; for what happens on the host.
      hoist: Paths of the leaves that the compiled functions take as arguments.
      mesh: The device mesh.
      sizes: Size of every mesh axis.
      placements: Where every array of the state lives, by name, in the order of the leaves.
      batch: Shape, dtype and sharding of every entry of a training batch.
      compiled: Cache of traced and compiled functions, shared by all programs that `of` returns.
    """

    # Two builds of one graph exist. `experiment` holds Python numbers, and answers questions on
    # the host (mesh, durations, data). `tracing` builds it again inside each trace, with tracers
    # in the place of hoisted leaves: what depends on them must be built there, or it would be
    # baked into the program as a constant.
    graph: Graph
    resolved: Graph
    experiment: Experiment
    hoist: tuple[str, ...]
    mesh: jax.sharding.Mesh
    sizes: Mapping[str, int]
    placements: Mapping[str, Placement]
    batch: Mapping[str, jax.ShapeDtypeStruct]
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def of(self, graph: Graph) -> Program:
        """Return the program of a graph that differs in hoisted leaves, names and records only.

        Nothing is traced or compiled again, and the data is not read again. That nothing else
        differs is for the caller to know: a constant of this program stays what it is.

        Args:
          graph: The other graph.

        Returns:
          The program.
        """
        # Building data opens files and may count rows, so the built ones are put in.
        read = {"data": self.experiment.data, "evaluations": self.experiment.evaluations}
        resolved = with_known_steps(graph, self.experiment.data)
        experiment = graphs.build(resolved, read)
        return dataclasses.replace(self, graph=graph, resolved=resolved, experiment=experiment)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of the first call of `make` with `key`, cached for all programs.

        Args:
          key: Any hashable key.
          make: Computes the result.

        Returns:
          The result.
        """
        if key not in self.compiled:
            self.compiled[key] = make()
        return self.compiled[key]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the state's arrays, in the order of the leaves."""
        return tuple(self.placements)

    @functools.cached_property
    def abstract_state(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of every array of the state."""
        memory = self.experiment.training.optimizer_memory
        return {
            name: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=placed(p, self.mesh, memory))
            for name, p in self.placements.items()
        }

    @property
    def abstract_leaves(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The abstract state as the tuple that the compiled functions take."""
        return tuple(self.abstract_state.values())

    @functools.cached_property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options that XLA compiles the program with; those of `precision` take precedence."""
        options = self.experiment.compiler.of(self.mesh.devices.flat[0].platform)
        return options | self.experiment.precision.compiler_options()

    def values(self, graph: Any | None = None) -> Values:
        """Return the hoisted leaves of `graph` (default: the program's own) as arguments.

        Args:
          graph: A graph that differs in hoisted leaves only.

        Returns:
          Scalars; see `values_of`.
        """
        arrays = hoisting.values_of(self.resolved if graph is None else graph, self.hoist)
        # A compiled function takes arguments only in the sharding that it was compiled for.
        return tuple(jax.device_put(array, self.replicated) for array in arrays)

    @contextlib.contextmanager
    def tracing(self, values: Sequence[jax.Array]) -> Iterator[Any]:
        """Build the experiment inside a trace, under its mesh, rules and precision.

        Args:
          values: The hoisted scalars, traced.

        Yields:
          The experiment, with a `Scalar` in the place of every hoisted leaf.
        """
        scalars = hoisting.substitutions(self.resolved, self.hoist, values)
        experiment = graphs.build(self.resolved, scalars)
        parallelism = self.experiment.parallelism
        # Both contexts are part of the key of JAX's caches of traces, so a function that was
        # traced under one mesh or precision is traced again under another.
        with (
            activation_rules(self.mesh, parallelism.rules),
            jax.default_matmul_precision(self.experiment.precision.matmul.value),
        ):
            yield experiment

    def init(self, values: Values) -> Leaves:
        """Return the state before the first step, bit-identical on every mesh.

        Args:
          values: The hoisted scalars.

        Returns:
          Arrays in the order of `names`.
        """

        # One jitted function with sharded outputs: each device makes its own shards, and no device
        # ever holds the whole model. The bits do not depend on the mesh because JAX's random bits
        # are a function of the index of an element (`jax_threefry_partitionable`), and because
        # `layers.initializers` makes numbers of them by operations that round alike in any loop.
        def init(values: Values, drawn: Mapping[str, jax.Array]) -> Leaves:
            with self.tracing(values) as experiment:
                state = init_state(experiment, drawn)
            return tuple(state[name] for name in self.names)

        shardings = tuple(leaf.sharding for leaf in self.abstract_leaves)
        make = self.once("init", lambda: self.jit_initialization(init, shardings))
        return make(values, self._drawn_whole(values))

    def _drawn_whole(self, values: Values) -> dict[str, jax.Array]:
        """Return the initial parameters that declare no logical axes, in their shardings."""
        # Their initializers are from elsewhere, and may round the last bit of a number by its place
        # in a shard. They are drawn whole by a program of their own and cut by another, on every
        # mesh, also of one device: within one program XLA draws only what the cut keeps, whatever
        # barrier stands between them (it removes barriers on a CPU).
        names = [
            name.removeprefix(_PARAMETERS)
            for name, placement in self.placements.items()
            if name.startswith(_PARAMETERS) and placement.axes is None
        ]
        if not names:
            return {}

        def draw(values: Values) -> dict[str, jax.Array]:
            with self.tracing(values) as experiment:
                return drawn_parameters(experiment, names)

        whole = dict.fromkeys(names, self.replicated)
        cut = {
            name: NamedSharding(self.mesh, self.placements[f"{_PARAMETERS}{name}"].spec)
            for name in names
        }
        drawn = self.once("draw", lambda: self.jit_initialization(draw, whole))(values)
        return self.once("cut", lambda: jax.jit(lambda x: x, out_shardings=cut))(drawn)

    def jit_initialization(
        self, function: Callable[..., Any], shardings: Any
    ) -> jax.stages.Wrapped:
        """Jit a function that makes state; all are compiled alike, for the same bits.

        It runs once. On a CPU compiling takes longer than that, so it is compiled quickly there;
        options of the experiment and of XLA_FLAGS take precedence.

        Args:
          function: Returns arrays of the state.
          shardings: Shardings of the arrays.

        Returns:
          The jitted function.
        """
        options = self.compiler_options
        if self.mesh.devices.flat[0].platform == "cpu":
            # Options of one compilation override XLA_FLAGS, so those that the flags set are left
            # out here: otherwise the environment would be ignored without a message.
            flags = os.environ.get("XLA_FLAGS", "")
            quick = {n: option for n, option in quick_cpu_options().items() if n not in flags}
            options = quick | options
        return jax.jit(function, out_shardings=shardings, compiler_options=options)

    def components_at_fault(
        self, what: str, batch: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager[None]:
        """Report errors of the components that a function of this program calls while it is traced.

        Args:
          what: The action that fails, for the message.
          batch: The entries of the batch that the function takes.

        Returns:
          A context manager.
        """
        return components_at_fault(what, "model", self.graph, batch, self.hoist)

    @property
    def traced_step(self) -> Any:
        """The training step as a jaxpr, with shardings and donation, ready to lower."""
        return self.once("traced step", self._trace)[0]

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the scalars in the vector that a step returns."""
        return self.once("traced step", self._trace)[1]

    def step(
        self, values: Values, leaves: Leaves, batch: Mapping[str, jax.Array]
    ) -> tuple[Leaves, dict[str, jax.Array]]:
        """Take one training step, inside a trace.

        Args:
          values: The hoisted scalars, traced.
          leaves: The state.
          batch: The global batch.

        Returns:
          The next state, and the step's scalars by name.
        """
        leaves = on_devices(leaves, [leaf.sharding for leaf in self.abstract_leaves])
        with self.tracing(values) as experiment:
            state, scalars = train_step(experiment, self.named(leaves), batch)
        return tuple(state[name] for name in self.names), scalars

    def _trace(self) -> tuple[Any, tuple[str, ...], Callable[..., Any]]:
        # The scalars leave the step as one vector, which one transfer fetches. Their names are
        # Python strings and cannot be returned from a trace, so the trace leaves them in `names`;
        # that is sound because the function is traced exactly once, here.
        names: list[str] = []

        def step(
            values: Values, leaves: Leaves, batch: Mapping[str, jax.Array]
        ) -> tuple[Leaves, jax.Array]:
            next_leaves, scalars = self.step(values, leaves, batch)
            names[:] = scalars
            return next_leaves, vector_of(scalars)

        # Outputs are sharded as inputs are, for two reasons: a donated buffer can be reused only
        # for an output of the same layout, and the next call takes these leaves as they are.
        shardings = tuple(leaf.sharding for leaf in self.abstract_leaves)
        jitted = jax.jit(step, donate_argnums=1, out_shardings=(shardings, self.replicated))
        with self.components_at_fault("the training step cannot be traced", self.batch):
            traced = jitted.trace(self.values(), self.abstract_leaves, dict(self.batch))
        return traced, tuple(names), jitted

    def lower_and_compile(self, traced: jax.stages.Traced) -> jax.stages.Compiled:
        """Compile a function with the experiment's options; the result is not cached.

        Args:
          traced: The function, as `traced_step` or `traced_evaluation`.

        Returns:
          The compiled function.
        """
        return traced.lower().compile(self.compiler_options)

    def begin_step(self) -> None:
        """Start compiling the training step in a thread; `compile_step` waits for it.

        Call it before initialization or restoration, to overlap compilation with them. On GPUs it
        does nothing: XLA's autotuning measures kernels on the device, and other work on the device
        would distort the measurements.
        """
        is_measured = self.mesh.devices.flat[0].platform == "gpu"
        if is_measured or _debugs_nans() or "step" in self.compiled or _BEGUN in self.compiled:
            return
        # Tracing and lowering happen in this thread: what `jax.default_matmul_precision` and other
        # context managers configure is thread-local, and a new thread would see the defaults.
        # Compiling releases the GIL and reads none of it.
        lowered = self.traced_step.lower()
        pool = concurrent.futures.ThreadPoolExecutor(1, "compile")
        self.compiled[_BEGUN] = pool.submit(lowered.compile, self.compiler_options)
        pool.shutdown(wait=False)  # takes no more work; the thread ends with its task

    def compile_step(self) -> Callable[[Values, Leaves, Mapping[str, jax.Array]], Any]:
        """Compile the training step.

        Returns:
          A function from (values, leaves, batch) to (leaves, vector of scalars); the leaves that
          go in are donated. The scalars' names are `scalar_names`. It warns about donated leaves
          whose memory is not reused.
        """

        def compiled() -> Any:
            if _debugs_nans():
                return _checked(self.once("traced step", self._trace)[2], self.step)
            # `result` raises here what the compiler raised in the thread.
            begun = self.compiled.pop(_BEGUN, None)
            step = self.lower_and_compile(self.traced_step) if begun is None else begun.result()
            for name, size in not_reused(step, self.abstract_state).items():
                message = f"the step does not reuse the memory of {name} ({format_bytes(size)})"
                warnings.warn(message, stacklevel=2)
            return step

        return self.once("step", compiled)

    def traced_evaluation(
        self, batch: Mapping[str, jax.ShapeDtypeStruct], weights: str
    ) -> jax.stages.Traced:
        """Return the evaluation of one batch as a jaxpr, with shardings, ready to lower.

        Args:
          batch: Shape, dtype and sharding of every entry.
          weights: `parameters` or `ema`.

        Returns:
          The traced function.
        """

        def evaluate(values: Values, leaves: Leaves, batch: Mapping[str, jax.Array]) -> Any:
            with self.tracing(values) as experiment:
                sums = evaluate_step(experiment, self.named(leaves), weights, batch)
            return StackedRatios.of(sums)

        def traced() -> Any:
            evaluate_jit = jax.jit(evaluate, out_shardings=self.replicated)
            with self.components_at_fault("the evaluation cannot be traced", batch):
                return evaluate_jit.trace(self.values(), self.abstract_leaves, dict(batch))

        return self.once(("traced evaluation", weights, tuple(batch.items())), traced)

    def compile_evaluation(
        self, batch: Mapping[str, jax.ShapeDtypeStruct], weights: str
    ) -> Callable[[Values, Leaves, Mapping[str, jax.Array]], Any]:
        """Compile the evaluation of one batch.

        Args:
          batch: Shape, dtype and sharding of every entry.
          weights: `parameters` or `ema`.

        Returns:
          A function from (values, leaves, batch) to the task's sums by metric, scalars that are
          stacked in a `StackedRatios`.
        """

        def compiled() -> Any:
            return self.lower_and_compile(self.traced_evaluation(batch, weights))

        return self.once(("evaluation", weights, tuple(batch.items())), compiled)

    def abstract_batch(
        self, data: Data, global_batch_size: int, path: str, accumulation: int = 1
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shape, dtype and sharding of every entry of a batch of `data`.

        Args:
          data: Training or evaluation data; only its `batch_spec` is called.
          global_batch_size: Examples over all devices.
          path: Path of the batch size in the graph, for the message.
          accumulation: Microbatches that the batch is cut into.

        Returns:
          Entries by name.

        Raises:
          ValidationError: The rows cannot be divided over the devices.
        """
        with users_errors(self.graph, path):
            return _abstract_batch(
                self.experiment, self.mesh, self.sizes, data, global_batch_size, path, accumulation
            )

    def named(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the leaves of a state by name.

        Args:
          leaves: The flat state: arrays in the order of `names`.

        Returns:
          Arrays by name.
        """
        return dict(zip(self.names, leaves, strict=True))


def make(graph: Graph, devices: Sequence[jax.Device], hoist: Sequence[str] = ()) -> Program:
    """Make the program of an experiment graph on given devices, without making an array.

    Args:
      graph: A validated experiment graph.
      devices: The devices to run on, which may be absent (an AOT topology).
      hoist: Paths of numeric leaves that the compiled functions take as arguments.

    Returns:
      The program: its shapes, shardings, and the functions that initialize, train and evaluate,
      which are compiled at their first use.

    Raises:
      ShardingError: A parameter or the mesh cannot be divided; all problems at once.
      ValidationError: The batch cannot be divided, or the model cannot be built.
    """
    # The checks run from cheap to dear, and from messages that name a setting to those that only
    # a trace can give: a GPU that lacks a kernel is reported by its node, before anything is built.
    random_bits.install()
    problems = [*unsupported(graph, devices), *precisions.unsupported(graph, devices)]
    problems += _without_kernels(graph, devices)
    if problems:
        raise ValidationError(problems)
    written, graph = graph, with_known_steps(graph)
    experiment = graphs.build(graph)
    if refused := list(_refused_options(graph, experiment.compiler, devices)):
        raise ValidationError(refused)
    mesh = experiment.parallelism.mesh.arrange(devices)
    sizes = dict(mesh.shape)
    shapes, axes = _abstract_state(graph, hoist)
    if problems := list(precisions.problems(graph, experiment.precision, shapes)):
        raise ValidationError(problems)
    parallelism = experiment.parallelism
    # With explicit axes a layer that does not know of its split parameter could not be traced.
    splits = parallelism.mesh.axis_type is not AxisType.EXPLICIT
    placements = _place_state(shapes, axes, parallelism.rules.parameters, sizes, splits)
    training = experiment.training
    rows = "training.global_batch_size"
    with users_errors(graph, "data"):
        batch = _abstract_batch(
            experiment,
            mesh,
            sizes,
            experiment.data,
            training.global_batch_size,
            rows,
            training.accumulation,
            graphs.origin_of(graph, rows),
        )
    return Program(
        graph=written,
        resolved=graph,
        experiment=experiment,
        hoist=tuple(hoist),
        mesh=mesh,
        sizes=sizes,
        placements=placements,
        batch=batch,
    )


def _without_kernels(graph: Graph, devices: Sequence[jax.Device]) -> Iterator[Problem]:
    """Yield the nodes whose kernels the devices cannot run."""
    for node in graphs.walk(graph, defaults=False, once=True):
        if not hasattr(getattr(node.value, "__fn_or_cls__", None), "lacking"):
            continue
        what = graphs.build(node.value).lacking(devices[0])
        if what:
            origin = graphs.origin_of(graph, node.path)
            yield Problem(what, node.path, origin, "use BlockwiseAttention")


def _refused_options(
    graph: Graph, options: XlaOptions, devices: Sequence[jax.Device]
) -> Iterator[Problem]:
    for option in options.refused(devices):
        path = f"compiler.{option.path}"
        origin = graphs.origin_of(graph, path)
        yield Problem(option.what, path, origin, nearest=option.nearest)


def vector_of(scalars: Mapping[str, jax.Array]) -> jax.Array:
    """Return scalars as one vector, so that one transfer fetches all of them."""
    return jnp.stack([jnp.asarray(x, jnp.result_type(float)) for x in scalars.values()])


def _abstract_state(
    graph: Graph, hoist: Sequence[str]
) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, tuple[str | None, ...]]]:
    # `eval_shape` returns shapes only; the logical axes are Python values of the same trace, and
    # leave it by this dictionary. The model is built once for both.
    axes: dict[str, tuple[str | None, ...]] = {}

    def init(values: Values) -> dict[str, Any]:
        experiment = graphs.build(graph, hoisting.substitutions(graph, hoist, values))
        state, logical_axes = initialized(experiment)
        axes.update(logical_axes)
        return state

    with components_at_fault("the model cannot be built", "model", graph, hoist=hoist):
        return jax.eval_shape(init, hoisting.values_of(graph, hoist)), axes


def user_error(graph: Graph, error: Exception, path: str = "") -> UserCodeError | None:
    """Return an exception of the user's code with the node that raised it; None for others.

    Args:
      graph: The experiment graph.
      error: The exception, caught below the code that called luthier.
      path: The path to report where the node is not known.
    """
    culprit = graphs.culprit_of(error, graph)
    if not culprit.path and not user_code.frames(error):
        return None
    where = culprit.path or path
    room = 187 - len(where)  # for lines of at most 200 characters
    problem = Problem(user_code.summary(error, room), where)
    return UserCodeError(problem, user_code.details(error, culprit.component))


@contextlib.contextmanager
def users_errors(graph: Graph, path: str = "") -> Iterator[None]:
    """Report exceptions of the user's code with the node that raised them; others pass through.

    Args:
      graph: The experiment graph.
      path: The path to report where the node is not known.

    Raises:
      UserCodeError: The user's code raised an exception, or could not be called.
    """
    try:
        yield
    except LuthierError:
        raise
    except Exception as error:
        if (users := user_error(graph, error, path)) is not None:
            raise users from error
        raise


@contextlib.contextmanager
def components_at_fault(
    what: str,
    path: str,
    graph: Graph,
    batch: Mapping[str, Any] | None = None,
    hoist: Sequence[str] = (),
) -> Iterator[None]:
    """Report errors inside components, which the graph chose, in one line each.

    Args:
      what: The action that fails, for the message.
      path: The part of the graph that is at fault.
      graph: The experiment graph.
      batch: The entries that the components are called with, for the message.
      hoist: Paths of the leaves that are traced.

    Raises:
      UserCodeError: The user's code raised an exception, or could not be called.
      ValidationError: A component raised a TypeError, ValueError, AttributeError or OverflowError,
        or left the sharding of its result ambiguous on a mesh with explicit axes.
    """
    # These four are what Python and JAX raise for arguments that do not fit: shapes that do not
    # match, a keyword that a class does not take, a size beyond 64 bits. Any other error is a bug
    # of ours, and keeps its traceback.
    try:
        yield
    except LuthierError:
        raise
    except Exception as error:
        is_concretization = isinstance(error, jax.errors.ConcretizationTypeError)
        if is_concretization and hoist:
            # A TypeError, but no fault: a hoisted leaf steers a Python branch. Whoever hoists
            # catches it, and makes the leaf a constant.
            raise
        if (users := user_error(graph, error, path)) is not None:
            key = error.args[0] if isinstance(error, KeyError) and error.args else None
            if batch is not None and isinstance(key, str) and key not in batch:
                remedy = (
                    f"the batch has {', '.join(batch)}: the entries of the data that the task "
                    "lists in `batch_axes`"
                )
                problem = dataclasses.replace(users.problems[0], remedy=remedy)
                users = UserCodeError(problem, users.details)
            raise users from error
        # The errors that JAX raises where axes are explicit have no public name.
        known = isinstance(error, TypeError | ValueError | AttributeError | OverflowError)
        explicit = type(error).__name__ in ("ShardingTypeError", "DuplicateSpecError")
        if is_concretization or not (known or explicit):
            raise
        line = str(error).strip().partition("\n")[0]
        problem = Problem(f"{what}: {type(error).__name__}: {line}", path)
        # No frame is the user's, but what they are called with may be: a wrong `batch_spec` fails
        # in the first layer that reads the batch.
        parts = graphs.users_components(graph)
        if batch is None or not parts:
            raise ValidationError(problem) from error
        entries = ", ".join(f"{name}={user_code.described(x)}" for name, x in batch.items())
        if all(part == "data" or part.startswith(("data.", "evaluations")) for part in parts):
            path, component = next(iter(parts.items()))
            details = user_code.spec_definition(component)
            problem = dataclasses.replace(problem, path=path)
            raise UserCodeError(problem, [*details, f"  the batch has {entries}"]) from error
        names = ", ".join(f"{part} ({one.__qualname__})" for part, one in parts.items())
        remedy = f"the batch has {entries}; code of yours is in {names}"
        raise ValidationError(dataclasses.replace(problem, remedy=remedy)) from error


def _debugs_nans() -> bool:
    """Return whether JAX is to raise where a NaN or an infinity is made (`JAX_DEBUG_NANS`)."""
    return bool(_config.jax_debug_nans or _config.jax_debug_infs)


def _checked(jitted: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that raises at the operation that makes a NaN.

    Args:
      jitted: The step, under `jax.jit`.
      step: The same, not compiled.
    """

    # JAX checks what a `jax.jit` function returns where a hook of the thread is set. The contexts
    # set it; any such context that was left before has unset it.
    def checked(*arguments: Any) -> Any:
        with jax.debug_nans(_config.jax_debug_nans), jax.debug_infs(_config.jax_debug_infs):
            try:
                return jitted(*arguments)
            except FloatingPointError:
                # Once more, in Python: a scan over layers, too, is a loop then, so that the
                # traceback ends in the layer. Nothing was donated, because JAX does not donate
                # while it checks.
                with jax.disable_jit():
                    step(*arguments)
                raise

    return checked


def _place_state(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    axes: Mapping[str, tuple[str | None, ...]],
    rules: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    splits_by_size: bool,
) -> dict[str, Placement]:
    # Names in the state are paths that end in the name of the parameter they belong to
    # (`parameters/W`, `ema/W`, `optimizer/stages/1/first_moment/W`), so an array of the state with
    # the name and the shape of a parameter is sharded as the parameter is: an optimizer need not
    # say so. Those of another shape (factored moments, preconditioners) state their axes, and get
    # what the rules leave of them, without an error where the mesh does not divide them.
    infos: dict[str, ArrayInfo] = {}
    parameters = {name.partition("/")[2] for name in shapes if name.startswith("parameters/")}
    shape_of = {name: shapes[f"parameters/{name}"].shape for name in parameters}
    for name, aval in shapes.items():
        own = name.rpartition("/")[2]
        is_like_parameter = own in shape_of and aval.shape == shape_of[own]
        # A name with axes that no parameter has is of a variable, of which nothing is derived.
        if own in axes and (own not in shape_of or is_like_parameter):
            own_axes: tuple[str | None, ...] | None = axes[own]
        elif is_like_parameter and splits_by_size:
            own_axes = None
        else:  # counters, statistics and variables of the model are whole on every device
            own_axes = (None,) * len(aval.shape)
        infos[name] = ArrayInfo(aval.shape, aval.dtype, axes.get(name, own_axes))
    # Parameters alone first, for their errors: a dimension that the mesh does not divide is
    # reported once by the name in the model, not again for each array of the optimizer.
    place({n: infos[f"parameters/{n}"] for n in sorted(parameters)}, rules, sizes)
    derived = {name: info for name, info in infos.items() if name in axes}
    plain = {name: info for name, info in infos.items() if name not in axes}
    placements = place(plain, rules, sizes) | place_derived(derived, rules, sizes)
    # Sorted, so that the order of the leaves does not depend on how the model is put together.
    return {name: placements[name] for name in sorted(placements)}


def _abstract_batch(
    experiment: Experiment,
    mesh: jax.sharding.Mesh,
    sizes: Mapping[str, int],
    data: Data,
    global_batch_size: int,
    path: str,
    accumulation: int,
    origin: str = "",
) -> dict[str, jax.ShapeDtypeStruct]:
    table = experiment.parallelism.rules.activations
    shards = axis_product(table.get("batch", ()), sizes)
    # Every microbatch is split over all devices of the batch axes, so it is the microbatch, not
    # the batch, that they must divide.
    microbatch = global_batch_size // accumulation
    if microbatch % shards:
        fitting = shards * accumulation
        remedy = f"use a multiple of {fitting}, or a mesh with fewer devices on the batch"
        what = f"{microbatch} rows cannot be divided over {shards} devices"
        if accumulation > 1:
            what += f" ({global_batch_size} rows in {accumulation} microbatches)"
        raise ValidationError(Problem(what, path, origin, remedy))
    spec = data.batch_spec(global_batch_size)
    task_axes = experiment.task.batch_axes
    at = "data" if path.startswith("training.") else f"{path.rpartition('.')[0]}.data"
    missing = sorted(set(task_axes) - set(spec))
    if missing:
        raise BadInput(
            Problem(f"the data has no {', '.join(missing)}; it has {', '.join(spec)}", at)
        )
    entries = {}
    for name in task_axes:  # entries that the task does not read are not sent to the devices
        _check_entry(data, at, name, spec[name], experiment.task, global_batch_size)
        shape, dtype = spec[name]
        info = {name: ArrayInfo(shape, jnp.dtype(dtype), task_axes[name])}
        placed = place(info, table, sizes, path="parallelism.rules.activations")
        sharding = NamedSharding(mesh, placed[name].spec)
        entries[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return entries


def _check_entry(data: Data, path: str, name: str, entry: Any, task: Any, num_rows: int) -> None:
    """Refuse an entry of a `batch_spec` that the task cannot read."""
    # Here and not in the first layer that reads the batch, where nothing would name the data.
    axes, remedy = task.batch_axes[name], ""
    try:
        shape, dtype = entry
        shape, dtype = tuple(shape), jnp.dtype(dtype)
    except (TypeError, ValueError):
        what = f"batch_spec has {user_code.described(entry)} for {name}, not a shape and a dtype"
    else:
        what = f"batch_spec has {name} of shape {shape}"
        if axes is not None and len(shape) != len(axes):
            what += f", and the task reads it as ({', '.join(map(str, axes))})"
            if name == "inputs" and shape and hasattr(task, "input_axes"):
                nones = [None] * (len(shape) - 1)
                remedy = f"set task.input_axes={nones}, an axis for each dimension after the rows"
        elif not shape or shape[0] != num_rows:
            what += f", whose first dimension is not the {num_rows} rows of a batch"
        else:
            return
    component = type(data)
    if user_code.is_users_component(component):
        details = user_code.spec_definition(component)
        problem = Problem(f"{component.__qualname__}.{what}", path, remedy=remedy)
        raise UserCodeError(problem, details)
    raise ValidationError(Problem(what, path, remedy=remedy))
