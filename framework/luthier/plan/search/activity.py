"""What a program keeps in memory at a time, for any mesh: buffers, and when they live.

The compiler fuses what is computed by element into what reads it. So only some values are taken
to have a buffer: results of products, reductions, loops and moves, and what products read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from luthier.plan.search.labels import Labels, contracted, num_elements, out_labels

LAYERS, BATCH = "layers", "batch"

_INLINED = {
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
_NAMES = {
    "name", "reshape", "transpose", "squeeze", "sharding_constraint", "optimization_barrier",
    "copy", "convert_element_type", "broadcast_in_dim", "reduce_precision",
}  # fmt: skip
_MADE = {
    "dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated", "gather", "sort",
    "scatter", "scatter-add", "scatter_add", "concatenate", "dynamic_slice", "top_k", "cumsum",
    "argmax", "argmin", "shard_map", "while", "cond", "pad", "random_bits", "threefry2x32",
}  # fmt: skip
_PRODUCTS = {"dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated"}


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
        gathered along all axes that activations are not shared out by.
      times: How often in a step.
    """

    value: Buffer
    over: tuple[str, ...]
    times: int


@dataclasses.dataclass
class Step:
    """One step of a program: what it makes, what dies after it, and what runs inside of it."""

    makes: list[int] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)
    passing: list[Buffer] = dataclasses.field(default_factory=list)
    inner: Activity | None = None
    times: int = 1
    is_gradient: bool = False
    reads: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Activity:
    """Buffers of a program, and the steps that make and end them; what is given has its own."""

    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    residuals: list[Buffer] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class _Value:
    labels: Labels
    sources: frozenset[int]
    name: str = ""
    parameter: Buffer | None = None
    is_view: bool = True


def follow(jaxpr: Any, labels: Sequence[Labels], is_parameter: Sequence[bool]) -> Activity:
    """Return the activity of a program.

    Args:
      jaxpr: A `ClosedJaxpr`, traced as for one device.
      labels: Logical axes of every argument.
      is_parameter: Whether an argument is a parameter, which is gathered where it is used.
    """
    made = Activity()
    values = []
    for var, own, parameter in zip(jaxpr.jaxpr.invars, labels, is_parameter, strict=True):
        whole = Buffer(_bytes(var.aval), own) if parameter else None
        values.append(_Value(own, frozenset(), parameter=whole))
    outs = _Follower(made, 1).run(jaxpr.jaxpr, values)
    _delay_gradients(made)
    _close(made, outs)
    return made


