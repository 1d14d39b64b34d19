"""Logical axes of everything that a program computes, followed from its arguments.

A dimension keeps the logical axis of the parameter or of the batch that it comes from, so that one
trace, made as for one device, tells the bytes on each device for every mesh.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core

Labels = tuple[str | None, ...]

LAYERS, BATCH = "layers", "batch"
STAGE = "stage"
"""The mesh axis that the layers of a stack are split along."""


def out_labels(equation: Any, given: Sequence[Labels]) -> list[Labels]:
    """Return the logical axes of what an equation gives.

    Args:
      equation: An equation without an inner program.
      given: The logical axes of its operands.
    """
    name, params = equation.primitive.name, equation.params
    out = equation.outvars[0].aval
    if name == "dot_general":
        return [_of_product(params["dimension_numbers"], *given[:2])]
    if name == "broadcast_in_dim":
        found: list[str | None] = [None] * len(out.shape)
        for source, place in enumerate(params["broadcast_dimensions"]):
            if equation.invars[0].aval.shape[source] == out.shape[place]:
                found[place] = given[0][source]
        return [tuple(found)]
    if name == "reshape":
        return [reshaped(equation.invars[0].aval.shape, out.shape, given[0])]
    if name == "transpose":
        return [tuple(given[0][i] for i in params["permutation"])]
    if name == "squeeze":
        dropped = set(params["dimensions"])
        return [tuple(a for i, a in enumerate(given[0]) if i not in dropped)]
    if "axes" in params and name.startswith(("reduce_", "arg")):
        dropped = set(params["axes"])
        kept = tuple(a for i, a in enumerate(given[0]) if i not in dropped)
        return [kept for _ in equation.outvars]
    if name == "gather":
        return [_of_gather(equation, given)]
    if name.startswith("scatter"):
        return [_of_scatter(equation, given)]
    return [_merged(v.aval.shape, equation.invars, given) for v in equation.outvars]


def reshaped(before: Sequence[int], after: Sequence[int], labels: Labels) -> Labels:
    """Return the logical axes of a reshaped array: those that lead a group of dimensions stay.

    Args:
      before: The old shape.
      after: The new shape.
      labels: The old axes.
    """
    found: list[str | None] = [None] * len(after)
    i = j = 0
    while i < len(before) and j < len(after):
        first, target = i, j
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right and (i < len(before) or j < len(after)):
            if left < right and i < len(before):
                left, i = left * before[i], i + 1
            elif j < len(after):
                right, j = right * after[j], j + 1
            else:
                break
        group = [k for k in range(first, i) if before[k] != 1]
        places = [k for k in range(target, j) if after[k] != 1]
        if group and places:
            own = [labels[k] for k in group if labels[k]]
            found[places[0]] = BATCH if BATCH in own else next(iter(own), None)
        if len(group) == len(places):
            for k, place in zip(group, places, strict=True):
                if before[k] == after[place]:
                    found[place] = labels[k]
    return tuple(found)


def _of_product(numbers: Any, left: Labels, right: Labels) -> Labels:
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    shared = tuple(left[i] or right[j] for i, j in zip(left_batch, right_batch, strict=True))
    dropped = {*left_sum, *left_batch}, {*right_sum, *right_batch}
    free = tuple(a for i, a in enumerate(left) if i not in dropped[0])
    return (*shared, *free, *(a for i, a in enumerate(right) if i not in dropped[1]))


def contracted(equation: Any, given: Sequence[Labels]) -> tuple[str, ...]:
    """Return the logical axes that a product sums over.

    Args:
      equation: A `dot_general`.
      given: The logical axes of its operands.
    """
    (left_sum, right_sum), _ = equation.params["dimension_numbers"]
    pairs = zip(left_sum, right_sum, strict=True)
    found = (given[0][i] or given[1][j] for i, j in pairs)
    return tuple(dict.fromkeys(a for a in found if a))


def _of_gather(equation: Any, given: Sequence[Labels]) -> Labels:
    numbers, out = equation.params["dimension_numbers"], equation.outvars[0].aval.shape
    operand, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    hidden = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    kept = [i for i in range(len(operand)) if i not in hidden]
    found: list[str | None] = [None] * len(out)
    for place, i in zip(numbers.offset_dims, kept, strict=False):
        found[place] = given[0][i] if sizes[i] == operand[i] else None
    rest = [place for place in range(len(out)) if place not in numbers.offset_dims]
    for place, label in zip(rest, given[1], strict=False):
        found[place] = label
    return tuple(found)


def _of_scatter(equation: Any, given: Sequence[Labels]) -> Labels:
    numbers, found = equation.params["dimension_numbers"], list(given[0])
    operand = equation.invars[0].aval.shape
    batching = zip(
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    )
    for place, i in batching:
        found[place] = found[place] or given[1][i]
    hidden = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [i for i in range(len(operand)) if i not in hidden]
    updates = equation.invars[2].aval.shape
    for place, i in zip(kept, numbers.update_window_dims, strict=True):
        if operand[place] == updates[i]:
            found[place] = found[place] or given[2][i]
    return tuple(found)


_NOT_BY_ELEMENT = (
    "sharding_constraint", "scan", "cond", "while", "shard_map", "dot_general", "gather",
    "ragged_dot_general", "ragged_dot", "all_gather", "all_to_all", "sort", "dynamic_slice",
    "dynamic_update_slice", "cumsum", "pad", "concatenate",
)  # fmt: skip


def spread_back(
    equations: Sequence[Any], labels: Mapping[Any, Labels], known: dict[Any, Labels]
) -> None:
    """Find the logical axes of what is read by element: those of what comes of it.

    Args:
      equations: Of one program, in order.
      labels: The logical axes of its variables that are known from what they are made of.
      known: Takes those that are found.
    """
    for equation in reversed(equations):
        name, out = equation.primitive.name, equation.outvars[0]
        if name in _NOT_BY_ELEMENT or out not in labels:
            continue
        required = together(labels[out], known.get(out))
        for var in equation.invars:
            if isinstance(var, jex_core.Literal) or var not in labels:
                continue
            back = _back(equation, var.aval.shape, required)
            if back is not None and together(labels[var], back) != labels[var]:
                known[var] = together(back, known.get(var))


def _back(equation: Any, shape: Sequence[int], required: Labels) -> Labels | None:
    """Return the axes of an operand by those of the result; nothing where they are not alike."""
    name, params, after = (equation.primitive.name, equation.params, equation.outvars[0].aval.shape)
    if name == "reshape":
        return reshaped(after, shape, required)
    if name == "transpose":
        found: list[str | None] = [None] * len(shape)
        for place, source in enumerate(params["permutation"]):
            found[source] = required[place]
        return tuple(found)
    if name == "broadcast_in_dim":
        places = params["broadcast_dimensions"]
        return tuple(
            required[place] if size == after[place] else None
            for size, place in zip(shape, places, strict=True)
        )
    return required if tuple(shape) == tuple(after) else None


def together(labels: Labels, others: Labels | None) -> Labels:
    """Return the logical axes of a value that is known in two ways; a batch stays one.

    Args:
      labels: Its axes.
      others: Its axes as something else tells them; None where nothing does.
    """
    pairs = zip(labels, others or labels, strict=True)
    return tuple(BATCH if BATCH in pair else pair[0] or pair[1] for pair in pairs)


def _merged(shape: Sequence[int], operands: Sequence[Any], given: Sequence[Labels]) -> Labels:
    """Return the axes of a result of the shape of its operands: those that any of them has."""
    found: list[str | None] = [None] * len(shape)
    for operand, labels in zip(operands, given, strict=True):
        if len(operand.aval.shape) != len(shape):
            continue
        found = list(together(tuple(found), labels))
    return tuple(found)


def num_elements(aval: Any) -> int:
    """Return how many elements an abstract array has."""
    return math.prod(getattr(aval, "shape", ()))


@dataclasses.dataclass(frozen=True)
class Manual:
    """From mesh axes, as a trace names them, to logical axes.

    Args:
      table: Logical axis to mesh axes, for activations.
      sizes: Mesh axis to number of devices, of the trace.
      inside: The mesh axes of which the program, where it is looked at, sees one place.
    """

    table: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]
    inside: frozenset[str] = frozenset()

    def within(self, params: Mapping[str, Any]) -> Manual:
        """Return the same inside of a `shard_map`.

        Args:
          params: Parameters of the equation.
        """
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
        return dataclasses.replace(self, inside=self.inside | frozenset(axes))

    def places(self, labels: Labels) -> int:
        """Return how many times the part that is seen makes the whole.

        Args:
          labels: Logical axes of a value.
        """
        axes = {axis for label in labels if label for axis in self._axes(label)}
        return math.prod(self.sizes[axis] for axis in axes & self.inside)

    def placed(self, spec: Sequence[Any], labels: Labels, is_kept: bool = True) -> Labels:
        """Return the logical axes of a value that is split as a partition spec says.

        Args:
          spec: Of each dimension, the mesh axes; later dimensions may be missing.
          labels: What is known of the value.
          is_kept: Whether an axis that is known stays.
        """
        found = list(labels)
        for i, entry in enumerate(spec[: len(found)]):
            axes = _entry(entry)
            if axes and not (is_kept and labels[i]):
                found[i] = self._label(axes, labels[i])
        return tuple(found)

    def constrained(self, spec: Sequence[Any], labels: Labels) -> Labels:
        """Return the logical axes of a value after a constraint.

        Args:
          spec: Of each dimension, the mesh axes, nothing, or that it is left open.
          labels: What is known of the value.
        """
        found = list(self.placed(spec, labels, is_kept=False))
        for i, entry in enumerate(spec[: len(found)]):
            if entry is None and any(self.sizes[a] > 1 for a in self._axes(labels[i] or "")):
                found[i] = None
        return tuple(found)

    def _axes(self, label: str) -> tuple[str, ...]:
        return (STAGE,) if label == LAYERS else tuple(self.table.get(label, ()))

    def _label(self, axes: frozenset[str], known: str | None) -> str | None:
        """Return the logical axis that mesh axes split: the one that is known, if it fits."""
        active = {
            label: frozenset(a for a in self._axes(label) if self.sizes[a] > 1)
            for label in dict.fromkeys((*((known,) if known else ()), *self.table, LAYERS))
        }
        exact = [label for label, own in active.items() if own == axes]
        wider = [label for label, own in active.items() if own > axes]
        return next(iter((*exact, *wider)), known)


def _entry(entry: Any) -> frozenset[str]:
    if isinstance(entry, str):
        return frozenset({entry})
    return frozenset(entry) if isinstance(entry, tuple) else frozenset()
