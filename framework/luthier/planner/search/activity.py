"""How the compilers of kinds of devices use memory; calibrated against their own counts."""

from __future__ import annotations

import dataclasses
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
    spread_back,
    together,
)


@dataclasses.dataclass(frozen=True)
class Compiler:
    """How a compiler of one kind of devices uses memory.

    Args:
      slack: How many steps a buffer outlives its last reader, because others run beside it.
      ahead: Whether parameters for the next product are gathered while a step runs, a loop, too.
      keeps_copies: Whether parameters in the narrower type that is computed in are kept from
        before the first layer on, laid out as the parameters.
      narrows: Whether products are of bfloat16 unless more is asked: what is computed for them by
        element, and weights that a loop collects for them, is stored so.
      compares: Whether single elements that are put into place are found by comparing positions,
        in whatever reads them.
      delays: Whether products that only a gradient needs wait for the last loop of layers. A TPU's
        compiler does so in some programs, and its reasons do not show in what it is given.
    """

    slack: int = 0
    ahead: bool = False
    keeps_copies: bool = False
    narrows: bool = False
    compares: bool = False
    delays: bool = True


COMPILERS: Mapping[str, Compiler] = {
    "tpu": Compiler(keeps_copies=True, narrows=True, compares=True, delays=False),
    "gpu": Compiler(slack=4, ahead=True),
    "cpu": Compiler(),
}
"""By platform."""


# Buffers of a program, and the steps that make and end them, by logical axes.


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A value that has memory.

    Args:
      size: Bytes over all devices.
      labels: Logical axis of every dimension.
      name: What people call it, where it is a residual.
    """

    size: int
    labels: Labels
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What devices must send each other, as far as it is known without a mesh.

    Args:
      value: What is exchanged.
      over: The logical axes whose mesh axes it is exchanged along; none for a parameter that is
        gathered along all axes that activations are not split by.
      times: How often in a step.
    """

    value: Buffer
    over: tuple[str, ...]
    times: int


@dataclasses.dataclass
class ProgramStep:
    """One step of a program: what it makes, what dies after it, and what runs inside of it.

    Args:
      makes: Buffers that it makes.
      ends: Buffers that nothing reads after it.
      passing: Parameters and sums of gradients that are whole while it runs.
      inner: What runs inside: the body of a loop, or the sides of a branch.
      times: How often that runs.
      is_product: Whether it is a product.
      is_gradient: Whether it is a product that only a gradient needs.
      is_by_element: Whether what it makes can take the place of what dies.
      reads: Buffers that it reads.
    """

    makes: list[int] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)
    passing: list[Buffer] = dataclasses.field(default_factory=list)
    inner: Sequence[Activity] = ()
    times: int = 1
    is_product: bool = False
    is_gradient: bool = False
    is_by_element: bool = False
    reads: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Activity:
    """Buffers of a program, and the steps that make and end them; what is given has its own.

    Args:
      buffers: All that have memory.
      steps: What is done, in order.
      exchanges: What devices send each other.
      residuals: What loops keep for the backward pass.
      given: Buffers whose memory is counted outside.
      copies: Parameters of layers in the narrower type that is computed in, by their number.
    """

    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    steps: list[ProgramStep] = dataclasses.field(default_factory=list)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    residuals: list[Buffer] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)
    copies: dict[Any, Buffer] = dataclasses.field(default_factory=dict)


# What a program keeps in memory at a time, for any mesh: buffers, and when they live.
#
# The compiler fuses what is computed by element into what reads it. So only some values are taken
# to have a buffer: results of products, reductions, loops and moves, and what products read.

