"""Liveness analysis of a traced gradient: its buffers, when they live, and what devices exchange.

It is an abstract interpreter of jaxprs. Each value carries the logical axes of its dimensions
(`labels`), so that one trace, made as for one device, serves every mesh: `model` divides the bytes
of a buffer by the mesh axes that a layout gives to its labels. The factors in which compilers
differ are in `COMPILERS`; they are calibrated against the compilers' own counts
(`tools/bench/plan.py calibration`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from luthier.planner.search.labels import (
    BATCH,
    Labels,
    Manual,
    contracted,
    num_elements,
    out_labels,
    shape_of,
    spread_back,
    together,
)


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Model of how a compiler for one kind of device uses memory.

    Args:
      slack: Number of steps that a buffer outlives its last reader, because operations run
        concurrently.
      ahead: Whether the parameters of the next product (or loop) are gathered while a step runs.
      keeps_copies: Whether copies of the parameters in the narrower compute dtype exist from before
        the first layer on, sharded like the parameters.
      fuses: Whether matrix products compute their elementwise operands themselves, so that these
        need no buffer.
      reuses: Whether an elementwise operand of a product takes the place of an array of its size
        that it is computed from and that nothing else reads.
      tiles: Tiles of results that a device computes at a time: the long sum of a product with fewer
        is split into parts, and operands that do not divide into them are padded, which is a copy.
        0 means that no sum is split.
      narrows: Whether matrix products read bfloat16 unless a higher precision is requested: weights
        that a loop collects for them are then stored as bfloat16.
      compares: Whether scatters of single elements are lowered to comparisons of positions
        (one-hot) that are fused into the consumer, so that they need no buffer.
      keeps_exponentials: Whether the exponentials of a softmax are stored: its largest element,
        exponentials and their sum are one kernel, and what divides them by the sum reads them.
      stores: Whether reductions read stored arrays: nothing is computed within them but a product
        of two.
      copies_state: Whether the update reads a copy of the optimizer's arrays where a guard may put
        them back. The kernels of the new arrays and of the new parameters all read the old ones,
        in no order that the compiler sees, and the former write over them. Small temporaries may
        take the place of what was copied, which is not counted: the model is above the compiler
        where no array is large.
      delays: Whether products that only a gradient needs are scheduled after the last loop of
        layers. The TPU compiler does so in some programs, for reasons that do not show in the
        jaxpr.
      widens: Whether the device computes in no type of 16 bits, so that values of such types are
        stored in float32.
    """

    slack: int = 0
    ahead: bool = False
    keeps_copies: bool = False
    fuses: bool = False
    reuses: bool = False
    tiles: int = 0
    narrows: bool = False
    compares: bool = False
    keeps_exponentials: bool = False
    stores: bool = False
    copies_state: bool = False
    delays: bool = True
    widens: bool = False


# Chosen by the first six cases of `tools/bench/plan.py`; the others are held out. They describe
# schedulers, not programs, so they may move with any release of XLA: run the calibration again.
COMPILERS: Mapping[str, Compiler] = {
    "tpu": Compiler(
        keeps_copies=True,
        fuses=True,
        narrows=True,
        compares=True,
        keeps_exponentials=True,
        delays=False,
    ),
    # 264 is twice the multiprocessors of an H100.
    "gpu": Compiler(slack=4, ahead=True, reuses=True, tiles=264),
    "cpu": Compiler(stores=True, copies_state=True, widens=True),
}
"""Compiler model by platform."""


# Buffers of a program, and the steps that make and end them, by logical axes.


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A value that is materialized in memory.

    Args:
      size: Bytes over all devices.
      labels: Logical axis of every dimension.
      name: Name for reports: that of a residual (`checkpoint_name`), or the primitive.
    """

    size: int
    labels: Labels
    name: str = ""


@dataclasses.dataclass(frozen=True)
class ProductSizes:
    """Sizes of a matrix product; buffers that count elements, not bytes.

    Args:
      batch: Of the dimensions of both operands and the result.
      rows: Of the other dimensions of the result that the left operand has.
      columns: Of those that the right one has.
      terms: Of the dimensions that are summed over.
      itemsize: Bytes of an element of the left operand.
    """

    batch: Buffer
    rows: Buffer
    columns: Buffer
    terms: Buffer
    itemsize: int


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A collective, described in logical axes because the mesh is not known yet.

    Args:
      value: The buffer that is exchanged.
      over: Logical axes whose mesh axes the result is summed over; empty for a parameter, which is
        gathered along the mesh axes that split it as a parameter but not as an activation.
      times: Executions per step.
    """

    value: Buffer
    over: tuple[str, ...]
    times: int


