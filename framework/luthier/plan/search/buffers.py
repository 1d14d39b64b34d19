"""Buffers of a program, and the steps that make and end them, by logical axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from luthier.plan.search.labels import Labels


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
    steps: list[Step] = dataclasses.field(default_factory=list)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    residuals: list[Buffer] = dataclasses.field(default_factory=list)
    given: set[int] = dataclasses.field(default_factory=set)
    copies: dict[Any, Buffer] = dataclasses.field(default_factory=dict)
