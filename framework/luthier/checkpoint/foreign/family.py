"""Maps between foreign tensors and our parameters: names, dimensions, and layers of any stack.

A map is declared once and used in both directions. Names on both sides are those of unrolled layers
(`blocks.3.attention...`); how our stack really holds its layers (one array for all of them, cycles
of several kinds, a rest) is the business of `LayerCycles` and `Slot`. A `TensorLayout` says how
dimensions are split, merged and permuted, in the notation of einops, and is invertible by
construction.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# How the dimensions of a foreign tensor are those of a parameter of ours, in words.
#
# `(heads head_dim) embed -> embed heads head_dim` says that a foreign matrix has heads and head_dim
# merged in its rows, and that ours has them apart, after embed. Reading from left to right is a
# reshape, a transpose; from right to left it is undone. Any part of our array is read from one
# block of the foreign tensor.

Shape = tuple[int, ...]
Index = tuple[slice, ...]
Fetch = Callable[[Index], np.ndarray]

_GROUP = re.compile(r"\(([^()]*)\)|(\S+)")


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """An invertible rearrangement of dimensions.

    Args:
      text: `foreign -> ours`, names of dimensions separated by blanks; merged ones in brackets,
        the first varies slowest; `1` is a dimension of size one. Without an arrow both are alike.

    Raises:
      ValueError: The two sides do not name the same dimensions once each.
    """

    text: str

    def __post_init__(self) -> None:
        """Reject layouts that cannot be inverted."""
        # Invertible by construction: each dimension once on each side, and none merged on ours, so
        # that a part of ours is a range of each dimension.
        left, right = (sorted(sum(side, ())) for side in self._sides)
        if left != right or len(set(left)) != len(left) or any(len(g) > 1 for g in self._sides[1]):
            raise ValueError(f"{self.text!r} is not a rearrangement of dimensions")

    @functools.cached_property
    def _sides(self) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
        foreign, _, ours = self.text.partition("->")
        return _groups(foreign), _groups(ours or foreign)

    @property
    def rank(self) -> int:
        """The number of dimensions of ours."""
        return len(self._sides[1])

    # Only `ours` has sizes: a merged foreign dimension is their product. `limits` takes off what
    # ours has been padded with, such as a vocabulary that was rounded up for the mesh.
    def foreign_shape(self, shape: Sequence[int], limits: Mapping[str, int]) -> Shape:
        """Return the shape of the foreign tensor.

        Args:
          shape: The shape of ours.
          limits: For dimensions that are padded in ours, their size without.
        """
        sizes = self._sizes(shape, limits)
        return tuple(math.prod(sizes[name] for name in group) for group in self._sides[0])

    def read(
        self, fetch: Fetch, shape: Sequence[int], index: Index, limits: Mapping[str, int]
    ) -> np.ndarray:
        """Return a part of our array; reads no more of the foreign tensor than one block.

        Args:
          fetch: Returns a block of the foreign tensor.
          shape: The shape of ours, whole.
          index: The part, with a start and a stop in every dimension.
          limits: For dimensions that are padded in ours, their size without; padding is zero.
        """
        foreign, ours = self._sides
        sizes = self._sizes(shape, limits)
        ranges: dict[str, tuple[int, int]] = {}
        for group, part in zip(ours, index, strict=True):
            for name in group:
                ranges[name] = (min(part.start, sizes[name]), min(part.stop, sizes[name]))
        wanted = tuple(part.stop - part.start for part in index)
        there = tuple(_extent(ranges, group) for group in ours)
        if not math.prod(there) or not math.prod(wanted):
            # Padding only. Any type will do: `assemble` casts to that of the parameter.
            return np.zeros(wanted, np.float32)
        # A shard of ours is read as the smallest contiguous block of the foreign tensor that holds
        # it, from each dimension, and cut down afterwards: a device never reads the whole tensor.
        blocks = [_block(group, sizes, ranges) for group in foreign]
        block = fetch(tuple(slice(start, stop) for start, stop, _, _ in blocks))
        block = block.reshape([n for *_, extents, _ in blocks for n in extents])
        block = block[tuple(part for *_, parts in blocks for part in parts)]
        found = block.transpose(self._order()).reshape(there)
        if there == wanted:
            return found
        return np.pad(found, [(0, w - n) for w, n in zip(wanted, there, strict=True)])

    def write(self, array: np.ndarray, limits: Mapping[str, int]) -> np.ndarray:
        """Return the foreign tensor of our array.

        Args:
          array: Ours, whole.
          limits: For dimensions that are padded in ours, their size without.
        """
        ours = self._sides[1]
        shape = self.foreign_shape(array.shape, limits)
        sizes = self._sizes(array.shape, limits)
        # Padding of ours is not written.
        kept = array[tuple(slice(0, _extent_of(sizes, group)) for group in ours)]
        atoms = [name for group in ours for name in group]
        apart = kept.reshape([sizes[name] for name in atoms])
        back = np.argsort(self._order())
        return np.ascontiguousarray(apart.transpose(back).reshape(shape))

    # Where each dimension of ours stands among those of the foreign tensor, both taken apart: the
    # permutation of `transpose` in one direction, and its inverse (`argsort`) in the other.
    def _order(self) -> list[int]:
        atoms = [name for group in self._sides[0] for name in group]
        return [atoms.index(name) for group in self._sides[1] for name in group]

    def _sizes(self, shape: Sequence[int], limits: Mapping[str, int]) -> dict[str, int]:
        ours = self._sides[1]
        if len(shape) != len(ours):
            raise ValueError(f"{self.text!r} does not describe {len(shape)} dimensions")
        sizes = {n: size for group, size in zip(ours, shape, strict=True) for n in group}
        return {name: min(size, limits.get(name, size)) for name, size in sizes.items()}


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    found = []
    for match in _GROUP.finditer(text):
        names = match[1].split() if match[1] is not None else [match[2]]
        found.append(tuple(name for name in names if name != "1"))
    return tuple(found)


def _extent(ranges: Mapping[str, tuple[int, int]], group: Sequence[str]) -> int:
    return math.prod(ranges[name][1] - ranges[name][0] for name in group)


def _extent_of(sizes: Mapping[str, int], group: Sequence[str]) -> int:
    return math.prod(sizes[name] for name in group)


def _block(
    group: Sequence[str], sizes: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> tuple[int, int, list[int], list[slice]]:
    """Return start and stop of the block that holds the ranges, its extents, and what is kept."""
    # Within a merged dimension, as `(heads head_dim)`, the first name varies slowest. As long as a
    # name's range is a single entry, the block is contiguous in the next one, too; the first name
    # with more than one entry takes all of the faster ones with it, which are then cut after
    # reading.
    start, extents, parts = 0, [], []
    stop = 1
    for place, name in enumerate(group):
        first, last = ranges[name]
        inner = math.prod(sizes[other] for other in group[place + 1 :])
        start += first * inner
        stop = start + (last - first) * inner
        extents.append(last - first)
        parts.append(slice(0, last - first))
        if last - first > 1:
            rest = group[place + 1 :]
            extents += [sizes[other] for other in rest]
            parts += [slice(*ranges[other]) for other in rest]
            break
    return start, stop, extents, parts


# Parameters by layer, whatever the stack: scanned, unrolled, or in cycles.
#
# The same layers are `blocks.mlp.kernel` with a leading axis where they are scanned,
# `blocks.3.mlp.kernel` where they are unrolled, and `blocks.cycle.1.mlp.kernel` where a few kinds
# take turns. A *slot* is the place of one layer's array, under the unrolled name.

_BLOCKS = re.compile(r"((?:.*?\.)?blocks)\.(.+)")
_CYCLE = re.compile(r"cycle\.(\d+)\.(.+)")
_REST = re.compile(r"rest\.(\d+)\.(.+)")


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of the array of one layer.

    Args:
      parameter: Name of the parameter that holds it.
      index: Its place on the leading axis of the parameter; None where it is the whole of it.
      shape: Its shape, without the leading axis.
      expert: Its place on the axis of the experts, the next one; None where a family has the
        experts of a layer in one tensor, or there are none.
    """

    parameter: str
    index: int | None
    shape: Shape
    expert: int | None = None

    def take(self, array: Any) -> Any:
        """Return the part of the parameter's array that is at this place."""
        for index in (self.index, self.expert):
            array = array if index is None else array[index]
        return array


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A parameter, as far as its layers are looked at.

    Args:
      shape: Its whole shape.
      is_stacked: Whether its first axis is that of the layers.
    """

    shape: Shape
    is_stacked: bool = False


@dataclasses.dataclass(frozen=True)
class LayerCycles:
    """The kinds of layers that alternate in each stack, and how often: `{stack: (kinds, turns)}`.

    Args:
      of: Kinds and turns by the name of the stack, such as `blocks`.
    """

    of: Mapping[str, tuple[int, int]]

    @classmethod
    def find(cls, parameters: Mapping[str, Stacked]) -> LayerCycles:
        """Look at the names and shapes of all parameters."""
        found: dict[str, tuple[int, int]] = {}
        for name, parameter in parameters.items():
            match = _BLOCKS.fullmatch(name)
            inside = match and _CYCLE.fullmatch(match[2])
            if match and inside:
                kinds, turns = found.get(match[1], (0, 1))
                # Every parameter of a cycle says the same; the largest number of a kind says how
                # many there are.
                turns = parameter.shape[0] if parameter.is_stacked else turns
                found[match[1]] = (max(kinds, int(inside[1]) + 1), turns)
        return cls(found)

    @classmethod
    def of_sources(cls, sources: Mapping[str, tuple[str, Stacked]]) -> LayerCycles:
        """Look at all parameters of a model, by name, with the name that each has in a source."""
        # A source has as many kinds as the model, also where rules rename only one of them. All
        # kinds are needed, read or not: the place of a layer depends on their number.
        own = cls.find({name: parameter for name, (_, parameter) in sources.items()})
        found = dict(cls.find(dict(sources.values())).of)
        for name, (source, _) in sources.items():
            here, there = _BLOCKS.fullmatch(name), _BLOCKS.fullmatch(source)
            if here and there and here[1] in own.of:
                found[there[1]] = own.of[here[1]]
        return cls(found)

    def slots(self, name: str, parameter: Stacked) -> Iterator[tuple[str, Slot]]:
        """Yield the unrolled name and the slot of every layer in a parameter, in its order."""
        match = _BLOCKS.fullmatch(name)
        if match is None:
            yield name, Slot(name, None, parameter.shape)
            return
        stack, inside = match[1], match[2]
        # Layer `n` of a stack with K kinds and T turns is kind `n % K` in turn `n // K`; the rest,
        # layers that fill no whole turn, follows behind K * T. So kind 1 of 2 holds the layers 1,
        # 3, 5, ...
        first, every = 0, 1
        if cycle := _CYCLE.fullmatch(inside):
            first, every, inside = int(cycle[1]), self.of[stack][0], cycle[2]
        elif rest := _REST.fullmatch(inside):
            # A stack of fewer layers than kinds has no cycle, so that its rest begins at layer 0.
            kinds, turns = self.of.get(stack, (0, 0))
            first, inside = kinds * turns + int(rest[1]), rest[2]
        elif not parameter.is_stacked:
            yield name, Slot(name, None, parameter.shape)
            return
        if not parameter.is_stacked:
            yield f"{stack}.{first}.{inside}", Slot(name, None, parameter.shape)
            return
        for index in range(parameter.shape[0]):
            slot = Slot(name, index, parameter.shape[1:])
            yield f"{stack}.{first + index * every}.{inside}", slot


def slots(parameters: Mapping[str, Stacked]) -> dict[str, Slot]:
    """Return the slots of all parameters by unrolled name."""
    cycles = LayerCycles.find(parameters)
    found: dict[str, Slot] = {}
    for name, parameter in parameters.items():
        found.update(cycles.slots(name, parameter))
    return found


def guess(shapes: Mapping[str, Shape]) -> dict[str, Stacked]:
    """Return which parameters are stacked where only names and shapes are known."""
    return {name: Stacked(shape, _looks_stacked(name)) for name, shape in shapes.items()}


def is_stacked(axes: Iterable[str | None] | None) -> bool:
    """Return whether the logical axes of a parameter begin with that of the layers."""
    return axes is not None and next(iter(axes), None) == "layers"


def _looks_stacked(name: str) -> bool:
    match = _BLOCKS.fullmatch(name)
    if match is None:
        return False
    # By the name alone: an unrolled layer has its number behind `blocks`, and the layers of the
    # rest are unrolled, too. Everything else there is a stack.
    first = match[2].partition(".")[0]
    return not first.isdigit() and first != "rest"


# A family's map: foreign tensor names on the left, parameters of ours on the right.
#
#     tensor("model.layers.{layer}.self_attn.q_proj.weight",
#            "blocks.{layer}.attention.query.kernel",
#            "(heads head_dim) embed -> embed heads head_dim")
#
# The same lines read and write. Whether a line counts is decided by the graph: a line for a
# parameter that the model does not have (a bias, say) is not there.

LAYER, EXPERT = "{layer}", "{expert}"


@dataclasses.dataclass(frozen=True)
class TensorPart:
    """A parameter of ours that is a foreign tensor, or a piece of one.

    Args:
      ours: Its name, with `{layer}` for the layer's number, and `{expert}` for that of an expert
        whose tensors are apart there.
      layout: The rearrangement of its dimensions.
    """

    ours: str
    layout: TensorLayout


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A foreign tensor.

    Args:
      foreign: Its name, with `{layer}` for the layer's number.
      parts: Our parameters that it holds, joined in this order.
      axis: The foreign dimension along which they are joined.
      copy_of: The foreign tensor that it is a copy of where our model ties the two; then it may be
        absent, and must be equal where it is not.
    """

    foreign: str
    parts: tuple[TensorPart, ...]
    axis: int = 0
    copy_of: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """The weights of a family of models, as its files have them.

    Args:
      name: Its usual name.
      model_types: `model_type` of its config.json files.
      architecture: The class that its config.json names when we write one.
      tensors: Every tensor that its files may hold.
      prefix: The beginning of foreign names that files of a bare model lack.
      prefixes: Beginnings of foreign names, and what files of a larger model, of which this is a
        part, have in their place.
      ignored: Patterns of tensors that are not weights, such as buffers.
      is_tied: Whether embedding and head are one where its config.json does not say.
      config_patterns: Beginnings of values of its config.json (regular expressions, by key; ""
        where the key is missing), where several families have one `model_type`.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    tensors: tuple[Tensor, ...]
    prefix: str = ""
    prefixes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    is_tied: bool = False
    config_patterns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _matchers(self) -> list[tuple[re.Pattern[str], Tensor, int]]:
        return [
            (_pattern(part.ours), tensor, number)
            for tensor in self.tensors
            for number, part in enumerate(tensor.parts)
        ]

    @functools.cached_property
    def _foreign(self) -> list[tuple[re.Pattern[str], Tensor]]:
        return [(_pattern(tensor.foreign), tensor) for tensor in self.tensors]

    @functools.cached_property
    def _expert_parts(self) -> list[tuple[re.Pattern[str], TensorPart]]:
        return [
            (_pattern(part.ours.replace(f".{EXPERT}", "")), part)
            for tensor in self.tensors
            for part in tensor.parts
            if EXPERT in part.ours
        ]

    def expert_slots(self, name: str, slot: Slot) -> Iterator[tuple[str, Slot]]:
        """Yield the slots that the family's files hold apart, with their names.

        Args:
          name: The unrolled name of a slot.
          slot: The slot.

        Yields:
          One for each expert, `blocks.3.mlp.experts.7.up.kernel`, where the slot has all experts of
          a layer and the family a tensor for each; otherwise the slot itself.
        """
        # Our experts are one array, so that they are one product; the hub's files predate that.
        for pattern, part in self._expert_parts:
            if match := pattern.fullmatch(name):
                for expert in range(slot.shape[0]):
                    own = part.ours.replace(EXPERT, str(expert))
                    place = dataclasses.replace(slot, shape=slot.shape[1:], expert=expert)
                    yield _filled(own, match), place
                return
        yield name, slot

    def places(self, parameters: Mapping[str, Stacked]) -> dict[str, Slot]:
        """Return the slots that the family's files hold, by their names.

        Args:
          parameters: Shape and stacking of all parameters of a model.
        """
        return {
            own: place
            for name, slot in slots(parameters).items()
            for own, place in self.expert_slots(name, slot)
        }

    def is_ignored(self, name: str) -> bool:
        """Return whether a foreign tensor is not a weight."""
        return any(re.search(pattern, name) for pattern in self.ignored)

    def ours_of(self, name: str) -> list[str]:
        """Return the names that a foreign tensor would have with us; none if it is unknown."""
        for pattern, tensor in self._foreign:
            if match := pattern.fullmatch(name):
                return [_filled(part.ours, match) for part in tensor.parts]
        return []

    def resolve(self, slots: Mapping[str, Slot], limits: Mapping[str, int]) -> Resolved:
        """Find the foreign tensor of every slot.

        Args:
          slots: The places of our model by unrolled name.
          limits: For dimensions that are padded in ours, their size without.
        """
        # From ours to theirs, and not the other way round: the graph decides which parameters
        # exist, and the map only says where they are. A foreign tensor may hold several slots
        # (queries, keys and values), so the slots are collected by tensor first, and placed once
        # all of them are known.
        held: dict[str, dict[int, str]] = {}
        tensors: dict[str, Tensor] = {}
        unknown = []
        for name in slots:
            # The first match, since each of our names has one place in a family.
            for pattern, tensor, number in self._matchers:
                if match := pattern.fullmatch(name):
                    foreign = _filled(tensor.foreign, match)
                    held.setdefault(foreign, {})[number] = name
                    tensors[foreign] = tensor
                    break
            else:
                unknown.append(name)
        # Not raised here: a restore needs only those that are taken (`_check`), an export all.
        resolved = Resolved(self, limits, unknown=unknown)
        for foreign, parts in held.items():
            resolved.add(foreign, tensors[foreign], parts, slots)
        for tensor in self.tensors:
            # Ours has no parameter for it because it ties the two; files may hold it anyway. Names
            # of copies have no `{layer}`, so that they stand in `held` as the family writes them.
            if tensor.copy_of and tensor.foreign not in held:
                resolved.copies[tensor.foreign] = tensor.copy_of
        return resolved


@dataclasses.dataclass(frozen=True)
class SlotView:
    """A slot, seen in a foreign tensor.

    Args:
      foreign: The tensor.
      layout: The rearrangement of dimensions.
      axis: The foreign dimension along which the tensor is joined.
      offset: Where this part begins on it.
      shape: The shape of ours.
    """

    foreign: str
    layout: TensorLayout
    axis: int
    offset: int
    shape: Shape


@dataclasses.dataclass
class Resolved:
    """A family's map for one model: every name and shape on both sides.

    Args:
      family: The family.
      limits: For dimensions that are padded in ours, their size without.
      views: By unrolled name, where each slot is seen.
      shapes: The shape that each foreign tensor has to have.
      copies: Foreign tensors that may be absent, and what they are copies of.
      sources: Foreign tensors that can be read from another one where they are absent.
      parts: For each foreign tensor, the slots that it is for.
      unknown: Slots that the family has no tensor for.
      broken: Sentences about tensors of which the model has a part only.
    """

    family: Family
    limits: Mapping[str, int]
    views: dict[str, SlotView] = dataclasses.field(default_factory=dict)
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    unknown: Sequence[str] = ()
    broken: list[str] = dataclasses.field(default_factory=list)

    def add(
        self, foreign: str, tensor: Tensor, parts: Mapping[int, str], slots: Mapping[str, Slot]
    ) -> None:
        """Add one foreign tensor with the slots that are its parts."""
        # Parts are laid end to end along `axis`, so that the offset of each is the extent of those
        # before it. A tensor of which the model has some parts only cannot be read, and much less
        # be written. Views of parts before the missing one stay, and are not read: whoever resolves
        # refuses everything in `broken`.
        shape: list[int] = []
        for number, part in enumerate(tensor.parts):
            name = parts.get(number)
            if name is None:
                have = ", ".join(parts.values())
                self.broken.append(f"{foreign} holds {part.ours} beside {have}, and ours does not")
                return
            slot = slots[name]
            if part.layout.rank != len(slot.shape):
                dims = f"{list(slot.shape)}, not {part.layout.rank} dimensions"
                self.broken.append(f"{name} is {dims}, as {self.family.name} has it")
                return
            # Only the joined dimension is added up; the others are those of the first part, since
            # parts of one layer share them. One that differed would fail at `concatenate`.
            here = part.layout.foreign_shape(slot.shape, self.limits)
            offset = shape[tensor.axis] if number else 0
            self.views[name] = SlotView(foreign, part.layout, tensor.axis, offset, slot.shape)
            if number:
                shape[tensor.axis] += here[tensor.axis]
            else:
                shape = list(here)
        # Ours has a parameter of its own, which may still start from the copy's original where the
        # files have only that.
        self.shapes[foreign] = tuple(shape)
        self.parts[foreign] = tuple(parts[number] for number in range(len(tensor.parts)))
        if tensor.copy_of:
            self.sources[foreign] = tensor.copy_of

    def ours_of(self, foreign: str) -> list[str]:
        """Return the slots that a foreign tensor is for."""
        return list(self.parts.get(foreign, ()))


def tensor(foreign: str, ours: str, layout: str, copy_of: str = "") -> Tensor:
    """Return a foreign tensor that is one parameter of ours.

    Args:
      foreign: Its name there, with `{layer}` for the layer's number.
      ours: Its name here.
      layout: The dimensions, as `luthier.checkpoint.foreign.Layout` takes them.
      copy_of: The foreign tensor that it repeats where our model ties the two.
    """
    return Tensor(foreign, (TensorPart(ours, TensorLayout(layout)),), copy_of=copy_of)


def joined(foreign: str, axis: int, *parts: tuple[str, str]) -> Tensor:
    """Return a foreign tensor that holds several parameters of ours.

    Args:
      foreign: Its name there, with `{layer}` for the layer's number.
      axis: The foreign dimension along which they are joined.
      *parts: Names and layouts of ours, in their order.
    """
    return Tensor(
        foreign, tuple(TensorPart(ours, TensorLayout(layout)) for ours, layout in parts), axis
    )


def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name)
    for number in (LAYER, EXPERT):
        text = text.replace(re.escape(number), rf"(?P<{number[1:-1]}>\d+)")
    return re.compile(text)


def _filled(name: str, match: re.Match[str]) -> str:
    for number in (LAYER, EXPERT):
        name = name.replace(number, match.groupdict().get(number[1:-1]) or "")
    return name