@dataclasses.dataclass
class ProgramStep:
    """One step of a program: the buffers that it allocates, reads and frees.

    Args:
      makes: Buffers that it allocates (indices into `Activity.buffers`).
      ends: Buffers whose last use it is.
      passing: Transient buffers that are unsharded while it runs: gathered parameters, and
        gradients before their reduce-scatter.
      inner: Activities that run inside: the body of a loop, or the sides of a branch.
      times: How often the inner activity runs.
      is_product: Whether it is a matrix product.
      product: The sizes of a `dot_general`; None for everything else.
      is_gradient: Whether it is a product that sums over the batch, so that only a gradient needs
        it.
      is_by_element: Whether its result may reuse the memory of an operand that dies in it.
      reads: Buffers that it reads.
    """

    makes: list[int] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)
    passing: list[Buffer] = dataclasses.field(default_factory=list)
    inner: Sequence[Activity] = ()
    times: int = 1
    is_product: bool = False
    product: ProductSizes | None = None
    is_gradient: bool = False
    is_by_element: bool = False
    reads: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Activity:
    """Buffers of a program, and the steps that allocate and free them.

    Args:
      buffers: All values that are materialized.
      steps: The steps, in order of execution.
      exchanges: Collectives between devices.
      residuals: Values that loops stack for the backward pass.
      given: Buffers of the caller (arguments of a loop's body): read here, counted there.
      copies: Parameters of layers in the narrower compute dtype, by argument number.
    """

    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    steps: list[ProgramStep] = dataclasses.field(default_factory=list)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    residuals: list[Buffer] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)
    copies: dict[Any, Buffer] = dataclasses.field(default_factory=dict)


# The interpreter. XLA fuses elementwise operations into their consumers, so that most values of a
# jaxpr never exist in memory. Instead of imitating its fusion pass, one rule is used, which the
# calibration holds to a tenth: a value is materialized if it is the result of a product, a
# reduction, a loop or a data movement (`_MADE`), or the computed operand of a product, unless the
# compiler `fuses` it, or of a reduction, if the compiler `stores` it.
# All others only carry `sources`, the buffers that they are recomputed from: whoever reads such a
# value reads these, and keeps them alive.

# Calls without a schedule of their own: their body is followed in place.

