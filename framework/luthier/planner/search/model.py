"""Analytic model of memory and step time, from one trace of the gradient for all meshes.

The gradient is traced once, its activity has logical axes, and each layout (`MeshLayout`) is a
division by mesh axes: a millisecond each, and no compiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier.layers.declared import merged
from luthier.parallel.rules import axis_product, mesh_axes_of
from luthier.planner.roofline import Roofline, flops_by_dtype, roofline
from luthier.planner.search.activity import (
    COMPILERS,
    Activity,
    Buffer,
    Compiler,
    Exchange,
    ProductSizes,
    follow,
)
from luthier.planner.search.labels import BATCH, LAYERS, STAGE, Manual
from luthier.planner.targets import Chip

_ACCUMULATION = "training.accumulation"


@dataclasses.dataclass(frozen=True)
class Traced:
    """Memory and FLOPs of the gradient of one experiment.

    Args:
      activity: Buffers and exchanges, by logical axes.
      flops: FLOPs over all devices by dtype, recomputation included.
      names: Names that layers give to residuals (`checkpoint_name`).
    """

    activity: Activity
    flops: Mapping[str, int]
    names: tuple[str, ...] = ()


def trace(program: programs.Program, platform: str = "cpu") -> Traced:
    """Trace the gradient of an experiment, and analyze its memory and FLOPs.

    Args:
      program: The experiment's program on any devices.
      platform: Platform to compile for: `tpu`, `gpu` or `cpu`.
    """
    # On the program's own mesh, because layers constrain and `shard_map` by it (`labels.Manual`
    # reads its axes back as logical ones). Without accumulation, so that the loop over microbatches
    # is not in the trace: `MeshLayout.bytes_of` divides by their number instead. The order of the
    # labels is that of the arguments as JAX flattens them: leaves, then the batch by sorted name.
    # `Program.of` forbids such a graph because what is cached and compiled stays that of the old
    # one. Here nothing of that is used: `single` builds the experiment from its graph, inside the
    # trace, and names the leaves, whose shapes do not depend on the microbatches.
    graph = graphs.apply(program.graph, [f"{_ACCUMULATION}=1"])
    single = program.of(graph)
    rules = program.experiment.parallelism.rules

    def gradient(leaves: Any, batch: Any) -> Any:
        # Programs of a plan for a slice hoist nothing, so there are no values to pass.
        unrolled = merged() if platform == "gpu" else contextlib.nullcontext()
        with unrolled, single.tracing(()) as experiment:
            return programs.gradient_of(experiment, single.named(leaves), batch)[1]

    batch = {n: jax.ShapeDtypeStruct(e.shape, e.dtype) for n, e in program.batch.items()}
    leaves = tuple(jax.ShapeDtypeStruct(p.shape, p.dtype) for p in program.placements.values())
    jaxpr, gradients = jax.make_jaxpr(gradient, return_shape=True)(leaves, batch)
    task_axes = program.experiment.task.batch_axes
    labels = [p.axes or (None,) * len(p.shape) for p in program.placements.values()]
    is_parameter = [name.startswith("parameters/") for name in program.placements]
    for name in sorted(batch):
        axes = tuple(task_axes[name])
        labels.append((*axes, *(None,) * (len(batch[name].shape) - len(axes))))
        is_parameter.append(False)
    manual = Manual(rules.activations, program.sizes)
    # A gradient has the axes of its parameter: a scatter into zeros shows none of its own.
    axes_of = dict(zip(program.placements, labels, strict=False))  # the batch has the last labels
    results = [axes_of[f"parameters/{name}"] for name in sorted(gradients)]
    activity = follow(jaxpr, labels, is_parameter, manual, COMPILERS[platform], results)
    return Traced(activity, flops_by_dtype(jaxpr), tuple(sorted(set(_names(jaxpr)))))


def _names(jaxpr: Any) -> Iterator[str]:
    # Of all programs inside, too: layers name their residuals inside of loops and of `checkpoint`.
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inside):
                yield from _names(inside)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


# Memory and time of a layout.

# Arrays of a parameter's size that Adam moves in a step: it reads the gradient, the parameter and
# two moments, and writes the latter three.
_UPDATE = 7


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """Sharding of an experiment.

    Args:
      sizes: Mesh axis to number of devices.
      parameters: Logical axis to mesh axes, for parameters.
      activations: The same for activations.
      accumulation: Microbatches per step.
      across: Mesh axes that cross slices.
    """

    sizes: Mapping[str, int]
    parameters: Mapping[str, Sequence[str]]
    activations: Mapping[str, Sequence[str]]
    accumulation: int = 1
    across: frozenset[str] = frozenset()

    def axes_of(self, labels: Sequence[str | None], is_activation: bool) -> tuple[str, ...]:
        """Return the mesh axes that split an array, each once.

        Args:
          labels: Its logical axes.
          is_activation: Whether the rules for activations apply, and not those for parameters.
        """
        # As `parallel.specs.resolve`: first come, first served. Here the order of mesh axes does
        # not matter, only their product.
        table = self.activations if is_activation else self.parameters
        used: dict[str, None] = {}
        for label in labels:
            rule = (STAGE,) if label == LAYERS else mesh_axes_of(label, table, self.sizes)
            used |= dict.fromkeys(axis for axis in rule if self.sizes.get(axis, 1) > 1)
        return tuple(used)

    def bytes_of(self, buffer: Buffer, is_gathered: bool = False) -> float:
        """Return the bytes of a buffer on one device.

        Args:
          buffer: The buffer.
          is_gathered: Whether it is a parameter in use, sharded as activations are.
        """
        # What has rows of the batch is an activation, and as large as one microbatch.
        is_activation = BATCH in buffer.labels
        axes = self.axes_of(buffer.labels, is_activation or is_gathered)
        size = buffer.size / axis_product(axes, self.sizes)
        return size / self.accumulation if is_activation else size


def layout_of(program: programs.Program) -> MeshLayout:
    """Return how a program is sharded.

    Args:
      program: The experiment's program.
    """
    parallelism = program.experiment.parallelism
    across = parallelism.mesh.across_slices.sizes()
    return MeshLayout(
        program.sizes,
        parallelism.rules.parameters,
        parallelism.rules.activations,
        program.experiment.training.accumulation,
        frozenset(axis for axis, number in across.items() if number > 1),
    )


def temporary_bytes(activity: Activity, layout: MeshLayout, platform: str, guarded: int = 0) -> int:
    """Return the bytes on one device of the temporaries of a step.

    Args:
      activity: The activity of the gradient.
      layout: Sharding of the experiment.
      platform: `tpu`, `gpu` or `cpu`.
      guarded: Bytes on one device of the optimizer's arrays, if a guard may put them back.
    """
    # The larger of two moments: the peak of the gradient, beside which the sum over the earlier
    # microbatches and the narrow copies of parameters are alive, or the update, with all gradients.
    compiler = COMPILERS[platform]
    gradients = sum(layout.bytes_of(b) for b in _results(activity))
    most = peak(activity, layout, compiler)
    if layout.accumulation > 1:
        most += gradients
    if compiler.keeps_copies:
        most += sum(layout.bytes_of(b) for b in activity.copies.values())
    return int(max(most, gradients)) + (guarded if compiler.copies_state else 0)


def peak(activity: Activity, layout: MeshLayout, compiler: Compiler | None = None) -> float:
    """Return the peak of live bytes on one device.

    Args:
      activity: The activity of a program.
      layout: Sharding of the experiment.
      compiler: Model of the compiler; None means one that frees at once and runs sequentially.
    """
    # A sweep over the steps. At each, there is alive: what was allocated and not yet freed; what
    # the step holds unsharded (`passing`), and with prefetching what the next one does; and the
    # peak of what runs inside, of which one side of a branch, or one turn of a loop, counts.
    # Buffers are freed `slack` steps after their last reader.
    compiler = compiler or Compiler()
    sizes = [layout.bytes_of(buffer) for buffer in activity.buffers]
    passing = [sum(layout.bytes_of(b, is_gathered=True) for b in s.passing) for s in activity.steps]
    stored = {index for step in activity.steps if step.is_by_element for index in step.makes}
    padded = {
        index
        for step in activity.steps
        if step.product is not None and not stored.isdisjoint(step.reads)
        if _pads(step.product, layout, compiler.tiles)
        for index in step.reads
    }
    alive = most = 0.0
    waiting: list[float] = []
    for i, step in enumerate(activity.steps):
        made, ended = (sum(sizes[k] for k in group) for group in (step.makes, step.ends))
        alive += made
        whole = passing[i] + (sum(passing[i + 1 : i + 2]) if compiler.ahead else 0.0)
        within = max((peak(inner, layout, compiler) for inner in step.inner), default=0.0)
        # A result may take over an operand that dies here if it has the same size: then it is
        # counted once, and the operand outlives nothing. With padding, the size is another one.
        takes_over = step.is_by_element and padded.isdisjoint(step.makes)
        if takes_over and made in {sizes[k] for k in step.ends}:
            alive -= made
            ended -= made
        most = max(most, alive + whole + within)
        waiting.append(ended)
        if len(waiting) > compiler.slack:
            alive -= waiting.pop(0)
    return most


# Rows and columns of a tile of a product's result, terms of the shortest part of its sum, and the
# bytes of which a part is a multiple. Read from programs that XLA compiled for H100s, of sums over
# vocabularies and over tokens; sums that are not much longer than a part are split by rules that
# these do not describe.
_TILE = (64, 128)
_PART = 1024
_ALIGNED = 16


def _pads(product: ProductSizes, layout: MeshLayout, tiles: int) -> bool:
    """Return whether a compiler splits the sum of a product into parts, and pads its operands."""
    sizes = (product.batch, product.rows, product.columns, product.terms)
    batch, rows, columns, terms = (int(layout.bytes_of(b, is_gathered=True)) for b in sizes)
    given = batch * math.ceil(rows / _TILE[0]) * math.ceil(columns / _TILE[1])
    parts = 1
    while parts * given < tiles and 2 * parts * _PART <= terms:
        parts *= 2
    return parts > 1 and terms % (parts * max(_ALIGNED // product.itemsize, 1)) != 0


def _results(activity: Activity) -> list[Buffer]:
    # Of the gradient's program, the buffers that nothing frees are the gradients.
    ended = {index for step in activity.steps for index in step.ends}
    return [b for index, b in enumerate(activity.buffers) if index not in ended]


def residual_bytes(activity: Activity, layout: MeshLayout) -> list[dict[str, Any]]:
    """Return the residuals that layers keep for the backward pass by name, the largest first.

    Args:
      activity: The activity of the gradient.
      layout: Sharding of the experiment.
    """
    sums: dict[str, float] = {}
    for buffer in activity.residuals:
        sums[buffer.name] = sums.get(buffer.name, 0.0) + layout.bytes_of(buffer)
    # One name may have many buffers: a value for each stack, or unnamed ones by their primitive.
    rows = sorted(sums.items(), key=lambda item: -item[1])
    return [{"name": name, "bytes_per_device": int(size)} for name, size in rows if size >= 1]


def step_time(
    activity: Activity, layout: MeshLayout, chip: Chip, flops: Mapping[str, int], precision: str
) -> Roofline:
    """Return the roofline of a step by the analytic model.

    Args:
      activity: The activity of the gradient.
      layout: Sharding of the experiment.
      chip: Facts of one device.
      flops: FLOPs of the gradient's program over all devices, by dtype.
      precision: Precision of float32 products.
    """
    gradients = sum(layout.bytes_of(b) for b in _results(activity))
    # A microbatch reads its gradients and the sum, and writes the sum; the optimizer, see
    # `_UPDATE`.
    sums = 3 * layout.accumulation * gradients if layout.accumulation > 1 else 0.0
    moved = layout.accumulation * _traffic(activity, layout, 1) + sums + _UPDATE * gradients
    inside = outside = 0.0
    for exchange in activity.exchanges:
        link, network = _sent(exchange, layout)
        inside, outside = inside + link, outside + network
    return roofline(
        chip,
        math.prod(layout.sizes.values()),
        flops,
        precision=precision,
        traffic=int(moved),
        link_bytes=int(inside),
        network_bytes=int(outside),
    )


def _sent(exchange: Exchange, layout: MeshLayout) -> tuple[float, float]:
    """Return the bytes that a device sends for an exchange, within its slice and beyond."""
    # All collectives are rings: among n devices each sends (n - 1) / n of the array per round. A
    # gather and a reduce-scatter are one round; an all-reduce is both, so two.
    # With accumulation each microbatch does all of it again: the gathered parameter is not kept,
    # and its gradients are reduced before they are added up.
    value, times = exchange.value, exchange.times
    if not exchange.over:  # a parameter is gathered along what activations do not split
        held = set(layout.axes_of(value.labels, False))
        axes = held - set(layout.axes_of(value.labels, True))
        size, rounds = layout.bytes_of(value, is_gathered=True), 1
        times *= layout.accumulation
    else:
        axes = set(layout.axes_of(exchange.over, True))
        is_gradient = BATCH in exchange.over
        # The sum of a gradient ends where the parameter lives; that of an activation everywhere.
        kept = set(layout.axes_of(value.labels, False)) if is_gradient else set()
        shards = axis_product(tuple(kept - axes), layout.sizes)
        size = value.size / shards if is_gradient else layout.bytes_of(value)
        rounds = 1 if axes <= kept else 2
        times *= layout.accumulation
    number = axis_product(tuple(axes), layout.sizes)
    if number == 1:
        return 0.0, 0.0
    sent = rounds * times * size * (number - 1) / number
    if not axes & layout.across:
        return sent, 0.0
    # Hierarchical: a reduce-scatter within each slice leaves 1 / within of the bytes for the
    # network. `across` has names only, so an axis that crosses slices counts as if no two of its
    # devices were in one slice: too many bytes for the network, never too few. Where all axes
    # cross, `sent` is counted for the links as well, of which the term is then the shorter one.
    within = axis_product(tuple(axes - layout.across), layout.sizes)
    return sent, sent / within  # first within a slice, then across with what is left


def _traffic(activity: Activity, layout: MeshLayout, times: int) -> float:
    """Return the bytes between one device and its memory, of one microbatch."""
    # Each step reads its operands and writes its results once: what is fused into it is free. Of
    # the sides of a branch, the more expensive one counts.
    sizes = [layout.bytes_of(buffer) for buffer in activity.buffers]
    total = 0.0
    for step in activity.steps:
        sides = [_traffic(inner, layout, times * step.times) for inner in step.inner]
        total += max(sides, default=0.0)
        total += times * sum(sizes[index] for index in (*step.makes, *step.reads))
        # Gathered or summed by one, and read by another.
        total += 2 * times * sum(layout.bytes_of(b, is_gathered=True) for b in step.passing)
    return total
