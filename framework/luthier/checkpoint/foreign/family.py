"""A family's map: foreign tensor names on the left, parameters of ours on the right.

    tensor("model.layers.{layer}.self_attn.q_proj.weight",
           "blocks.{layer}.attention.query.kernel",
           "(heads head_dim) embed -> embed heads head_dim")

The same lines read and write. Whether a line counts is decided by the graph: a line for a parameter
that the model does not have (a bias, say) is not there.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from luthier.checkpoint.foreign.layers import Slot
from luthier.checkpoint.foreign.layout import Layout, Shape

LAYER = "{layer}"


@dataclasses.dataclass(frozen=True)
class Part:
    """A parameter of ours that is a foreign tensor, or a piece of one.

    Args:
      ours: Its name, with `{layer}` for the layer's number.
      layout: How its dimensions are those of the foreign tensor.
    """

    ours: str
    layout: Layout


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A foreign tensor.

    Args:
      foreign: Its name, with `{layer}` for the layer's number.
      parts: What of ours it holds, joined in this order.
      axis: The foreign dimension along which they are joined.
      copy_of: The foreign tensor that it is a copy of where our model ties the two; then it may be
        absent, and must be equal where it is not.
    """

    foreign: str
    parts: tuple[Part, ...]
    axis: int = 0
    copy_of: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """The weights of a family of models, as its files have them.

    Args:
      name: What people call it.
      model_types: `model_type` of its config.json files.
      architecture: The class that its config.json names when we write one.
      tensors: Every tensor that its files may hold.
      prefix: The beginning of foreign names that files of a bare model lack.
      ignored: Patterns of tensors that are no weights, such as buffers.
      is_tied: Whether embedding and head are one where its config.json does not say.
      config_patterns: What values of its config.json begin with (regular expressions, by key; ""
        where the key is missing), where several families have one `model_type`.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    tensors: tuple[Tensor, ...]
    prefix: str = ""
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

    def is_ignored(self, name: str) -> bool:
        """Return whether a foreign tensor is no weight."""
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
        held: dict[str, dict[int, str]] = {}
        tensors: dict[str, Tensor] = {}
        unknown = []
        for name in slots:
            for pattern, tensor, number in self._matchers:
                if match := pattern.fullmatch(name):
                    foreign = _filled(tensor.foreign, match)
                    held.setdefault(foreign, {})[number] = name
                    tensors[foreign] = tensor
                    break
            else:
                unknown.append(name)
        resolved = Resolved(self, limits, unknown=unknown)
        for foreign, parts in held.items():
            resolved.add(foreign, tensors[foreign], parts, slots)
        for tensor in self.tensors:
            if tensor.copy_of and tensor.foreign not in held:
                resolved.copies[tensor.foreign] = tensor.copy_of
        return resolved


@dataclasses.dataclass(frozen=True)
class View:
    """A slot, seen in a foreign tensor.

    Args:
      foreign: The tensor.
      layout: How dimensions are rearranged.
      axis: The foreign dimension along which the tensor is joined.
      offset: Where this part begins on it.
      shape: The shape of ours.
    """

    foreign: str
    layout: Layout
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
      unknown: Slots that the family has no tensor for.
      broken: Sentences about tensors of which the model has a part only.
    """

    family: Family
    limits: Mapping[str, int]
    views: dict[str, View] = dataclasses.field(default_factory=dict)
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    unknown: Sequence[str] = ()
    broken: list[str] = dataclasses.field(default_factory=list)

    def add(
        self, foreign: str, tensor: Tensor, parts: Mapping[int, str], slots: Mapping[str, Slot]
    ) -> None:
        """Add one foreign tensor with the slots that are its parts."""
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
            here = part.layout.foreign_shape(slot.shape, self.limits)
            offset = shape[tensor.axis] if number else 0
            self.views[name] = View(foreign, part.layout, tensor.axis, offset, slot.shape)
            if number:
                shape[tensor.axis] += here[tensor.axis]
            else:
                shape = list(here)
        self.shapes[foreign] = tuple(shape)
        if tensor.copy_of:
            self.sources[foreign] = tensor.copy_of

    def ours_of(self, foreign: str) -> list[str]:
        """Return the slots that a foreign tensor is for."""
        return [name for name, view in self.views.items() if view.foreign == foreign]


def tensor(foreign: str, ours: str, layout: str, copy_of: str = "") -> Tensor:
    """Return a foreign tensor that is one parameter of ours.

    Args:
      foreign: Its name there, with `{layer}` for the layer's number.
      ours: Its name here.
      layout: The dimensions, as `luthier.checkpoint.foreign.Layout` takes them.
      copy_of: The foreign tensor that it repeats where our model ties the two.
    """
    return Tensor(foreign, (Part(ours, Layout(layout)),), copy_of=copy_of)


def joined(foreign: str, axis: int, *parts: tuple[str, str]) -> Tensor:
    """Return a foreign tensor that holds several parameters of ours.

    Args:
      foreign: Its name there, with `{layer}` for the layer's number.
      axis: The foreign dimension along which they are joined.
      *parts: Names and layouts of ours, in their order.
    """
    return Tensor(foreign, tuple(Part(ours, Layout(layout)) for ours, layout in parts), axis)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape(LAYER), r"(?P<layer>\d+)"))


def _filled(name: str, match: re.Match[str]) -> str:
    return name.replace(LAYER, match.groupdict().get("layer") or "")