_INLINED = {
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
# Views: the same elements by another name, shape or dtype, without a buffer of their own. A cast
# is one as long as it is fused into what reads it; `_renamed` says when it is not.
_NAMES = {
    "name", "reshape", "transpose", "squeeze", "sharding_constraint", "optimization_barrier",
    "copy", "convert_element_type", "broadcast_in_dim", "reduce_precision", "pvary",
    "layout_constraint",
}  # fmt: skip
# Primitives whose result is materialized, and all that start with `reduce_`.
_MADE = {
    "dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated", "gather", "sort",
    "scatter", "scatter-add", "scatter_add", "concatenate", "dynamic_slice", "top_k", "cumsum",
    "argmax", "argmin", "while", "pad", "random_bits", "threefry2x32", "all_gather", "all_to_all",
    "psum", "psum_invariant", "psum_scatter", "reduce_scatter", "ppermute", "dynamic_update_slice",
}  # fmt: skip
# A part of a parameter is still one: it is gathered where a product reads it. So is the result of a
# select, by which a pipeline gates its block (`layers.pipeline._gate`): both sides are the block.
_PARTS = {"dynamic_slice", "slice", "select_n"}
_PRODUCTS = {"dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated"}
_MULTIPLIED = {"mul", "square", "integer_pow"}


@dataclasses.dataclass(frozen=True)
class _Value:
    """The abstract value of a variable.

    Args:
      labels: Logical axis of every dimension.
      sources: Buffers that must be alive to compute it.
      name: Name for reports.
      parameter: The parameter, or part of one, that it is; None for everything else.
      is_view: Whether nothing was computed since `sources` were: then a product that reads it
        reads these, and it needs no buffer.
      number: Argument of the program that it is; -1 if none.
    """

    labels: Labels
    sources: frozenset[int]
    name: str = ""
    parameter: Buffer | None = None
    is_view: bool = True
    number: int = -1


def follow(
    jaxpr: jex_core.ClosedJaxpr,
    labels: Sequence[Labels],
    is_parameter: Sequence[bool],
    manual: Manual | None = None,
    compiler: Compiler | None = None,
    results: Sequence[Labels] = (),
) -> Activity:
    """Analyze the buffers, their lifetimes and the collectives of a program.

    Args:
      jaxpr: A `ClosedJaxpr`.
      labels: Logical axes of every argument.
      is_parameter: Whether an argument is a parameter, which is gathered where it is used.
      manual: Translation of mesh axes to logical axes; None where the program names no mesh.
      compiler: Model of the compiler; None means one that executes the program as it is written.
      results: Logical axes that are required of every result, as those of a parameter are of its
        gradient; empty means none.
    """
    compiler = compiler or Compiler()
    values = []
    for i, (var, own) in enumerate(zip(jaxpr.jaxpr.invars, labels, strict=True)):
        whole = Buffer(_bytes(var.aval), own) if is_parameter[i] else None
        values.append(_Value(own, frozenset(), parameter=whole, number=i))
    # Labels flow forwards from the arguments. Values that are made from nothing (masks, noise,
    # zeros) have none, and would be counted as replicated, though the compiler shards them like
    # their consumers. So each pass also collects, in `known`, the labels that consumers require,
    # and the next one starts from these. Three passes suffice for one loop between the two ends:
    # the first learns what is required of the loop's results, the second carries it through the
    # body, and the third to what feeds the loop. Only the last activity is kept.
    known: dict[Any, Labels] = {}
    if results:
        pairs = zip(jaxpr.jaxpr.outvars, results, strict=True)
        # A literal, such as the gradient of a scalar that is not used, has no axes.
        known |= {var: own for var, own in pairs if isinstance(var, jex_core.Var)}
    for _ in range(3):
        made = Activity()
        follower = _Follower(made, 1, manual or Manual({}, {}), known, compiler)
        outs = follower.run(jaxpr.jaxpr, values)
    if compiler.delays:
        _delay_gradients(made)
    _close(made, outs)
    return made


class _Follower:
    """Interprets one jaxpr, and those that it calls, into an `Activity`.

    Args:
      activity: Takes buffers, steps and exchanges.
      times: How often the program runs in a step: the product of the lengths of the loops around.
      manual: Translation of mesh axes to logical axes, at this depth of `shard_map`.
      known: Labels that consumers required in earlier passes; shared by all followers.
      compiler: Model of the compiler.
    """

    def __init__(
        self,
        activity: Activity,
        times: int,
        manual: Manual,
        known: dict[Any, Labels],
        compiler: Compiler,
    ):
        self._made, self._times, self._manual, self._known = (activity, times, manual, known)
        self._compiler = compiler
        self._read: set[Any] = set()
        self._cast: set[Any] = set()
        self._fed: set[Any] = set()
        self._thin: set[Any] = set()
        self._exponentials: set[Any] = set()

    def run(self, jaxpr: jex_core.Jaxpr, given: Sequence[_Value]) -> list[_Value]:
        """Follow a program; return its results."""
        # Variables are compared by identity, so one set serves the jaxprs that are inlined, too.
        self._read |= _read_by_products(jaxpr)
        if self._compiler.stores:
            self._read |= _read_by_reductions(jaxpr)
        env: dict[Any, _Value] = dict(zip(jaxpr.invars, given, strict=True))
        for var in jaxpr.constvars:  # constants of the trace: no labels, and not counted
            env[var] = _plain(var.aval)
        needed = _needed(jaxpr)
        self._cast |= _only_narrowed(needed, jaxpr.outvars)
        self._fed |= _fed_to_products(needed)
        if self._compiler.keeps_exponentials:
            self._exponentials |= _of_softmax(needed)
        if self._compiler.narrows:
            self._thin |= _read_thinly(needed, jaxpr.outvars)
        for equation in needed:
            values = [self._value(env, v) for v in equation.invars]
            for var, value in zip(equation.outvars, self._equation(equation, values), strict=True):
                env[var] = value
        spread_back(needed, {var: value.labels for var, value in env.items()}, self._known)
        return [self._value(env, v) for v in jaxpr.outvars]

    @staticmethod
    def _value(env: Mapping[Any, _Value], var: Any) -> _Value:
        return _plain(var.aval) if isinstance(var, jex_core.Literal) else env[var]

    def _equation(self, equation: jex_core.JaxprEqn, given: list[_Value]) -> list[_Value]:
        # Structured primitives first, then calls (inlined). What is left gets labels by the rules
        # of `labels`, merged with those that consumers required, and is then one of three kinds:
        # a view, a materialized result, or an elementwise result that is fused. The body of a
        # `while` is not followed: JAX has no reverse-mode derivative of it, so that the layers of a
        # model are never in one.
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, given)
        if name == "shard_map":
            return self._shard_map(equation, given)
        if name == "cond":
            return self._cond(equation, given)
        if name in _INLINED:
            inner = next(_jaxprs(equation.params), None)
            # A call whose operands are not one to one those of its jaxpr counts as elementwise.
            if inner is not None and len(inner.invars) == len(given):
                self._share(equation.outvars, inner.outvars)
                results = zip(equation.outvars, inner.outvars, strict=True)
                # JAX shares the program of calls alike, so what was said of one is taken back.
                for var, result in results:
                    if not isinstance(result, jex_core.Literal):
                        for known in (self._cast, self._read):
                            (known.add if var in known else known.discard)(result)
                outs = self.run(inner, given)
                self._share(inner.invars, equation.invars)
                return outs
        sources = frozenset[int]().union(*(v.sources for v in given))
        every = out_labels(equation, [v.labels for v in given])
        # A constraint is the author's decision on the layout, also where it replicates: it goes
        # before what consumers would like.
        if name == "sharding_constraint":
            every = [self._manual.constrained(equation.params["sharding"].spec, every[0])]
        else:
            every = [
                self._with_required(v, labels)
                for v, labels in zip(equation.outvars, every, strict=True)
            ]
        if name in _NAMES:  # one result for each operand, and mostly one of them
            pairs = zip(equation.outvars, given, every, strict=True)
            return [self._renamed(name, equation.params, *pair) for pair in pairs]
        is_made = name in _MADE or name.startswith("reduce_")
        # Padding, as of the logits' gradient, is fused with what is padded where products read it,
        # or what casts it to fewer bits for them.
        if name == "pad":
            is_made = equation.outvars[0] not in self._cast | self._fed
        is_made |= not self._exponentials.isdisjoint(equation.outvars)
        made = []
        for var, labels in zip(equation.outvars, every, strict=True):
            if is_made:
                value = self._make(var, labels, sources, given, equation, f"({name})")
            else:
                # Computed from no buffer (from constants or parameters): cheap to compute again
                # wherever it is read, so it is never stored.
                computed = _Value(labels, sources, f"({name})", is_view=not sources)
                value = self._kept(var, computed, given)
            if name in _PARTS:
                parameter = next((v.parameter for v in given if v.parameter is not None), None)
                if parameter is not None:
                    whole = Buffer(self._bytes(var.aval, labels), labels, parameter.name)
                    value = dataclasses.replace(value, parameter=whole)
            made.append(value)
        return made

    def _renamed(
        self, name: str, params: Mapping[str, Any], var: Any, given: _Value, labels: Labels
    ) -> _Value:
        """Return a value by another name, shape or dtype."""
        # A parameter stays one, so that the product that reads it gathers it as it is then: cast
        # first, then gathered in the narrow dtype. The copy that a loop casts for one layer is
        # noted for all of its turns: compilers with `keeps_copies` cast the stacked parameters
        # once, before the loop. By argument, because forward and backward share the copy.
        called = params["name"] if name == "name" else given.name
        parameter, number = given.parameter, given.number
        if parameter is not None:
            size = self._bytes(var.aval, labels)
            is_narrower = size < parameter.size and name == "convert_element_type"
            if is_narrower and number >= 0 and self._times > 1:
                self._made.copies[number] = Buffer(size * self._times, labels)
            parameter = Buffer(size, labels, parameter.name)
        # A cast activation is other bytes than its source: a product that reads it needs a buffer.
        is_copy = name == "convert_element_type" and bool(given.sources) and parameter is None
        is_view = given.is_view and not is_copy
        value = _Value(labels, given.sources, called, parameter, is_view, number)
        return self._kept(var, value, [given])

    def _share(self, variables: Sequence[Any], others: Sequence[Any]) -> None:
        """Pass required labels from variables to others that stand for the same values."""
        # Between a loop and its body a stacked value has one dimension more outside: the leading
        # one is dropped on the way in, and unlabelled on the way out.
        for var, other in zip(variables, others, strict=True):
            if isinstance(var, jex_core.Literal) or isinstance(other, jex_core.Literal):
                continue
            if var in self._known:
                more = len(other.aval.shape) - len(var.aval.shape)
                axes = (*(None,) * more, *self._known[var])[max(-more, 0) :]
                self._known.setdefault(other, axes)

    def _with_required(self, var: Any, labels: Labels) -> Labels:
        """Merge a value's labels with those that its consumers required in the previous pass."""
        return together(labels, self._known.get(var))

    def _kept(self, var: Any, value: _Value, given: Sequence[_Value]) -> _Value:
        """Return a fused value, or a materialized one because a product or reduction reads it."""
        if value.is_view or var not in self._read or self._compiler.fuses:
            return value
        return self._make(var, value.labels, value.sources, given, None, value.name)

    def _make(
        self,
        var: Any,
        labels: Labels,
        sources: frozenset[int],
        given: Sequence[_Value],
        equation: jex_core.JaxprEqn | None,
        name: str = "",
    ) -> _Value:
        """Materialize a value: append its buffer, its step, and the collectives that it needs.

        `equation` is None where an elementwise value is stored for what reads it.
        """
        step = ProgramStep(makes=[len(self._made.buffers)], reads=sorted(sources))
        size = self._bytes(var.aval, labels)
        step.is_by_element = equation is None and self._compiler.reuses
        # The gradient of `take_along_axis` on the logits is the usual case: as a buffer it would be
        # as large as the logits.
        if self._compiler.compares and _is_placing(equation) and BATCH in labels:
            size = 0
        buffer = Buffer(size, labels, name)
        self._made.buffers.append(buffer)
        if equation is not None and equation.primitive.name in _PRODUCTS:
            step.is_product = True
            # FSDP: a parameter that a product reads is gathered first, and whole for that long.
            for value in given[:2]:
                if value.parameter is not None:
                    step.passing.append(value.parameter)
                    self._made.exchanges.append(Exchange(value.parameter, (), self._times))
            if equation.primitive.name == "dot_general":
                # `contracted` reads the dimension numbers of `dot_general` only, so partial sums of
                # other products are not counted.
                # A contraction over a sharded dimension leaves partial sums on each device, which
                # are added up along its mesh axes. One over the batch is a weight's gradient: each
                # device has all of it, unsharded, until the reduce-scatter.
                over = contracted(equation, [v.labels for v in given])
                step.product = self._product(equation, given)
                step.is_gradient = BATCH in over
                if step.is_gradient and BATCH not in labels:
                    step.passing.append(buffer)
                if over:
                    self._made.exchanges.append(Exchange(buffer, over, self._times))
        # The gradient of an embedding table is a scatter-add of rows of the batch: whole, too.
        is_sum = name.startswith("(scatter") and BATCH not in labels
        if is_sum and any(BATCH in v.labels for v in given):
            step.passing.append(buffer)
        self._made.steps.append(step)
        return _Value(labels, frozenset(step.makes), name)

    def _product(self, equation: jex_core.JaxprEqn, given: Sequence[_Value]) -> ProductSizes:
        """Return the sizes of a `dot_general`."""
        sums, batches = equation.params["dimension_numbers"]

        def count(side: int, dimensions: Sequence[int]) -> Buffer:
            labels = tuple(given[side].labels[i] for i in dimensions)
            size = math.prod(shape_of(equation.invars[side])[i] for i in dimensions)
            return Buffer(size * self._manual.places(labels), labels)

        def free(side: int) -> list[int]:
            shared = {*sums[side], *batches[side]}
            return [i for i in range(len(shape_of(equation.invars[side]))) if i not in shared]

        aval = equation.invars[0].aval
        size = _bytes(aval) // max(num_elements(aval), 1)
        return ProductSizes(
            count(0, batches[0]), count(0, free(0)), count(1, free(1)), count(0, sums[0]), size
        )

    def _shard_map(self, equation: jex_core.JaxprEqn, given: list[_Value]) -> list[_Value]:
        """Follow a `shard_map`, whose body sees the shards of one place on its manual axes."""
        # Shapes inside are those of a shard. Buffers are counted over all devices everywhere, so
        # `_bytes` multiplies by the places that `within` knows (see `Manual.places`); labels come
        # from the specs, which name mesh axes, not logical ones.
        params, within = equation.params, self._manual.within(equation.params)
        inner = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
        entering = [
            dataclasses.replace(v, labels=within.placed(spec, v.labels))
            for v, spec in zip(given, params["in_specs"], strict=True)
        ]
        around, self._manual = self._manual, within
        self._share(equation.outvars, inner.outvars)
        outs = self.run(inner, entering)
        self._share(inner.invars, equation.invars)
        self._manual = around
        return [
            dataclasses.replace(v, labels=around.placed(spec, v.labels))
            for v, spec in zip(outs, params["out_specs"], strict=True)
        ]

    def _cond(self, equation: jex_core.JaxprEqn, given: list[_Value]) -> list[_Value]:
        """Follow the sides of a branch, of which one runs."""
        # Each side is an activity of its own, beginning with the same operands; `model.peak` takes
        # the larger. The operands are alive anyway (`_enter` gives the side a buffer of which the
        # memory is counted outside). All sides write the same results, so these get one buffer
        # each, out here. Exchanges of all sides are added up, though one side runs: an upper bound.
        # Residuals are not, and are only listed in a report: a loop in a side stacks some if a
        # derivative passes through it, and none does where our layers branch (`ring._where_any`).
        sources = frozenset[int]().union(*(v.sources for v in given))
        # The first operand chooses the side, and is none of its arguments.
        step, every = ProgramStep(reads=sorted(sources)), list[list[_Value]]()
        for branch in equation.params["branches"]:
            inner = Activity()
            entering = [
                _enter(
                    inner,
                    dataclasses.replace(v, sources=frozenset()),
                    self._bytes(x.aval, v.labels),
                )
                for v, x in zip(given[1:], equation.invars[1:], strict=True)
            ]
            # Before the side is followed: what its results need. After it: what its operands do.
            self._share(equation.outvars, branch.jaxpr.outvars)
            follower = _Follower(inner, self._times, self._manual, self._known, self._compiler)
            outs = follower.run(branch.jaxpr, entering)
            self._share(branch.jaxpr.invars, equation.invars[1:])
            _close(inner, ())
            step.inner = [*step.inner, inner]
            self._made.exchanges += inner.exchanges
            self._made.copies |= inner.copies
            every.append(outs)
        results = []
        for i, var in enumerate(equation.outvars):
            # Merged, because one side may return zeros, which have no labels.
            labels = every[0][i].labels
            for outs in every[1:]:
                labels = together(labels, outs[i].labels)
            labels = self._with_required(var, labels)
            step.makes.append(len(self._made.buffers))
            self._made.buffers.append(Buffer(self._bytes(var.aval, labels), labels, "(cond)"))
            results.append(_Value(labels, frozenset(step.makes[-1:]), "(cond)"))
        step.is_by_element = True  # a result may take the place of an operand
        self._made.steps.append(step)
        return results

    def _scan(self, equation: jex_core.JaxprEqn, given: list[_Value]) -> list[_Value]:
        """Follow a loop: one step, whose inner activity is that of one turn."""
        # A carry lives in one buffer across all turns: that of its initial value, if that has one
        # (XLA updates it in place), else a new one of the loop. A stacked result has a buffer for
        # all turns; where it has rows of the batch, it is what the backward loop will read: a
        # residual. Its leading axis is that of the stacked operands, `layers` for a stack.
        consts, carries = parts_of_scan(equation)
        length = equation.params["length"]
        stacked = given[consts + carries :]
        leading = next((v.labels[0] for v in stacked if v.labels and v.labels[0]), None)
        inner, outs = self._body(equation, given)
        # Carries outlive a turn; stacked results are written into the buffers made below, out here.
        _close(inner, outs[:carries])
        sources = frozenset[int]().union(*(v.sources for v in given))
        step = ProgramStep(inner=(inner,), times=length, reads=sorted(sources))
        self._made.exchanges += inner.exchanges
        self._made.residuals += inner.residuals
        self._made.copies |= inner.copies
        results = []
        for i, (var, out) in enumerate(zip(equation.outvars, outs, strict=True)):
            # One that starts from no activation (zeros, a parameter) has no buffer to reuse.
            if i < carries and given[consts + i].sources:
                results.append(_Value(out.labels, given[consts + i].sources))
                continue
            labels = self._with_required(var, out.labels if i < carries else (leading, *out.labels))
            size = self._bytes(var.aval, labels)
            # What a loop collects for products outside of it, such as weights, or for those of
            # another loop is stored as these read it.
            if out.parameter is not None or var in self._thin:
                size = self._narrowed(var.aval, size)
            buffer, index = Buffer(size, labels, out.name), len(self._made.buffers)
            self._made.buffers.append(buffer)
            step.makes.append(index)
            if i >= carries and BATCH in labels:
                self._made.residuals.append(buffer)
            results.append(_Value(labels, frozenset({index}), out.name))
        self._made.steps.append(step)
        return results

    def _body(
        self, equation: jex_core.JaxprEqn, given: list[_Value]
    ) -> tuple[Activity, list[_Value]]:
        """Follow the body of a loop twice: a carry may get its labels in the first turn only."""
        # A gradient's accumulator, for example, starts as zeros without labels; what the first turn
        # adds has some, and so has the carry from then on. The activity of the second is kept.
        # Inside, operands have no sources: their memory is counted outside.
        consts, carries = parts_of_scan(equation)
        length, body = equation.params["length"], next(_jaxprs(equation.params))
        inner_given = []
        # Stacked operands lose their leading dimension; of a stack of parameters, a turn has one
        # layer. A carry with rows of the batch is the residual stream: what enters a layer, which a
        # backward loop with full remat keeps.
        for i, value in enumerate(given):
            # As views, because each exists in memory before the loop starts.
            value = dataclasses.replace(value, sources=frozenset(), is_view=True)
            if i >= consts + carries:
                parameter = _of_layer(value, length)
                value = dataclasses.replace(value, labels=value.labels[1:], parameter=parameter)
            elif i >= consts:
                value = dataclasses.replace(value, name="what enters a layer")
            inner_given.append(value)
        for _ in range(2):
            inner = Activity()
            entering = [
                _enter(inner, v, self._bytes(var.aval, v.labels))
                for v, var in zip(inner_given, body.invars, strict=True)
            ]
            times = self._times * length
            follower = _Follower(inner, times, self._manual, self._known, self._compiler)
            self._share(equation.outvars, body.outvars)
            outs = follower.run(body, entering)
            self._share(body.invars, equation.invars)
            for i in range(carries):
                old = inner_given[consts + i]
                merged = together(old.labels, outs[i].labels)
                inner_given[consts + i] = dataclasses.replace(old, labels=merged)
        return inner, outs

    def _bytes(self, aval: Any, labels: Labels) -> int:
        """Return the bytes of a value over all devices; inside `shard_map` a trace sees a shard."""
        size = _bytes(aval) * self._manual.places(labels)
        is_half = getattr(aval, "dtype", None) in (jnp.bfloat16, jnp.float16)
        return 2 * size if is_half and self._compiler.widens else size

    def _narrowed(self, aval: Any, size: int) -> int:
        """Return the bytes of a value that products read, at the width that they read it in."""
        per_element = _bytes(aval) // max(num_elements(aval), 1)
        return size * 2 // per_element if self._compiler.narrows and per_element > 2 else size