class _Follower:
    def __init__(self, activity: Activity, times: int):
        self._made, self._times = activity, times
        self._uses: list[tuple[int, frozenset[int]]] = []
        self._read: set[Any] = set()

    def run(self, jaxpr: Any, given: Sequence[_Value]) -> list[_Value]:
        """Follow a program; return its results."""
        self._read |= _read_by_products(jaxpr)
        env: dict[Any, _Value] = dict(zip(jaxpr.invars, given, strict=True))
        for var in jaxpr.constvars:
            env[var] = _plain(var.aval)
        for equation in _needed(jaxpr):
            values = [self._value(env, v) for v in equation.invars]
            for var, value in zip(equation.outvars, self._equation(equation, values), strict=True):
                env[var] = value
        return [self._value(env, v) for v in jaxpr.outvars]

    @staticmethod
    def _value(env: Mapping[Any, _Value], var: Any) -> _Value:
        return _plain(var.aval) if isinstance(var, jex_core.Literal) else env[var]

    def _equation(self, equation: Any, given: list[_Value]) -> list[_Value]:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, given)
        if name in _INLINED:
            inner = next(_jaxprs(equation.params), None)
            if inner is not None and len(inner.invars) == len(given):
                return self.run(inner, given)
        sources = frozenset[int]().union(*(v.sources for v in given))
        every = out_labels(equation, [v.labels for v in given])
        every = [*every, *every[:1] * (len(equation.outvars) - len(every))]
        if name in _NAMES:
            called = equation.params["name"] if name == "name" else given[0].name
            parameter = given[0].parameter
            if parameter is not None:
                parameter = Buffer(_bytes(equation.outvars[0].aval), every[0], parameter.name)
            is_copy = name == "convert_element_type" and bool(sources) and parameter is None
            is_view = given[0].is_view and not is_copy
            value = _Value(every[0], sources, called, parameter, is_view)
            return [self._kept(equation.outvars[0], value, given)]
        is_made = name in _MADE or name.startswith("reduce_")
        made = []
        for var, labels in zip(equation.outvars, every, strict=True):
            if is_made:
                made.append(self._make(var, labels, sources, given, equation, f"({name})"))
            else:
                computed = _Value(labels, sources, f"({name})", is_view=not sources)
                made.append(self._kept(var, computed, given))
        return made

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
        step = Step(makes=[len(self._made.buffers)], reads=sorted(sources))
        buffer = Buffer(_bytes(var.aval), labels, name)
        self._made.buffers.append(buffer)
        if equation is not None and equation.primitive.name in _PRODUCTS:
            for value in given[:2]:
                if value.parameter is not None:
                    step.passing.append(value.parameter)
                    self._made.exchanges.append(Exchange(value.parameter, (), self._times))
            if equation.primitive.name == "dot_general":
                over = contracted(equation, [v.labels for v in given])
                step.is_gradient = BATCH in over
                if over:
                    self._made.exchanges.append(Exchange(buffer, over, self._times))
        self._use(sources)
        self._made.steps.append(step)
        return _Value(labels, frozenset(step.makes), name)

    def _use(self, sources: frozenset[int]) -> None:
        self._uses.append((len(self._made.steps), sources))

    def _scan(self, equation: Any, given: list[_Value]) -> list[_Value]:
        params = equation.params
        consts, carries, length = params["num_consts"], params["num_carry"], params["length"]
        body = params["jaxpr"].jaxpr
        stacked = given[consts + carries :]
        leading = next((v.labels[0] for v in stacked if v.labels and v.labels[0]), None)
        inner_given = [
            dataclasses.replace(
                v,
                sources=frozenset(),
                is_view=True,
                parameter=_of_layer(v, length) if i >= consts + carries else v.parameter,
            )
            for i, v in enumerate(given)
        ]
        for i, value in enumerate(inner_given):
            if i >= consts + carries:
                inner_given[i] = dataclasses.replace(value, labels=value.labels[1:])
            elif i >= consts:
                inner_given[i] = dataclasses.replace(value, name="what enters a layer")
        for _ in range(2):  # a carry may have axes only after the first turn
            inner = Activity()
            entering = [
                _enter(inner, v, var) for v, var in zip(inner_given, body.invars, strict=True)
            ]
            outs = _Follower(inner, self._times * length).run(body, entering)
            for i in range(carries):
                old = inner_given[consts + i]
                merged = tuple(a or b for a, b in zip(old.labels, outs[i].labels, strict=True))
                inner_given[consts + i] = dataclasses.replace(old, labels=merged)
        _close(inner, outs[:carries])
        sources = frozenset[int]().union(*(v.sources for v in given))
        step = Step(inner=inner, times=length, reads=sorted(sources))
        self._made.exchanges += inner.exchanges
        self._made.residuals += inner.residuals
        results = []
        for i, (var, out) in enumerate(zip(equation.outvars, outs, strict=True)):
            if i < carries and given[consts + i].sources:
                results.append(_Value(out.labels, given[consts + i].sources))
                continue
            labels = out.labels if i < carries else (leading, *out.labels)
            buffer = Buffer(_bytes(var.aval), labels, out.name)
            index = len(self._made.buffers)
            self._made.buffers.append(buffer)
            step.makes.append(index)
            if i >= carries and BATCH in labels:
                self._made.residuals.append(buffer)
            results.append(_Value(labels, frozenset({index}), out.name))
        self._use(sources)
        self._made.steps.append(step)
        return results


def _enter(inner: Activity, value: _Value, var: Any) -> _Value:
    """Return an activation that a loop's body reads; its memory is counted outside of the loop."""
    if value.parameter is not None or BATCH not in value.labels:
        return value
    index = len(inner.buffers)
    inner.buffers.append(Buffer(_bytes(var.aval), value.labels, value.name))
    inner.given.add(index)
    return dataclasses.replace(value, sources=frozenset({index}))


def _of_layer(value: _Value, num_layers: int) -> Buffer | None:
    """Return the parameter of one layer, where a value holds those of all."""
    whole = value.parameter
    return whole and Buffer(whole.size // num_layers, value.labels[1:], whole.name)


def _delay_gradients(activity: Activity) -> None:
    """Move products that only a gradient needs behind the last loop, where compilers put them."""
    loops = [i for i, step in enumerate(activity.steps) if step.inner is not None]
    if not loops:
        return
    late = [s for s in activity.steps[: loops[-1]] if s.is_gradient]
    kept = [s for s in activity.steps if not any(s is one for one in late)]
    activity.steps[:] = [*kept, *late]


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


def _read_by_products(jaxpr: Any) -> set[Any]:
    """Return the variables that products read, also by another shape or type."""
    found: set[Any] = set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        operands = [v for v in equation.invars if not isinstance(v, jex_core.Literal)]
        if name in _PRODUCTS:
            found.update(operands[:2])
    return found


def _jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            yield getattr(params[key], "jaxpr", params[key])
