"""Propagation of logical axes ("labels") through a jaxpr, forwards and backwards.

A dimension keeps the logical axis of the parameter or of the batch that it comes from, so that one
trace, made as for one device, gives the bytes on each device for every mesh.

This is a small sharding propagation, but over logical axes: XLA's own (Shardy) needs a mesh, and
would have to run again for each layout that a search ranks.
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


def shape_of(variable: jex_core.Var | jex_core.Literal) -> tuple[int, ...]:
    """Return the shape of a variable of a jaxpr."""
    aval: Any = variable.aval  # declared as an `AbstractValue`, which need not be an array
    shape: tuple[int, ...] = aval.shape
    return shape


# Primitives that return each of their operands as it is.
_UNCHANGED = ("optimization_barrier", "pvary")


def out_labels(equation: jex_core.JaxprEqn, given: Sequence[Labels]) -> list[Labels]:
    """Propagate labels forwards through an equation, from operands to results.

    Args:
      equation: An equation without an inner program.
      given: The logical axes of its operands.
    """
    # Primitives that move dimensions have a rule each. All others are taken to be elementwise: a
    # result has the labels of the operands of its rank. For a primitive that is neither, and has no
    # rule, this is an approximation, never an error: no labels where all ranks differ (the value
    # counts as replicated), else those at the same places. So `ragged_dot` and
    # `conv_general_dilated` keep the label of the dimension that they contract. In the forward pass
    # the batch, on which most of the size depends, is at the right place, and the other label
    # matters only where the two axes are split differently (`mlp`, but not `embed`, by `tensor`).
    # The gradient of a convolution's kernel is wrongly counted as split by the batch.
    # Only estimates depend on this: a program that is compiled gets its bytes from the compiler.
    name, params = equation.primitive.name, equation.params
    out = shape_of(equation.outvars[0])
    if name in _UNCHANGED:
        return list(given)
    if name == "dot_general":
        return [_of_product(params["dimension_numbers"], *given[:2])]
    if name == "broadcast_in_dim":
        found: list[str | None] = [None] * len(out)
        for source, place in enumerate(params["broadcast_dimensions"]):
            # A dimension of size 1 that is stretched is not the axis that it lines up with.
            if shape_of(equation.invars[0])[source] == out[place]:
                found[place] = given[0][source]
        return [tuple(found)]
    if name == "reshape":
        return [reshaped(shape_of(equation.invars[0]), out, given[0])]
    if name == "transpose":
        return [tuple(given[0][i] for i in params["permutation"])]
    if name == "squeeze":
        dropped = set(params["dimensions"])
        return [tuple(a for i, a in enumerate(given[0]) if i not in dropped)]
    # `reduce_precision` has no axes and is elementwise; a reduction can have several results.
    if "axes" in params and name.startswith(("reduce_", "arg")):
        dropped = set(params["axes"])
        kept = tuple(a for i, a in enumerate(given[0]) if i not in dropped)
        return [kept for _ in equation.outvars]
    if name == "gather":
        return [_of_gather(equation, given)]
    if name.startswith("scatter"):
        return [_of_scatter(equation, given)]
    return [_merged(shape_of(v), equation.invars, given) for v in equation.outvars]


def reshaped(before: Sequence[int], after: Sequence[int], labels: Labels) -> Labels:
    """Return the logical axes of a reshaped array: those that lead a group of dimensions stay.

    Args:
      before: The old shape.
      after: The new shape.
      labels: The old axes.
    """
    # Both shapes are cut into the smallest groups of dimensions with equal products, from the left:
    # (B, L, 2, 8) and (B, L, 16) make the groups B|B, L|L and 2,8|16. Row-major order means that a
    # sharding of the first dimension of a group is one of the first dimension after the reshape,
    # and that the others have none. So [rows, length, D] -> [rows * length, D] stays the batch; in
    # a group with several labels the batch wins, since memory depends on it most. Groups of as many
    # dimensions on both sides keep the labels of equal sizes. Dimensions of size 1 carry nothing.
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
    # A result of `dot_general` has the batch dimensions, then the free ones of both sides.
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    shared = tuple(left[i] or right[j] for i, j in zip(left_batch, right_batch, strict=True))
    dropped = {*left_sum, *left_batch}, {*right_sum, *right_batch}
    free = tuple(a for i, a in enumerate(left) if i not in dropped[0])
    return (*shared, *free, *(a for i, a in enumerate(right) if i not in dropped[1]))


def contracted(equation: jex_core.JaxprEqn, given: Sequence[Labels]) -> tuple[str, ...]:
    """Return the logical axes that a product contracts, of either operand.

    Args:
      equation: A `dot_general`.
      given: The logical axes of its operands.
    """
    (left_sum, right_sum), _ = equation.params["dimension_numbers"]
    pairs = zip(left_sum, right_sum, strict=True)
    found = (given[0][i] or given[1][j] for i, j in pairs)
    return tuple(dict.fromkeys(a for a in found if a))


def _of_gather(equation: jex_core.JaxprEqn, given: Sequence[Labels]) -> Labels:
    # Offset dimensions are those of the slices: a slice of a whole dimension keeps its label. The
    # others are those of the indices: rows of an embedding that tokens of the batch look up are of
    # the batch.
    numbers, out = equation.params["dimension_numbers"], shape_of(equation.outvars[0])
    operand, sizes = shape_of(equation.invars[0]), equation.params["slice_sizes"]
    hidden = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    kept = [i for i in range(len(operand)) if i not in hidden]
    found: list[str | None] = [None] * len(out)
    for place, i in zip(numbers.offset_dims, kept, strict=False):
        found[place] = given[0][i] if sizes[i] == operand[i] else None
    rest = [place for place in range(len(out)) if place not in numbers.offset_dims]
    for place, label in zip(rest, given[1], strict=False):
        found[place] = label
    return tuple(found)


def _of_scatter(equation: jex_core.JaxprEqn, given: Sequence[Labels]) -> Labels:
    # The result is the operand, which is mostly zeros without labels. So it also takes those of
    # the batching dimensions of the indices, and of the window dimensions that updates fill.
    numbers, found = equation.params["dimension_numbers"], list(given[0])
    operand = shape_of(equation.invars[0])
    batching = zip(
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    )
    for place, i in batching:
        found[place] = found[place] or given[1][i]
    hidden = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [i for i in range(len(operand)) if i not in hidden]
    updates = shape_of(equation.invars[2])
    for place, i in zip(kept, numbers.update_window_dims, strict=True):
        if operand[place] == updates[i]:
            found[place] = found[place] or given[2][i]
    return tuple(found)


# Primitives whose operands do not have the labels of the result at the same places. Loops and
# `shard_map` pass labels back by themselves (`activity._share`).
_NOT_BY_ELEMENT = (
    "sharding_constraint", "scan", "cond", "while", "shard_map", "dot_general", "gather",
    "ragged_dot_general", "ragged_dot", "all_gather", "all_to_all", "sort", "dynamic_slice",
    "dynamic_update_slice", "cumsum", "pad", "concatenate",
)  # fmt: skip


def spread_back(
    equations: Sequence[jex_core.JaxprEqn], labels: Mapping[Any, Labels], known: dict[Any, Labels]
) -> None:
    """Propagate labels backwards through elementwise operations, from result to operands.

    Args:
      equations: The equations of one program, in order.
      labels: Labels of its variables, propagated forwards.
      known: Takes the labels of operands that say more than `labels` does.
    """
    # In reverse, so that a chain of elementwise operations is followed to its start in one pass.
    for equation in reversed(equations):
        name, outs = equation.primitive.name, equation.outvars
        if name in _NOT_BY_ELEMENT:
            continue
        if name not in _UNCHANGED:
            outs = [outs[0]] * len(equation.invars)
        for var, out in zip(equation.invars, outs, strict=True):
            if isinstance(var, jex_core.Literal) or var not in labels or out not in labels:
                continue
            # Only what adds something is noted, so that a value keeps the labels that it has by
            # itself.
            required = together(labels[out], known.get(out))
            back = _back(equation, shape_of(var), required)
            if back is not None and together(labels[var], back) != labels[var]:
                known[var] = together(back, known.get(var))


def _back(equation: jex_core.JaxprEqn, shape: Sequence[int], required: Labels) -> Labels | None:
    """Return the labels of an operand by those of the result; None where the shapes differ."""
    name, params, after = (equation.primitive.name, equation.params, shape_of(equation.outvars[0]))
    if name in _UNCHANGED:
        return required
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
    """Merge two sets of labels of one value; the batch goes before others.

    Args:
      labels: Labels that go first where both have one.
      others: Labels from elsewhere; None if there are none.
    """
    # The batch goes first because it is what distinguishes activations from parameters, and because
    # microbatches divide what has it (`MeshLayout.bytes_of`).
    pairs = zip(labels, others or labels, strict=True)
    return tuple(BATCH if BATCH in pair else pair[0] or pair[1] for pair in pairs)


def _merged(shape: Sequence[int], operands: Sequence[Any], given: Sequence[Labels]) -> Labels:
    """Merge the labels of the operands of an elementwise operation."""
    found: list[str | None] = [None] * len(shape)
    for operand, labels in zip(operands, given, strict=True):
        if len(shape_of(operand)) != len(shape):
            continue
        found = list(together(tuple(found), labels))
    return tuple(found)


def num_elements(aval: Any) -> int:
    """Return how many elements an abstract array has."""
    return math.prod(getattr(aval, "shape", ()))


@dataclasses.dataclass(frozen=True)
class Manual:
    """Translation of the mesh axes that a trace names to logical axes.

    Constraints and `shard_map` name mesh axes, those of the mesh that happened to be traced. For
    the model to serve other meshes, they are read as the logical axes that the rules split so.

    Args:
      table: Logical axis to mesh axes, for activations.
      sizes: Mesh axis to number of devices, of the trace.
      inside: The manual mesh axes at this depth, of which the program sees one place.
    """

    table: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]
    inside: frozenset[str] = frozenset()

    def within(self, params: Mapping[str, Any]) -> Manual:
        """Return the translation inside of a `shard_map`.

        Args:
          params: Parameters of the equation.
        """
        # The name of the parameter differs between the versions of JAX.
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
        return dataclasses.replace(self, inside=self.inside | frozenset(axes))

    def places(self, labels: Labels) -> int:
        """Return how many shards of a value, as the program sees it here, make the whole.

        Args:
          labels: Logical axes of a value.
        """
        # Only manual axes that split one of the labels: along the others, each place has the same
        # value.
        axes = {axis for label in labels if label for axis in self._axes(label)}
        return math.prod(self.sizes[axis] for axis in axes & self.inside)

    def placed(self, spec: Sequence[Any], labels: Labels, is_kept: bool = True) -> Labels:
        """Return the labels of a value that is split as a partition spec says.

        Args:
          spec: The mesh axes of each dimension; later dimensions may be missing.
          labels: Known labels of the value.
          is_kept: Whether a label that is known goes before the spec.
        """
        found = list(labels)
        for i, entry in enumerate(spec[: len(found)]):
            axes = _entry(entry)
            if axes and not (is_kept and labels[i]):
                found[i] = self._label(axes, labels[i])
        return tuple(found)

    def constrained(self, spec: Sequence[Any], labels: Labels) -> Labels:
        """Return the labels of a value after a sharding constraint.

        Args:
          spec: For each dimension its mesh axes, None (replicated), or `UNCONSTRAINED`.
          labels: Known labels of the value.
        """
        # None replicates a dimension, so a label that the mesh would split is dropped; one whose
        # mesh axes have size 1 in this trace says nothing, and stays.
        found = list(self.placed(spec, labels, is_kept=False))
        for i, entry in enumerate(spec[: len(found)]):
            if entry is None and any(self.sizes[a] > 1 for a in self._axes(labels[i] or "")):
                found[i] = None
        return tuple(found)

    def _axes(self, label: str) -> tuple[str, ...]:
        return (STAGE,) if label == LAYERS else tuple(self.table.get(label, ()))

    def _label(self, axes: frozenset[str], known: str | None) -> str | None:
        """Return the logical axis that mesh axes split: the one that is known, if it fits."""
        # Several logical axes may have the same rule (vocab, heads, mlp -> tensor). The known label
        # is tried first, then the table in its order; any is right, as they divide alike. An axis
        # that has these mesh axes among more serves where none has exactly these.
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