_INLINED = {
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
_NAMES = {
    "name", "reshape", "transpose", "squeeze", "sharding_constraint", "optimization_barrier",
    "copy", "convert_element_type", "broadcast_in_dim", "reduce_precision", "pvary",
}  # fmt: skip
_MADE = {
    "dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated", "gather", "sort",
    "scatter", "scatter-add", "scatter_add", "concatenate", "dynamic_slice", "top_k", "cumsum",
    "argmax", "argmin", "while", "pad", "random_bits", "threefry2x32", "all_gather", "all_to_all",
    "psum", "psum_invariant", "psum_scatter", "reduce_scatter", "ppermute", "dynamic_update_slice",
}  # fmt: skip
_PARTS = {"dynamic_slice", "slice", "select_n"}
_PRODUCTS = {"dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated"}


@dataclasses.dataclass(frozen=True)
class _Value:
    labels: Labels
    sources: frozenset[int]
    name: str = ""
    parameter: Buffer | None = None
    is_view: bool = True
    number: int = -1


def follow(
    jaxpr: Any,
    labels: Sequence[Labels],
    is_parameter: Sequence[bool],
    manual: Manual | None = None,
    compiler: Compiler | None = None,
) -> Activity:
    """Return the activity of a program.

    Args:
      jaxpr: A `ClosedJaxpr`.
      labels: Logical axes of every argument.
      is_parameter: Whether an argument is a parameter, which is gathered where it is used.
      manual: What tells the logical axes of mesh axes; None where the program names no mesh.
      compiler: What it is compiled by; None means one that does what the program says.
    """
    compiler = compiler or Compiler()
    values = []
    for i, (var, own) in enumerate(zip(jaxpr.jaxpr.invars, labels, strict=True)):
        whole = Buffer(_bytes(var.aval), own) if is_parameter[i] else None
        values.append(_Value(own, frozenset(), parameter=whole, number=i))
    known: dict[Any, Labels] = {}
    for _ in range(3):  # what is read by element has the axes of what comes of it
        made = Activity()
        follower = _Follower(made, 1, manual or Manual({}, {}), known, compiler)
        outs = follower.run(jaxpr.jaxpr, values)
    if compiler.delays:
        _delay_gradients(made)
    _close(made, outs)
    return made


class _Follower:
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
        self._read: dict[Any, bool] = {}

    def run(self, jaxpr: Any, given: Sequence[_Value]) -> list[_Value]:
        """Follow a program; return its results."""
        self._read |= _read_by_products(jaxpr)
        env: dict[Any, _Value] = dict(zip(jaxpr.invars, given, strict=True))
        for var in jaxpr.constvars:
            env[var] = _plain(var.aval)
        needed = _needed(jaxpr)
        for equation in needed:
            values = [self._value(env, v) for v in equation.invars]
            for var, value in zip(equation.outvars, self._equation(equation, values), strict=True):
                env[var] = value
        spread_back(needed, {var: value.labels for var, value in env.items()}, self._known)
        return [self._value(env, v) for v in jaxpr.outvars]

    @staticmethod
    def _value(env: Mapping[Any, _Value], var: Any) -> _Value:
        return _plain(var.aval) if isinstance(var, jex_core.Literal) else env[var]

    def _equation(self, equation: Any, given: list[_Value]) -> list[_Value]:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, given)
        if name == "shard_map":
            return self._shard_map(equation, given)
        if name == "cond":
            return self._cond(equation, given)
        if name in _INLINED:
            inner = next(_jaxprs(equation.params), None)
            if inner is not None and len(inner.invars) == len(given):
                self._share(equation.outvars, inner.outvars)
                outs = self.run(inner, given)
                self._share(inner.invars, equation.invars)
                return outs
        sources = frozenset[int]().union(*(v.sources for v in given))
        every = out_labels(equation, [v.labels for v in given])
        every = [*every, *every[:1] * (len(equation.outvars) - len(every))]
        if name == "sharding_constraint":
            every = [self._manual.constrained(equation.params["sharding"].spec, every[0])]
        else:
            every = [
                self._with_required(v, labels) for v, labels in zip(equation.outvars, every, strict=True)
            ]
        if name in _NAMES:
            return [self._renamed(equation, given, every[0], sources)]
        is_made = name in _MADE or name.startswith("reduce_")
        made = []
        for var, labels in zip(equation.outvars, every, strict=True):
            if is_made:
                value = self._make(var, labels, sources, given, equation, f"({name})")
            else:
                computed = _Value(labels, sources, f"({name})", is_view=not sources)
                value = self._kept(equation.outvars[0], computed, given)
            if name in _PARTS:
                parameter = next((v.parameter for v in given if v.parameter is not None), None)
                if parameter is not None:
                    whole = Buffer(self._bytes(var.aval, labels), labels, parameter.name)
                    value = dataclasses.replace(value, parameter=whole)
            made.append(value)
        return made

    def _renamed(
        self, equation: Any, given: list[_Value], labels: Labels, sources: frozenset[int]
    ) -> _Value:
        """Return a value by another name, shape or type."""
        name, var = equation.primitive.name, equation.outvars[0]
        called = equation.params["name"] if name == "name" else given[0].name
        parameter, number = given[0].parameter, given[0].number
        if parameter is not None:
            size = self._bytes(var.aval, labels)
            is_narrower = size < parameter.size and name == "convert_element_type"
            if is_narrower and number >= 0 and self._times > 1:
                self._made.copies[number] = Buffer(size * self._times, labels)
            parameter = Buffer(size, labels, parameter.name)
        is_copy = name == "convert_element_type" and bool(sources) and parameter is None
        is_view = given[0].is_view and not is_copy
        value = _Value(labels, sources, called, parameter, is_view, number)
        return self._kept(var, value, given)

    def _share(self, variables: Sequence[Any], others: Sequence[Any]) -> None:
        """Tell the axes of variables to others that stand for the same values, or for turns."""
        for var, other in zip(variables, others, strict=True):
            if isinstance(var, jex_core.Literal) or isinstance(other, jex_core.Literal):
                continue
            if var in self._known:
                more = len(other.aval.shape) - len(var.aval.shape)
                axes = (*(None,) * more, *self._known[var])[max(-more, 0) :]
                self._known.setdefault(other, axes)

    def _with_required(self, var: Any, labels: Labels) -> Labels:
        """Return the axes of a value with those that what reads it told before."""
        return together(labels, self._known.get(var))

    def _kept(self, var: Any, value: _Value, given: Sequence[_Value]) -> _Value:
        """Return a value that is fused, or has a buffer because a product reads it."""
        if value.is_view or var not in self._read:
            return value
        return self._make(var, value.labels, value.sources, given, None, value.name)

    def _make(
        self,
        var: Any,
        labels: Labels,
        sources: frozenset[int],
        given: Sequence[_Value],
        equation: Any,
        name: str = "",
    ) -> _Value:
        step = ProgramStep(makes=[len(self._made.buffers)], reads=sorted(sources))
        size = self._bytes(var.aval, labels)
        if equation is None and not self._read[var]:  # products of what they are given
            size = self._narrowed(var.aval, size)
        if self._compiler.compares and _is_placing(equation) and BATCH in labels:
            size = 0
        buffer = Buffer(size, labels, name)
        self._made.buffers.append(buffer)
        if equation is not None and equation.primitive.name in _PRODUCTS:
            step.is_product = True
            for value in given[:2]:
                if value.parameter is not None:
                    step.passing.append(value.parameter)
                    self._made.exchanges.append(Exchange(value.parameter, (), self._times))
            if equation.primitive.name == "dot_general":
                over = contracted(equation, [v.labels for v in given])
                step.is_gradient = BATCH in over
                if step.is_gradient and BATCH not in labels:
                    step.passing.append(buffer)  # before the sum over devices it is whole
                if over:
                    self._made.exchanges.append(Exchange(buffer, over, self._times))
        is_sum = name.startswith("(scatter") and BATCH not in labels
        if is_sum and any(BATCH in v.labels for v in given):
            step.passing.append(buffer)
        self._made.steps.append(step)
        return _Value(labels, frozenset(step.makes), name)

    def _shard_map(self, equation: Any, given: list[_Value]) -> list[_Value]:
        """Follow what runs on each place of some mesh axes, with its own parts."""
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

    def _cond(self, equation: Any, given: list[_Value]) -> list[_Value]:
        """Follow the sides of a branch; each starts with the same, and one of them runs."""
        sources = frozenset[int]().union(*(v.sources for v in given))
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
            labels = every[0][i].labels
            for outs in every[1:]:
                labels = together(labels, outs[i].labels)
            labels = self._with_required(var, labels)
            step.makes.append(len(self._made.buffers))
            self._made.buffers.append(Buffer(self._bytes(var.aval, labels), labels, "(cond)"))
            results.append(_Value(labels, frozenset(step.makes[-1:]), "(cond)"))
        step.is_by_element = True
        self._made.steps.append(step)
        return results

    def _scan(self, equation: Any, given: list[_Value]) -> list[_Value]:
        consts, carries = parts_of_scan(equation)
        length = equation.params["length"]
        stacked = given[consts + carries :]
        leading = next((v.labels[0] for v in stacked if v.labels and v.labels[0]), None)
        inner, outs = self._body(equation, given)
        _close(inner, outs[:carries])
        sources = frozenset[int]().union(*(v.sources for v in given))
        step = ProgramStep(inner=(inner,), times=length, reads=sorted(sources))
        self._made.exchanges += inner.exchanges
        self._made.residuals += inner.residuals
        self._made.copies |= inner.copies
        results = []
        for i, (var, out) in enumerate(zip(equation.outvars, outs, strict=True)):
            if i < carries and given[consts + i].sources:
                results.append(_Value(out.labels, given[consts + i].sources))
                continue
            labels = self._with_required(var, out.labels if i < carries else (leading, *out.labels))
            size = self._bytes(var.aval, labels)
            size = size if out.parameter is None else self._narrowed(var.aval, size)
            buffer, index = Buffer(size, labels, out.name), len(self._made.buffers)
            self._made.buffers.append(buffer)
            step.makes.append(index)
            if i >= carries and BATCH in labels:
                self._made.residuals.append(buffer)
            results.append(_Value(labels, frozenset({index}), out.name))
        self._made.steps.append(step)
        return results

    def _body(self, equation: Any, given: list[_Value]) -> tuple[Activity, list[_Value]]:
        """Follow the body of a loop; a carry may have axes only after the first turn."""
        consts, carries = parts_of_scan(equation)
        length, body = equation.params["length"], next(_jaxprs(equation.params))
        inner_given = []
        for i, value in enumerate(given):
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
        """Return the bytes of a value over all devices, of which a trace may see those of one."""
        return _bytes(aval) * self._manual.places(labels)

    def _narrowed(self, aval: Any, size: int) -> int:
        """Return the bytes of a value that products read."""
        per_element = _bytes(aval) // max(num_elements(aval), 1)
        return size * 2 // per_element if self._compiler.narrows and per_element > 2 else size