def _enter(inner: Activity, value: _Value, size: int) -> _Value:
    """Give a body its own buffer for an activation that it reads, counted outside.

    Parameters are counted as state, and what has no batch is not followed into the body.
    """
    if value.parameter is not None or BATCH not in value.labels:
        return value
    index = len(inner.buffers)
    inner.buffers.append(Buffer(size, value.labels, value.name))
    inner.given.add(index)
    return dataclasses.replace(value, sources=frozenset({index}))


def _of_layer(value: _Value, num_layers: int) -> Buffer | None:
    """Return the parameter of one layer from the stacked parameters of all."""
    whole = value.parameter
    return whole and Buffer(whole.size // num_layers, value.labels[1:], whole.name)


def _delay_gradients(activity: Activity) -> None:
    """Move products that only a gradient needs behind the last loop, where compilers put them."""
    # In the jaxpr, the gradient of the head comes before the backward loop. Nothing waits for it,
    # so XLA for GPUs and CPUs runs it at the end; its operands, the last activations and the
    # gradient of the logits, stay alive during the whole loop, which can be the peak.
    loops = [i for i, step in enumerate(activity.steps) if step.inner]
    if not loops:
        return
    late = [s for s in activity.steps[: loops[-1]] if s.is_gradient]
    kept = [s for s in activity.steps if not any(s is one for one in late)]
    activity.steps[:] = [*kept, *late]


def parts_of_scan(equation: jex_core.JaxprEqn) -> tuple[int, int]:
    """Return the numbers of constants and carries of a scan, from the ranks of its variables.

    JAX 0.10 has both among the equation's parameters (`num_consts`, `num_carry`), 0.12 does not. A
    stacked operand or result has one dimension more outside the body than inside; constants and
    carries have the same rank on both sides.

    Args:
      equation: A `scan`.
    """
    body = next(_jaxprs(equation.params))
    pairs = [*zip(equation.invars, body.invars, strict=True)]
    stacked = sum(len(shape_of(outer)) > len(shape_of(inner)) for outer, inner in pairs)
    carries = sum(
        len(shape_of(outer)) == len(shape_of(inner))
        for outer, inner in zip(equation.outvars, body.outvars, strict=True)
    )
    return len(pairs) - stacked - carries, carries


def _close(activity: Activity, outs: Sequence[_Value]) -> None:
    """Set the step at which every buffer dies: its last reader, or its maker if nobody reads it.

    Results outlive the program, and what is given belongs to the caller.
    """
    last: dict[int, int] = {}
    for position, step in enumerate(activity.steps):
        for index in {*step.makes, *step.reads} - activity.given:
            last[index] = position
    kept = {index for value in outs for index in value.sources}
    for index, position in last.items():
        if index not in kept:
            activity.steps[position].ends.append(index)


def _plain(aval: Any) -> _Value:
    return _Value((None,) * len(getattr(aval, "shape", ())), frozenset())


def _bytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    # `jnp.dtype` takes no extended dtype, such as that of random keys: two words of 32 bits each.
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return num_elements(aval) * 8
    return num_elements(aval) * jnp.dtype(dtype).itemsize


def _needed(jaxpr: jex_core.Jaxpr) -> list[jex_core.JaxprEqn]:
    """Return the equations that the results depend on; XLA drops the others, a trace keeps them."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if any(v in wanted for v in equation.outvars):
            kept.append(equation)
            wanted.update(v for v in equation.invars if not isinstance(v, jex_core.Literal))
    return kept[::-1]


def _read_by_products(jaxpr: jex_core.Jaxpr) -> set[Any]:
    """Return the variables that products read."""
    products = [e for e in jaxpr.eqns if e.primitive.name in _PRODUCTS]
    # Two operands; a third one, such as the group sizes of `ragged_dot`, is no factor.
    read = (var for equation in products for var in equation.invars[:2])
    return {var for var in read if not isinstance(var, jex_core.Literal)}


def _read_by_reductions(jaxpr: jex_core.Jaxpr) -> set[Any]:
    """Return the variables that reductions read, or the factors of what they read."""
    makers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    read: set[Any] = set()
    for equation in jaxpr.eqns:
        if not equation.primitive.name.startswith("reduce_"):
            continue
        (var, *_), maker = equation.invars, None
        while isinstance(var, jex_core.Var) and (maker := makers.get(var)) is not None:
            if maker.primitive.name not in _NAMES:
                break
            var, maker = maker.invars[0], None
        is_multiplied = maker is not None and maker.primitive.name in _MULTIPLIED
        factors = maker.invars if maker is not None and is_multiplied else [var]
        read |= {v for v in factors if isinstance(v, jex_core.Var) and shape_of(v) == shape_of(var)}
    return read


def _is_exact(product: jex_core.JaxprEqn) -> bool:
    """Return whether a product was asked for at more than default precision."""
    asked = jax.tree.leaves(product.params.get("precision"))
    return any(one not in (None, jax.lax.Precision.DEFAULT) for one in asked)


def _fed_to_products(equations: Sequence[jex_core.JaxprEqn]) -> set[Any]:
    """Return the variables that products read, also by another shape or name."""
    found: set[Any] = set()
    for equation in reversed(equations):
        name = equation.primitive.name
        if name in _PRODUCTS or (name in _NAMES and found.intersection(equation.outvars)):
            found |= {var for var in equation.invars if not isinstance(var, jex_core.Literal)}
    return found


def _only_narrowed(equations: Sequence[jex_core.JaxprEqn], results: Sequence[Any]) -> set[Any]:
    """Return the variables that nothing reads but casts to fewer bits, also by another shape."""
    found: set[Any] = set()
    others = {var for var in results if not isinstance(var, jex_core.Literal)}
    for equation in reversed(equations):  # what reads a variable comes after it
        operands = {var for var in equation.invars if not isinstance(var, jex_core.Literal)}
        is_fused = False
        if equation.primitive.name == "convert_element_type":
            (result,) = equation.outvars
            is_fused = all(_bytes(var.aval) > _bytes(result.aval) for var in operands)
        if equation.primitive.name in _NAMES:
            is_fused |= all(var in found and var not in others for var in equation.outvars)
        (found if is_fused else others).update(operands)
    return found - others


def _read_thinly(equations: Sequence[jex_core.JaxprEqn], results: Sequence[Any]) -> set[Any]:
    """Return the variables that only products read, at default precision, or casts to fewer bits.

    They may do so by another shape, in a loop, or in a function that is called.
    """
    found: set[Any] = set()
    others = {var for var in results if not isinstance(var, jex_core.Literal)}
    inside: dict[int, set[Any]] = {}

    def within(inner: jex_core.Jaxpr) -> set[Any]:
        if id(inner) not in inside:
            inside[id(inner)] = _read_thinly(_needed(inner), inner.outvars)
        return inside[id(inner)]

    def is_thin(equation: jex_core.JaxprEqn, number: int, var: Any) -> bool:
        name = equation.primitive.name
        if name in _PRODUCTS:
            return number < 2 and not _is_exact(equation)
        if name == "convert_element_type" and _bytes(var.aval) > _bytes(equation.outvars[0].aval):
            return True
        if name in _NAMES or name == "pad":
            return all(result in found and result not in others for result in equation.outvars)
        inner = next(_jaxprs(equation.params), None) if name in ("scan", *_INLINED) else None
        if inner is None or len(inner.invars) != len(equation.invars):
            return False
        if name == "scan":
            consts, carries = parts_of_scan(equation)
            if consts <= number < consts + carries:
                return False
        own = inner.invars[number]
        is_read = any(own is read for each in inner.eqns for read in each.invars)
        return not is_read or own in within(inner)

    for equation in reversed(equations):  # what reads a variable comes after it
        for number, var in enumerate(equation.invars):
            if not isinstance(var, jex_core.Literal):
                (found if is_thin(equation, number, var) else others).add(var)
    return found - others


def _of_softmax(equations: Sequence[jex_core.JaxprEqn]) -> set[Any]:
    """Return the exponentials of differences from the largest element of a row.

    Those of `logsumexp` are none: it replaces an infinite largest element first, and its rows are
    those of the vocabulary, too long for one kernel. Nor are those of an online softmax, whose
    largest element is that of several blocks.
    """
    largest, differences, found = set[Any](), set[Any](), set[Any]()
    for equation in equations:
        name = equation.primitive.name
        operands = {v for v in equation.invars if not isinstance(v, jex_core.Literal)}
        if name == "reduce_max":
            largest.update(equation.outvars)
        elif name == "sub" and not largest.isdisjoint(operands):
            differences.update(equation.outvars)
        elif name == "exp" and operands <= differences:
            found.update(equation.outvars)
        elif name in (*_NAMES, "stop_gradient") or (name == "max" and len(operands) == 1):
            for group in (largest, differences):
                if operands <= group:
                    group.update(equation.outvars)
    return found


def _is_placing(equation: jex_core.JaxprEqn | None) -> bool:
    """Return whether an equation scatters single elements, not windows."""
    if equation is None or not equation.primitive.name.startswith("scatter"):
        return False
    return not equation.params["dimension_numbers"].update_window_dims


def _jaxprs(params: Mapping[str, Any]) -> Iterator[jex_core.Jaxpr]:
    # Each primitive has a name of its own for its inner program, closed or open.
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            yield getattr(params[key], "jaxpr", params[key])