def _enter(inner: Activity, value: _Value, size: int) -> _Value:
    """Return an activation that a body reads; its memory is counted outside."""
    if value.parameter is not None or BATCH not in value.labels:
        return value
    index = len(inner.buffers)
    inner.buffers.append(Buffer(size, value.labels, value.name))
    inner.given.add(index)
    return dataclasses.replace(value, sources=frozenset({index}))


def _of_layer(value: _Value, num_layers: int) -> Buffer | None:
    """Return the parameter of one layer, where a value holds those of all."""
    whole = value.parameter
    return whole and Buffer(whole.size // num_layers, value.labels[1:], whole.name)


def _delay_gradients(activity: Activity) -> None:
    """Move products that only a gradient needs behind the last loop, where compilers put them."""
    loops = [i for i, step in enumerate(activity.steps) if step.inner]
    if not loops:
        return
    late = [s for s in activity.steps[: loops[-1]] if s.is_gradient]
    kept = [s for s in activity.steps if not any(s is one for one in late)]
    activity.steps[:] = [*kept, *late]


def parts_of_scan(equation: Any) -> tuple[int, int]:
    """Return how many constants and how many carries a scan has, from ranks alone.

    JAX 0.10 names both among the parameters, 0.12 does not.
    """
    body = next(_jaxprs(equation.params))
    pairs = [*zip(equation.invars, body.invars, strict=True)]
    stacked = sum(outer.aval.ndim > inner.aval.ndim for outer, inner in pairs)
    carries = sum(
        outer.aval.ndim == inner.aval.ndim
        for outer, inner in zip(equation.outvars, body.outvars, strict=True)
    )
    return len(pairs) - stacked - carries, carries


def _close(activity: Activity, outs: Sequence[_Value]) -> None:
    """Find where every buffer ends; what comes out lives on."""
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
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return num_elements(aval) * 8
    return num_elements(aval) * jnp.dtype(dtype).itemsize


def _needed(jaxpr: Any) -> list[Any]:
    """Return the equations that the results depend on: a trace also builds what it does not use."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if any(v in wanted for v in equation.outvars):
            kept.append(equation)
            wanted.update(v for v in equation.invars if not isinstance(v, jex_core.Literal))
    return kept[::-1]


def _read_by_products(jaxpr: Any) -> dict[Any, bool]:
    """Return the variables that products read, and whether in more than the default precision."""
    found: dict[Any, bool] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name not in _PRODUCTS:
            continue
        asked = jax.tree.leaves(equation.params.get("precision"))
        is_exact = any(one not in (None, jax.lax.Precision.DEFAULT) for one in asked)
        for var in equation.invars[:2]:
            if not isinstance(var, jex_core.Literal):
                found[var] = found.get(var, False) or is_exact
    return found


def _is_placing(equation: Any) -> bool:
    """Return whether an equation puts single elements into place."""
    if equation is None or not equation.primitive.name.startswith("scatter"):
        return False
    return not equation.params["dimension_numbers"].update_window_dims


def _jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            yield getattr(params[key], "jaxpr", params[key])
